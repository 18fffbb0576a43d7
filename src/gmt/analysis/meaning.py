"""What a move means: the words that it makes likelier, and those that it makes less likely.

What a block adds for a token that goes all the way from slot i to slot j is σ(g) LN_disp(C~_j - C~_i). Seen through the
final norm and the output embedding, at the scale that the final norm had on a text, that is a change of every logit,
of which only the difference to the mean over the vocabulary matters.
What blocks in between make of it is left out: this is the direct effect, as logit_update of a trace is.
"""

from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from gmt.analysis.trace import Array, Trace, word
from gmt.memory.precision import wide, wide_layer_norm
from gmt.model.language_model import GraphMemoryLM


class Meaning(NamedTuple):
    promoted: list[tuple[str, float]]  # words and the change of their logits, largest first
    suppressed: list[tuple[str, float]]  # most negative first


@torch.no_grad()
def move(lm: GraphMemoryLM, block: int, source: int, target: int) -> Tensor:
    """[H] what the block adds for a token that goes from one slot to another, wholly."""
    states = _states(lm, block)
    return _displacement(lm, block, states[target] - states[source])


@torch.no_grad()
def arrival(lm: GraphMemoryLM, block: int, slot: int) -> Tensor:
    """[H] what the block adds for a token that comes to a slot from the middle of the memory."""
    states = _states(lm, block)
    return _displacement(lm, block, states[slot] - states.mean(0))


def _states(lm: GraphMemoryLM, block: int) -> Tensor:
    cell = lm.cells[block]
    return wide_layer_norm(cell.norm_centroids, cell.centroids)


def _displacement(lm: GraphMemoryLM, block: int, difference: Tensor) -> Tensor:
    cell = lm.cells[block]
    return wide(cell.gate).sigmoid() * wide_layer_norm(cell.norm_displacement, difference)


@torch.no_grad()
def logit_change(lm: GraphMemoryLM, vectors: Tensor, scale: float) -> Tensor:
    """[N, H] to [N, V]: what adding a vector to the final residual stream does to every logit, the norm's own factor
    `scale` held as it is."""
    seen = vectors.float() * scale
    seen = (seen - seen.mean(-1, keepdim=True)) * lm.norm_final.weight.float()
    return seen @ lm.token_embedding.weight.float().T


def relative(changes: Tensor) -> Tensor:
    """Without the change that all logits share, which no probability notices."""
    return changes - changes.mean(-1, keepdim=True)


def meanings(
    lm: GraphMemoryLM, vectors: Tensor, scale: float, words: Tokenizer, top: int = 8
) -> list[Meaning]:  # fmt: skip
    """The words whose logits rise and fall most against all others."""
    changes = relative(logit_change(lm, vectors, scale))
    top = min(top, changes.shape[-1])
    found = []
    for change in changes:
        best, worst = change.topk(top), (-change).topk(top)
        found.append(Meaning(_named(words, best.indices, best.values), _named(words, worst.indices, -worst.values)))
    return found


def _named(words: Tokenizer, ids: Tensor, values: Tensor) -> list[tuple[str, float]]:
    return [(word(words, index), float(value)) for index, value in zip(ids.tolist(), values, strict=True)]


def typical_scale(traces: list[Trace]) -> float:
    """The final norm's factor, on average over the texts."""
    return float(np.concatenate([trace.final_scale for trace in traces]).mean())


def busiest_slots(trace: Trace, block: int, count: int) -> Array:
    """By tokens that leave or enter, those that take part in none left out."""
    used = trace.counts(block).sum(0) + trace.counts(block).sum(1)
    order = np.argsort(-used, kind="stable")[:count]
    return order[used[order] > 0]


def busiest_moves(trace: Trace, block: int, count: int) -> list[tuple[int, int, int]]:
    """(source, target, tokens) of the commonest moves from one slot to another."""
    moves = trace.counts(block).copy()
    np.fill_diagonal(moves, 0)
    order = np.argsort(-moves, axis=None, kind="stable")[:count]
    pairs = [divmod(int(place), trace.slots) for place in order]
    return [(i, j, int(moves[i, j])) for i, j in pairs if moves[i, j]]
