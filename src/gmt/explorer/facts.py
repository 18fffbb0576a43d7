"""What the page is told once: the models, the colours, the example texts and the limits."""

from typing import Any

from gmt import plot
from gmt.analysis import pos
from gmt.analysis.texts import own_texts
from gmt.explorer import answers, asks
from gmt.explorer.state import Explorer
from gmt.hf.load import Loaded

Tree = dict[str, Any]


def model_facts(explorer: Explorer) -> Tree:
    memory = any(loaded.lm.cells for loaded in explorer.models)
    return {
        "models": [_facts(loaded) for loaded in explorer.models],
        "classes": pos.available(),
        "colours": plot.POS_COLOURS,
        "quantities": answers.quantities(memory),
        "texts": own_texts(),
        "corpus": explorer.corpus.facts() if explorer.corpus else None,
        "limits": {"text": asks.TEXT, "edits": asks.EDITS, "tokens": asks.TOKENS},
    }


def _facts(loaded: Loaded) -> Tree:
    lm, cfg = loaded.lm, loaded.lm.cfg
    return {
        "name": loaded.name,
        "sha256": loaded.sha256,
        "step": loaded.step,
        "blocks": len(lm.blocks),
        "slots": cfg.memory.slots if lm.cells else 0,
        "hidden": cfg.model.hidden,
        "context": cfg.model.context,
        "parameters": sum(p.numel() for p in lm.parameters()),
        "tau": answers.plain(float(lm.tau)),
        "has_memory": bool(lm.cells),
    }
