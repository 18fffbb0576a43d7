"""What the page is told: pure functions from what was read to dictionaries of JSON's own types.

JSON has no NaN: a number that is none is null.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gmt.analysis import diagnostics
from gmt.analysis.diagnostics import commonest
from gmt.analysis.layout import place_slots
from gmt.analysis.meaning import Meaning
from gmt.analysis.trace import Array, Trace
from gmt.errors import GMTError

TOKENS, PARTNERS, EDGES, EXAMPLES = 12, 8, 5, 5  # how many of each a card shows
TITLES = {
    "shift_norm": "length of the move between slots",
    "update_norm": "length of what the second sublayer adds",
    "attention_norm": "length of what attention adds",
    "residual_norm": "length of the residual stream",
    "source_entropy": "entropy of the source",
    "target_entropy": "entropy of the target",
    "logit_update": "what the second sublayer adds to the likeliest token's logit",
    "logit_attention": "what attention adds to the likeliest token's logit",
    "self_route": "stays in its slot",
}
OF_MEMORY = {"shift_norm", "source_entropy", "target_entropy", "self_route"}


@dataclass(frozen=True)
class Reading:
    """A text through a model with some edits: its trace, and what a trace does not keep. K likeliest next tokens."""

    trace: Trace
    classes: list[str] | None  # of the tokens; None without a tagger
    next_words: list[list[str]]  # [T, K]
    next_shares: Array  # [T, K]
    fired: list[int]  # tokens that each edit was meant for


def plain(values: Any, places: int = 6) -> Any:
    """Numbers as JSON has them."""
    rounded = np.asarray(np.round(np.asarray(values, dtype=np.float64), places))
    found = rounded.astype(object)
    found[~np.isfinite(rounded)] = None
    return found.tolist()


def quantities(memory: bool) -> list[dict[str, str]]:
    return [{"key": key, "title": title} for key, title in TITLES.items() if memory or key not in OF_MEMORY]


def read(reading: Reading) -> dict[str, Any]:
    trace = reading.trace
    return {
        "tokens": trace.tokens,
        "classes": reading.classes,
        "surprise": plain(trace.surprise),
        "source_slot": trace.source_slot.tolist() if trace.has_memory else [],
        "target_slot": trace.target_slot.tolist() if trace.has_memory else [],
        "quantities": {item["key"]: _quantity(trace, item["key"]) for item in quantities(trace.has_memory)},
        "next": _following(reading, len(trace.tokens) - 1),
        "predicted": trace.facts["predicted_words"],
        "loss": plain(diagnostics.surprise(trace)["loss"]),
        "windows": trace.facts["windows"],
        "fired": reading.fired,
    }


def _quantity(trace: Trace, key: str) -> list[list[float | None]]:
    return plain(getattr(trace, key), 5)


def _following(reading: Reading, place: int) -> list[dict[str, Any]]:
    """The likeliest tokens after a place."""
    shares = plain(reading.next_shares[place])
    return [{"word": word, "p": p} for word, p in zip(reading.next_words[place], shares, strict=True)]


def token(reading: Reading, place: int) -> dict[str, Any]:
    trace = reading.trace
    count = len(trace.tokens)
    if not 0 <= place < count:
        raise GMTError(f"there is no place {place}; this text has the places 0 to {count - 1}")
    return {
        "token": trace.tokens[place],
        "class": reading.classes[place] if reading.classes else None,
        "surprise": plain(trace.surprise[place]),
        "next": _following(reading, place),
        "embedding": plain(trace.logit_embedding[place]),
        "bias": plain(trace.logit_bias[place]),
        "logit": plain(trace.predicted_logit[place]),
        "predicted": trace.facts["predicted_words"][place],
        "blocks": [_step(trace, block, place) for block in range(trace.blocks)],
    }


def _step(trace: Trace, block: int, place: int) -> dict[str, Any]:
    """One block of a token's way."""
    numbers = ("update_norm", "attention_norm", "logit_update", "logit_attention")
    found = {"block": block} | {key: plain(getattr(trace, key)[block, place]) for key in numbers}
    if not trace.has_memory:
        return found | {"source": [], "target": [], "shift": None}
    return found | {
        "source": _likeliest(trace.top_source[block, place], trace.source[block, place]),
        "target": _likeliest(trace.top_target[block, place], trace.target[block, place]),
        "shift": plain(trace.shift_norm[block, place]),
    }


