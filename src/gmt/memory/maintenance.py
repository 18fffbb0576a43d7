"""Usage, age, and the two safeguards: dead slots are reset, mature near-duplicates merged."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gmt.memory.precision import EPS
from gmt.utils.seeding import seed_for


def keyed_generator(*key: int) -> torch.Generator:
    """A CPU generator that depends on its key alone: every random choice comes from (seed, step, block)."""
    return torch.Generator().manual_seed(seed_for(*key))


def track_usage(
    usage: Tensor, age: Tensor, batch_usage: Tensor, tokens: Tensor, decay: float, keep: Tensor | None = None
) -> None:
    """usage <- ρ usage + (1-ρ) mean w_src, and age + 1, in place. A pass without tokens says nothing of usage."""
    smoothed = decay * usage + (1 - decay) * batch_usage
    written = tokens > 0 if keep is None else keep & (tokens > 0)
    usage.copy_(torch.where(written, smoothed, usage))
    age.add_(1 if keep is None else keep.to(age.dtype))


def reseed_positions(tokens: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` token positions to sample block outputs from: distinct while there are enough tokens."""
    rounds = -(-count // tokens)
    return torch.cat([torch.randperm(tokens, generator=generator) for _ in range(rounds)])[:count]


class Maintenance(NamedTuple):
    """What one event did to one block."""

    reset: Tensor  # [F] bool
    merged: Tensor  # [F] bool

    @property
    def replaced(self) -> Tensor:
        return self.reset | self.merged


@torch.no_grad()
def maintain(
    centroids: Tensor,
    usage: Tensor,
    age: Tensor,
    candidates: Tensor,
    *,
    dead_below: float,
    merge_cosine: float,
    merge_age: int,
    generator: torch.Generator,
) -> Maintenance:
    """Reset, then merge, in place. `candidates` [>= F, H] are sampled block outputs, used up in their order.

    The decisions are sequential and tiny, so they are made on the host: one copy there and one back.
    """
    state = _Slots(centroids.cpu(), usage.cpu(), age.cpu())
    supply = iter(candidates.cpu().to(centroids.dtype))
    reset = _reset_dead(state, supply, dead_below, generator)
    merged = _merge_similar(state, supply, merge_cosine, merge_age)
    for live, new in zip((centroids, usage, age), state, strict=True):
        live.copy_(new)
    return Maintenance(reset, merged)


class _Slots(NamedTuple):
    centroids: Tensor
    usage: Tensor
    age: Tensor

    def replace(self, slot: int, vector: Tensor) -> None:
        self.centroids[slot] = F.normalize(vector, dim=-1, eps=EPS)
        self.usage[slot] = 1 / len(self.usage)
        self.age[slot] = 0


def _reset_dead(state: _Slots, supply: Iterator[Tensor], dead_below: float, generator: torch.Generator) -> Tensor:
    dead = state.usage < dead_below
    slots = dead.nonzero().flatten().tolist()
    if len(slots) > len(dead) / 2:
        # one batch has too little variety to repopulate most of the memory
        random = torch.randn(len(slots), state.centroids.shape[1], generator=generator, dtype=torch.float64)
        supply = iter(random.to(state.centroids.dtype))
    for slot in slots:
        state.replace(slot, next(supply))
    return dead


def _merge_similar(state: _Slots, supply: Iterator[Tensor], merge_cosine: float, merge_age: int) -> Tensor:
    """Pairs i < j in index order, each judged by the state at its turn.

    A slot that was replaced is young, so it is neither replaced again nor a reason to replace another; hence
    resets and merges together need fewer candidates than there are slots.
    """
    merged = torch.zeros(len(state.usage), dtype=torch.bool)
    unit = F.normalize(state.centroids, dim=-1, eps=EPS)
    pairs = torch.triu(unit @ unit.T > merge_cosine, diagonal=1).nonzero().tolist()
    for i, j in pairs:
        mature = state.age[i] >= merge_age and state.age[j] >= merge_age
        if not mature or F.cosine_similarity(state.centroids[i], state.centroids[j], dim=0, eps=EPS) <= merge_cosine:
            continue
        slot = j if state.usage[i] >= state.usage[j] else i
        state.replace(slot, next(supply))
        merged[slot] = True
    return merged


def forget_moments(optimizer: torch.optim.Optimizer, parameter: Tensor, replaced: Tensor) -> None:
    """Zero the optimizer's moments of replaced centroids: they belong to the vector that is gone."""
    for moment in optimizer.state.get(parameter, {}).values():
        if isinstance(moment, Tensor) and moment.shape == parameter.shape:
            moment[replaced.to(moment.device)] = 0
