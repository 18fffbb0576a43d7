"""The model card: what the weights are and how they were made, from the facts stored with them."""

from typing import Any

from gmt.hf.configuration import GMTPretrainedConfig
from gmt.utils.tables import markdown_row

KINDS = {
    "memory": "graph memory in every block, no feed-forward layers",
    "dense": "dense baseline: a GELU layer in the memory cell's place",
    "none": "attention-only control: no second sublayer",
}

GENERATED = "<!-- written by save_pretrained from the facts in config.json; without this line it is left alone -->"

TEMPLATE = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- graph-memory-transformer
- gmt
---

# {title}

{generated}

A decoder-only language model of the Graph Memory Transformer family: {kind}.

| | |
|---|---|
{rows}

## Use

```python
import gmt.hf  # pip install graph-memory-transformer; registers the model with the Auto classes
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({name!r})
```

{training}
"""

UNKNOWN = "No facts of a training run were stored with these weights."


def model_card(config: GMTPretrainedConfig, parameters: int, repo_id: str | None = None) -> str:
    cfg = config.to_gmt()
    shape = cfg.model
    rows: dict[str, Any] = {
        "parameters": f"{parameters:,}",
        "blocks × hidden × heads": f"{shape.blocks} × {shape.hidden} × {shape.heads}",
        "context": shape.context,
        "vocabulary": f"{shape.vocab:,}",
    }
    if shape.sublayer == "memory":
        rows["slots per block, navigation size"] = f"{cfg.memory.slots}, {cfg.memory.navigation}"
    if shape.sublayer == "dense":
        rows["inner width"] = shape.dense_width
    facts = dict(config.facts or {})
    title = facts.pop("name", repo_id or "A graph memory model")
    told = _table(facts) if facts else ""
    return TEMPLATE.format(
        title=title,
        generated=GENERATED,
        kind=KINDS[shape.sublayer],
        rows=_table(rows),
        name=repo_id or "path/to/this/folder",
        training=f"## How it was made\n\n| | |\n|---|---|\n{told}" if facts else UNKNOWN,
    )


def _table(rows: dict[str, Any]) -> str:
    return "\n".join(markdown_row([key, str(value)]) for key, value in rows.items())