def _likeliest(slots: Array, shares: Array) -> list[dict[str, Any]]:
    return [{"slot": slot, "p": p} for slot, p in zip(slots.tolist(), plain(shares[slots]), strict=True)]


def block(reading: Reading, number: int) -> dict[str, Any]:
    trace = reading.trace
    check_block(trace, number)
    places, share = place_slots(trace.states[number])
    counts = trace.counts(number)
    return {
        "places": plain(places),
        "share": plain(share),
        "leaving": counts.sum(1).tolist(),
        "entering": counts.sum(0).tolist(),
        "usage": plain(trace.usage[number]),
        "age": plain(trace.age[number]),
        "moves": _moves(reading, number),
        "transition": plain(trace.transition[number], 5),
        "gate": plain(trace.gate[number]),
        "momentum": plain(trace.momentum[number]),
    }


def check_block(trace: Trace, number: int, slot: int = 0) -> None:
    if not trace.has_memory:
        raise GMTError("this model has no memory, and so neither slots nor edges to show")
    if not 0 <= number < trace.blocks:
        raise GMTError(f"there is no block {number}; there are 0 to {trace.blocks - 1}")
    if not 0 <= slot < trace.slots:
        raise GMTError(f"there is no slot {slot}; there are 0 to {trace.slots - 1}")


def _moves(reading: Reading, number: int) -> list[dict[str, Any]]:
    """Tokens by likeliest source, likeliest target and word class; those that stay in their slot too."""
    trace = reading.trace
    classes = reading.classes or [None] * len(trace.tokens)
    groups: dict[tuple[int, int, str | None], list[str]] = {}
    ways = zip(trace.source_slot[number].tolist(), trace.target_slot[number].tolist(), classes, strict=True)
    for way, word in zip(ways, trace.tokens, strict=True):
        groups.setdefault(way, []).append(word)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0][:2], group[0][2] or ""))
    return [
        {"source": source, "target": target, "class": kind, "count": len(words), "examples": _some(words)}
        for (source, target, kind), words in ordered
    ]


def _some(words: list[str]) -> list[str]:
    return [word for word, _ in commonest(words)[:EXAMPLES]]


def slot(reading: Reading, number: int, slot: int, meaning: Meaning, corpus: list[dict[str, str]]) -> dict[str, Any]:
    """A slot's card. What a token's arrival there means, and examples from the corpus, are found elsewhere."""
    trace = reading.trace
    check_block(trace, number, slot)
    sources, targets = trace.source_slot[number], trace.target_slot[number]
    out, into = np.flatnonzero(sources == slot), np.flatnonzero(targets == slot)
    usage = float(trace.usage[number, slot])
    row = trace.transition[number, slot]
    return {
        "block": number,
        "slot": slot,
        "usage": plain(usage),
        "age": plain(trace.age[number, slot]),
        "dead": usage < trace.facts["dead_below"],
        "leaving": _counted("token", (trace.tokens[place] for place in out), TOKENS),
        "entering": _counted("token", (trace.tokens[place] for place in into), TOKENS),
        "goes_to": _counted("slot", targets[out].tolist(), PARTNERS),
        "comes_from": _counted("slot", sources[into].tolist(), PARTNERS),
        "edges": _likeliest(np.argsort(-row, kind="stable")[:EDGES], row),
        "promotes": [{"word": word, "change": plain(change)} for word, change in meaning.promoted],
        "suppresses": [{"word": word, "change": plain(change)} for word, change in meaning.suppressed],
        "classes_leaving": _classes(reading, out),
        "classes_entering": _classes(reading, into),
        "switches": _switches(reading, number, slot),
        "corpus": corpus,
    }


def _counted(name: str, items: Iterable[Any], most: int) -> list[dict[str, Any]]:
    return [{name: item, "count": count} for item, count in commonest(items)[:most]]


def _classes(reading: Reading, places: Array) -> dict[str, int]:
    classes = reading.classes
    return {} if classes is None else dict(Counter(classes[place] for place in places).most_common())


def _switches(reading: Reading, number: int, slot: int) -> bool:
    if reading.classes is None:
        return False
    found, _ = diagnostics.role_switching(reading.trace, reading.classes, number)
    return any(switch.slot == slot for switch in found)
