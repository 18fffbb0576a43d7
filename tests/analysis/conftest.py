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
    source: list[list[int]], target: list[list[int]], slots: int = 4, tokens: list[str] | None = None, **changes: Any
) -> Trace:
    """Likeliest slots by block and token; a token has probability 0.7 for its slot and shares the rest evenly.

    Token ids number the different tokens in their order. `changes` replaces any array, or `name`, the text's.
    """
    source_slot, target_slot = np.array(source, dtype=np.int16), np.array(target, dtype=np.int16)
    blocks, count = source_slot.shape
    tokens = tokens or [f" w{place}" for place in range(count)]
    known = list(dict.fromkeys(tokens))
    rng = np.random.default_rng(0)
    hidden = 6
    transition = np.full((blocks, slots, slots), 1 / (slots - 1), dtype=np.float32) * (
        1 - np.eye(slots, dtype=np.float32)
    )
    update = np.arange(1, blocks * count + 1, dtype=np.float32).reshape(blocks, count)
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
        "attention_norm": np.full((blocks, count), 2, dtype=np.float32),
        "update_norm": update,
        "residual_norm": update + 1,
        "source": _spread(source_slot, slots),
        "target": _spread(target_slot, slots),
        "displacement": rng.normal(size=(blocks, count, hidden)).astype(np.float16),
        "source_slot": source_slot,
        "target_slot": target_slot,
        "source_entropy": np.full((blocks, count), 0.5, dtype=np.float32),
        "target_entropy": np.full((blocks, count), 0.25, dtype=np.float32),
        "centroids": rng.normal(size=(blocks, slots, hidden)).astype(np.float32),
        "states": rng.normal(size=(blocks, slots, hidden)).astype(np.float32),
        "transition": transition,
        "usage": np.full((blocks, slots), 1 / slots, dtype=np.float32),
        "age": np.zeros((blocks, slots), dtype=np.float32),
        "gate": np.linspace(0.1, 0.4, blocks, dtype=np.float32),
        "momentum": np.linspace(0.9, 0.8, blocks, dtype=np.float32),
    }  # fmt: skip
    facts = {"name": changes.pop("name", "text"), "text": "".join(tokens), "tokens": tokens, "dead_below": 0.01}
    assert changes.keys() <= arrays.keys()
    return Trace(facts, arrays | changes)


def _spread(slot: np.ndarray, slots: int) -> np.ndarray:
    rest = 0.3 / (slots - 1)
    return np.where(np.arange(slots) == slot[..., None], 0.7, rest).astype(np.float16)


def dense_trace(blocks: int = 2, count: int = 6, name: str = "dense") -> Trace:
    """Of a model without memory."""
    full = hand_trace([[0] * count] * blocks, [[1] * count] * blocks, name=name)
    shared = ("ids", "window", "surprise", "predicted", "predicted_logit", "attention_norm", "update_norm")
    kept = {k: v for k, v in full.arrays.items() if k in shared or k.startswith(("logit", "residual"))}
    return Trace(full.facts, kept)


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
        "transition": (edges / edges.sum(-1, keepdims=True)).astype(np.float32),
        "update_norm": rng.gamma(3, 1, size=(blocks, count)),
        "surprise": np.array([np.nan, *rng.gamma(2, 1.5, size=count - 1)]),
    }
    found = hand_trace(source.tolist(), target.tolist(), slots, tokens, name=name, **changes)
    return found, [dict(zip(words, kinds, strict=True))[token] for token in tokens]


# counted on paper: block 0 has the moves 1>3 (a, b, a), 0>0 (c), 2>1 (d) and 1>2 (e); in block 1 all go 0>1
SOURCE, TARGET = [[1, 1, 1, 0, 2, 1], [0] * 6], [[3, 3, 3, 0, 1, 2], [1] * 6]
TOKENS = ["a", " b", "a", " c", " d", " e"]
CLASSES = ["DET", "NOUN", "DET", "VERB", "NOUN", "PUNCT"]
ODD = ["\n", "$x$", "$", "<b>", " 日本", ""]  # a line end, formulas, markup, another script, half a character


def small_trace(**changes: Any) -> Trace:
    trace = hand_trace(SOURCE, TARGET, tokens=TOKENS, name=changes.pop("name", "text"))
    return Trace(trace.facts, trace.arrays | changes)


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
