"""Numbers that tell what a text does with a memory, block by block: from a trace, and from nothing else."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch

from gmt.analysis.trace import Array, Trace
from gmt.memory.losses import contrast_loss, effective_slots, entropy


def gini(shares: Array) -> float:
    """0 where all slots are used alike, 1 - 1/F where one takes everything."""
    ordered = np.sort(np.asarray(shares, dtype=np.float64))
    count, total = len(ordered), ordered.sum()
    if total <= 0:
        return 0.0
    ranks = np.arange(1, count + 1)
    return float((2 * ranks - count - 1) @ ordered / (count * total))


def mean_cosine(rows: Array) -> float:
    """Of all pairs of different rows."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-8)
    cosines = unit @ unit.T
    count = len(rows)
    return float((cosines.sum() - np.trace(cosines)) / (count * (count - 1)))


def block_diagnostics(trace: Trace) -> list[dict[str, float]]:
    """One row per block. Without memory only what attention and the second sublayer add."""
    return [_norms(trace, block) | (_memory(trace, block) if trace.has_memory else {}) for block in range(trace.blocks)]


def _norms(trace: Trace, block: int) -> dict[str, float]:
    update, attention = float(trace.update_norm[block].mean()), float(trace.attention_norm[block].mean())
    return {
        "update_norm": update,
        "attention_norm": attention,
        "update_to_attention": update / max(attention, 1e-12),
        "residual_norm": float(trace.residual_norm[block].mean()),
    }


def _memory(trace: Trace, block: int) -> dict[str, float]:
    usage = torch.from_numpy(trace.source[block].astype(np.float32)).mean(0)
    transition = torch.from_numpy(trace.transition[block])
    slots = trace.slots
    return {
        "n_eff": float(effective_slots(usage)),
        "gini": gini(usage.numpy()),
        "dead_slots": float((trace.usage[block] < trace.facts["dead_below"]).sum()),
        "coverage": len(set(trace.source_slot[block].tolist())) / slots,
        "target_coverage": len(set(trace.target_slot[block].tolist())) / slots,
        "centroid_cosine": mean_cosine(trace.centroids[block]),
        "edge_entropy": float(entropy(transition).mean()),
        "largest_edge": float(transition.max(-1).values.mean()),
        "edge_row_similarity": float(contrast_loss(transition)),
        "gate": float(trace.gate[block]),
        "momentum": float(trace.momentum[block]),
        "source_entropy": float(trace.source_entropy[block].mean()),
        "target_entropy": float(trace.target_entropy[block].mean()),
        "self_route": float(trace.self_route[block].mean()),
    }


class RoleSwitch(NamedTuple):
    """A slot that mostly one word class leaves and mostly another one enters."""

    slot: int
    source_class: str
    target_class: str
    leaving: int  # tokens whose likeliest source it is
    entering: int


def role_switching(trace: Trace, classes: list[str], block: int, least: int = 3) -> tuple[list[RoleSwitch], int]:
    """The slots that switch, and of how many: those which at least `least` tokens leave and as many enter."""
    leaving: dict[int, Counter[str]] = {}
    entering: dict[int, Counter[str]] = {}
    for source, target, word in zip(trace.source_slot[block], trace.target_slot[block], classes, strict=True):
        leaving.setdefault(int(source), Counter())[word] += 1
        entering.setdefault(int(target), Counter())[word] += 1
    both = [s for s in sorted(leaving) if leaving[s].total() >= least <= entering.get(s, Counter()).total()]
    found = [
        RoleSwitch(s, _first(leaving[s]), _first(entering[s]), leaving[s].total(), entering[s].total()) for s in both
    ]
    return [switch for switch in found if switch.source_class != switch.target_class], len(both)


def _first(counts: Counter[str]) -> str:
    """The commonest; of equals the first by name, so that it does not hang on the order of the text."""
    return min(counts, key=lambda name: (-counts[name], name))


class Consistency(NamedTuple):
    same_slot: Array  # [L] share of pairs of one token's occurrences that have the same likeliest source
    overlap: Array  # [L] mean of 1 - total variation of their source distributions
    pairs: int


def consistency(trace: Trace) -> Consistency | None:
    """How alike a token is routed wherever it stands; None where no token stands twice."""
    places: dict[int, list[int]] = {}
    for place, token in enumerate(trace.ids.tolist()):
        places.setdefault(token, []).append(place)
    pairs = [(a, b) for found in places.values() for n, a in enumerate(found) for b in found[n + 1 :]]
    if not pairs:
        return None
    left, right = np.array(pairs).T
    same = (trace.source_slot[:, left] == trace.source_slot[:, right]).mean(-1)
    overlap = np.array([
        1 - 0.5 * np.abs(block[left].astype(np.float32) - block[right].astype(np.float32)).sum(-1).mean()
        for block in trace.source
    ])  # fmt: skip
    return Consistency(same, overlap, len(pairs))


def source_overlap(first: Trace, second: Trace) -> Array:
    """[L] Jaccard overlap of the slots that are some token's likeliest source in each text."""
    found = []
    for a, b in zip(first.source_slot, second.source_slot, strict=True):
        mine, other = set(a.tolist()), set(b.tolist())
        found.append(len(mine & other) / len(mine | other))
    return np.array(found)


def surprise(trace: Trace) -> dict[str, Any]:
    """Mean loss over the tokens that something comes before."""
    known = trace.surprise[~np.isnan(trace.surprise)]
    mean = float(known.mean()) if len(known) else float("nan")
    return {"tokens": len(trace.ids), "scored": len(known), "loss": mean, "perplexity": float(np.exp(mean))}
