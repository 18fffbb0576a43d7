"""Traces made by hand: small enough to count on paper, or as large as a real one."""

import re
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from gmt import plot
from gmt.analysis.trace import Trace
from gmt.analysis.view import View


def hand_trace(
    source: list[list[int]], target: list[list[int]], /, slots: int = 4, tokens: list[str] | None = None, **changes: Any
) -> Trace:
    """Likeliest slots by block and token; a token has probability 0.7 for its slot and shares the rest evenly.

    What is moved follows from these and the states by the model's formula, with a gate of one. Token ids number the
    different tokens in their order. `changes` replaces any array, or `name`, the text's.
    """
    source_slot, target_slot = np.array(source, dtype=np.int16), np.array(target, dtype=np.int16)
    blocks, count = source_slot.shape
    tokens = tokens or [f" w{place}" for place in range(count)]
    known = list(dict.fromkeys(tokens))
    arrays: dict[str, Any] = {
        "ids": np.array([known.index(token) for token in tokens], dtype=np.int32),
        "window": np.zeros(count, dtype=np.int16),
        "surprise": np.array([np.nan, *range(1, count)], dtype=np.float32),
        "predicted": np.arange(count, dtype=np.int32) + 100,
        "predicted_logit": np.full(count, 10, dtype=np.float32),
        "logit_embedding": np.full(count, 1, dtype=np.float32),
        "logit_bias": np.full(count, 1, dtype=np.float32),
        "logit_attention": np.full((blocks, count), 2 / blocks, dtype=np.float32),
        "logit_update": np.full((blocks, count), 6 / blocks, dtype=np.float32),
        "final_scale": np.ones(count, dtype=np.float32),
        "attention_norm": np.full((blocks, count), 2, dtype=np.float32),
        "residual_norm": np.full((blocks, count), 3, dtype=np.float32),
        "source": _spread(source_slot, slots),
        "target": _spread(target_slot, slots),
        "source_slot": source_slot,
        "target_slot": target_slot,
        "source_entropy": np.full((blocks, count), 0.5, dtype=np.float32),
        "target_entropy": np.full((blocks, count), 0.25, dtype=np.float32),
        **_memory(blocks, slots),
    }
    facts = {"name": changes.pop("name", "text"), "text": "".join(tokens), "tokens": tokens, "dead_below": 0.01}
    facts["predicted_words"] = [f" p{place}" for place in range(count)]
    moved = _moved(arrays | changes)
    assert changes.keys() <= arrays.keys() | moved.keys()
    return Trace(facts, arrays | moved | changes)


def _memory(blocks: int, slots: int, hidden: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    others = 1 - np.eye(slots, dtype=np.float32)
    return {
        "centroids": rng.normal(size=(blocks, slots, hidden)).astype(np.float32),
        "states": rng.normal(size=(blocks, slots, hidden)).astype(np.float32),
        "transition": np.full((blocks, slots, slots), 1 / (slots - 1), dtype=np.float32) * others,
        "usage": np.full((blocks, slots), 1 / slots, dtype=np.float32),
        "age": np.zeros((blocks, slots), dtype=np.float32),
        "gate": np.linspace(0.1, 0.4, blocks, dtype=np.float32),
        "momentum": np.linspace(0.9, 0.8, blocks, dtype=np.float32),
    }


def _moved(arrays: dict[str, Any]) -> dict[str, Any]:
    """LN((w_tgt - w_src) C~), and the lengths before and after."""
    shift = (arrays["target"].astype(np.float32) - arrays["source"].astype(np.float32)) @ arrays["states"]
    centred = shift - shift.mean(-1, keepdims=True)
    added = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5)
    lengths = {"shift_norm": np.linalg.norm(shift, axis=-1), "update_norm": np.linalg.norm(added, axis=-1)}
    return {"displacement": added.astype(np.float16), **lengths}


def _spread(slot: np.ndarray, slots: int) -> np.ndarray:
    rest = 0.3 / (slots - 1)
    return np.where(np.arange(slots) == slot[..., None], 0.7, rest).astype(np.float16)


def counted(blocks: int = 2, count: int = 6) -> np.ndarray:
    """1, 2, 3, ... by block and token: lengths whose means are known."""
    return np.arange(1, blocks * count + 1, dtype=np.float32).reshape(blocks, count)


