"""Numbers that tell what a text does with a memory, block by block: from a trace, and from nothing else."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from gmt.analysis.trace import Array, Trace
from gmt.memory.losses import contrast_loss, effective_slots, entropy

LEAST = 3  # tokens of which something is said to be so


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


def n_eff(shares: Array) -> float:
    """exp of the entropy: as many slots as would be used alike."""
    return float(effective_slots(torch.from_numpy(np.asarray(shares, dtype=np.float64))))


def _memory(trace: Trace, block: int) -> dict[str, float]:
    """Soft numbers are of mean source probability, as in the training objective; hard ones count each token in its
    likeliest slot, as the paper's probes do."""
    soft = trace.source[block].astype(np.float64).mean(0)
    counts = trace.counts(block)
    sources, targets = counts.sum(1) / counts.sum(), counts.sum(0) / counts.sum()
    transition = torch.from_numpy(trace.transition[block])
    return {
        "n_eff": n_eff(soft),
        "gini": gini(soft),
        "n_eff_hard": n_eff(sources),
        "gini_hard": gini(sources),
        "target_n_eff_hard": n_eff(targets),
        "target_gini_hard": gini(targets),
        "largest_source": float(sources.max()),
        "largest_target": float(targets.max()),
        "dead_slots": float((trace.usage[block] < trace.facts["dead_below"]).sum()),
        "coverage": float((sources > 0).mean()),
        "target_coverage": float((targets > 0).mean()),
        "centroid_cosine": mean_cosine(trace.centroids[block]),
        "edge_entropy": float(entropy(transition).mean()),
        "largest_edge": float(transition.max(-1).values.mean()),
        "edge_row_similarity": float(contrast_loss(transition)),
        "gate": float(trace.gate[block]),
        "momentum": float(trace.momentum[block]),
        "source_entropy": float(trace.source_entropy[block].mean()),
        "target_entropy": float(trace.target_entropy[block].mean()),
        "self_route": float(trace.self_route[block].mean()),
        "shift_norm": float(trace.shift_norm[block].mean()),
    }


def commonest(items: Iterable[Hashable]) -> list[tuple[Any, int]]:
    """What comes how often, the commonest first; of equals the first by name, so that no order of a text decides."""
    counts = Counter(items)
    return sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0])))


class RoleSwitch(NamedTuple):
    """A slot that more than half of the tokens that leave it give to one word class, and more than half of those that
    enter it to another."""

    slot: int
    source_class: str
    source_share: float  # of the tokens that leave
    target_class: str
    target_share: float
    leaving: int  # tokens whose likeliest source it is
    entering: int
    disjoint: bool  # no word class both leaves and enters


def role_switching(trace: Trace, classes: list[str], block: int, least: int = LEAST) -> tuple[list[RoleSwitch], int]:
    """The slots that switch, and of how many: those which at least `least` tokens leave and as many enter."""
    leaving: dict[int, Counter[str]] = {}
    entering: dict[int, Counter[str]] = {}
    for source, target, name in zip(trace.source_slot[block], trace.target_slot[block], classes, strict=True):
        leaving.setdefault(int(source), Counter())[name] += 1
        entering.setdefault(int(target), Counter())[name] += 1
    both = [s for s in sorted(leaving) if leaving[s].total() >= least <= entering.get(s, Counter()).total()]
    found = []
    for slot in both:
        out, into = leaving[slot], entering[slot]
        (first, most), (second, other) = commonest(out.elements())[0], commonest(into.elements())[0]
        shares = most / out.total(), other / into.total()
        if first != second and min(shares) > 0.5:
            disjoint = not out.keys() & into.keys()
            found.append(RoleSwitch(slot, first, shares[0], second, shares[1], out.total(), into.total(), disjoint))
    return found, len(both)


class Consistency(NamedTuple):
    """Means over token types that stand at least twice, each type once, however often it stands."""

    same_slot: Array  # [L] share of pairs of one token's places that have the same likeliest source
    overlap: Array  # [L] mean of 1 - total variation of their source distributions
    different: Array  # [L] share of pairs of different tokens with the same likeliest source: what chance would give
    types: int
    pairs: int


MOST_PAIRS = 20_000  # of overlaps a block; a long text has millions


def consistency(trace: Trace) -> Consistency | None:
    """How alike a token is routed wherever it stands; None where no token stands twice."""
    ids = trace.ids
    kinds, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts > 1)
    if not len(repeated):
        return None
    pairs = counts * (counts - 1) / 2
    same, different = [], []
    every = len(ids) * (len(ids) - 1) / 2
    for slots in trace.source_slot:
        table = np.zeros((len(kinds), trace.slots))
        np.add.at(table, (inverse, slots), 1)
        alike = (table * (table - 1) / 2).sum(-1)  # pairs of one type in one slot
        same.append((alike[repeated] / pairs[repeated]).mean())
        whole = table.sum(0)
        others = every - pairs.sum()
        different.append(((whole * (whole - 1) / 2).sum() - alike.sum()) / others if others else 0.0)
    left, right, weights = _pairs(inverse, repeated, counts)
    overlap = [
        1 - 0.5 * float(np.abs(block[left].astype(np.float32) - block[right].astype(np.float32)).sum(-1) @ weights)
        for block in trace.source
    ]
    return Consistency(np.array(same), np.array(overlap), np.array(different), len(repeated), int(pairs.sum()))


def _pairs(inverse: Array, repeated: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Pairs of places of one type, at most so many a type that all together are few, and weights that count each type
    once."""
    most = max(1, MOST_PAIRS // len(repeated))
    left, right, weights = [], [], []
    for kind in repeated:
        places = np.flatnonzero(inverse == kind)
        a, b = np.triu_indices(min(len(places), 1 + math.isqrt(2 * most)), 1)
        left.append(places[a])
        right.append(places[b])
        weights.append(np.full(len(a), 1 / len(a)))
    return np.concatenate(left), np.concatenate(right), np.concatenate(weights) / len(repeated)


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