def dense_trace(blocks: int = 2, count: int = 6, name: str = "dense", tokens: list[str] | None = None) -> Trace:
    """Of a model without memory."""
    full = hand_trace([[0] * count] * blocks, [[1] * count] * blocks, tokens=tokens, name=name)
    shared = ("ids", "window", "surprise", "predicted", "predicted_logit", "attention_norm", "final_scale")
    kept = {k: v for k, v in full.arrays.items() if k in shared or k.startswith(("logit", "residual"))}
    return Trace(full.facts, kept | {"update_norm": counted(blocks, count)})


def random_trace(
    blocks: int = 16, count: int = 300, slots: int = 128, name: str = "large", seed: int = 0
) -> tuple[Trace, list[str]]:
    """As large as the paper's model, with word classes; few slots are busy and many idle."""
    rng = np.random.default_rng(seed)
    use = 1 / np.arange(1, slots + 1) ** 0.9
    source, target = (
        np.stack([rng.permutation(slots)[rng.choice(slots, count, p=use / use.sum())] for _ in range(blocks)])
        for _ in range(2)
    )
    words = ["the", " cat", " sat", " on", " a", " mat", ".", ",", " and", " remembered", " it", " was", " far", " 7"]
    tokens = [words[n] for n in rng.integers(len(words), size=count)]
    kinds = [
        "DET",
        "NOUN",
        "VERB",
        "ADP",
        "DET",
        "NOUN",
        "PUNCT",
        "PUNCT",
        "CCONJ",
        "VERB",
        "PRON",
        "AUX",
        "ADJ",
        "NUM",
    ]
    edges = rng.normal(size=(blocks, slots, slots)) * 1.5
    edges = np.exp(edges) * (1 - np.eye(slots))
    shapes = {"logit_update": 1.0, "logit_attention": 0.7}
    changes: dict[str, Any] = {key: rng.normal(size=(blocks, count)) * size for key, size in shapes.items()}
    changes |= {
        "predicted_logit": 2 + changes["logit_update"].sum(0) + changes["logit_attention"].sum(0),
        "transition": (edges / edges.sum(-1, keepdims=True)).astype(np.float32),
        "surprise": np.array([np.nan, *rng.gamma(2, 1.5, size=count - 1)]),
    }
    found = hand_trace(source.tolist(), target.tolist(), slots, tokens, name=name, **changes)
    return found, [dict(zip(words, kinds, strict=True))[token] for token in tokens]


# counted on paper: block 0 has the moves 1>3 (a, b, a), 0>0 (c), 2>1 (d) and 1>2 (e); in block 1 all go 0>1
SOURCE, TARGET = [[1, 1, 1, 0, 2, 1], [0] * 6], [[3, 3, 3, 0, 1, 2], [1] * 6]
TOKENS = ["a", " b", "a", " c", " d", " e"]
CLASSES = ["DET", "NOUN", "DET", "VERB", "NOUN", "PUNCT"]
ODD = ["\n", "$x$", "$", "<b>", " 日本", "天²"]  # a line end, formulas, markup, another script, part of a character


def small_trace(**changes: Any) -> Trace:
    return hand_trace(SOURCE, TARGET, tokens=TOKENS, **changes)


def planted_trace(tokens: list[str] | None = None) -> Trace:
    """Every token goes from slot 1 to slot 3, in both blocks."""
    return hand_trace([[1] * 6] * 2, [[3] * 6] * 2, tokens=tokens or TOKENS)


def odd_trace() -> Trace:
    return hand_trace(SOURCE, TARGET, tokens=ODD)


def one_token() -> Trace:
    """The least there can be: one token, one block, two slots."""
    return hand_trace([[0]], [[1]], slots=2, tokens=["$"])


def check_drawing(view: View | None, folder: Path) -> None:
    """It draws, saves as PNG and SVG without any warning, and its SVG can be read as XML."""
    assert view is not None and view.draw is not None
    assert re.fullmatch(r"[a-z0-9-]+", view.name)
    assert all(len(row) == len(view.header) for row in view.rows) and view.rows
    assert re.search(r"\d", view.caption), "a caption states numbers"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = plot.save(view.draw(), folder, view.name)
    ElementTree.parse(paths[1])
    assert all(path.stat().st_size > 1000 for path in paths)


def words_in(folder: Path, view: View) -> str:
    """The words of a saved figure; in the SVG they stay words."""
    tree = ElementTree.parse(folder / f"{view.name}.svg")
    return "\n".join(text for text in tree.getroot().itertext() if text.strip())


def table(view: View | None) -> list[dict[str, Any]]:
    assert view is not None
    return [dict(zip(view.header, row, strict=True)) for row in view.rows]
