"""The frozen path: what depends on memory alone, made once and used until memory changes.

Two watches keep it from going stale. Version counters, which every in-place write bumps, are compared at each use.
Contents are compared where a text begins (`Frozen.differs`): that also sees a write through `.data`, which no
counter sees.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gmt.memory.precision import EPS, product, rounded, wide


class FrozenTables(NamedTuple):
    """Matrices lie as `F.linear` wants them, [out, in], and are rounded to the compute type already."""

    lookup: Tensor  # [2F, H] ĉ, and below it the query-key matrix C~ W_K W_Q^T / sqrt(D)
    transition: Tensor  # [F, F] P, transposed
    states: Tensor  # [H, F] C~, transposed
    scale: Tensor  # [H] σ(g) times the weight of LN_disp
    shift: Tensor  # [H] σ(g) times its bias


class Frozen:
    """Tables in one compute type, with what they were made of."""

    def __init__(self, tables: FrozenTables, made_of: tuple[Tensor, ...], dtype: torch.dtype) -> None:
        self.tables, self.dtype = tables, dtype
        self.packed: tuple[Tensor, ...] | None = None  # the same as a kernel wants it, made by who has the kernel
        self.watched = _watch(made_of)
        self.copies = [t.detach().clone() for t in made_of]

    def holds(self, made_of: tuple[Tensor, ...], dtype: torch.dtype) -> bool:
        """Whether no tensor was replaced or written in place since. Costs no look at the numbers."""
        return dtype == self.dtype and _watch(made_of) == self.watched

    def differs(self, made_of: tuple[Tensor, ...]) -> Tensor:
        """[] whether any number differs, on the device."""
        return torch.stack([(a != b).any() for a, b in zip(made_of, self.copies, strict=True)]).any()


def _watch(tensors: tuple[Tensor, ...]) -> list[tuple[int, int]]:
    """Place and version of each: both the same mean the same numbers, unless `.data` was written."""
    # inference tensors keep no count
    return [(t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors]


def takes_frozen_path(observe: bool) -> bool:
    """Where neither writes nor gradients are wanted. A compiled graph makes its tables itself."""
    return not observe and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def fold(query: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """k W_Q / sqrt(D), [F, H]: z goes to context scores in one product, without a query in between."""
    return product(keys, query, dtype) / math.sqrt(keys.shape[-1])


def frozen_route(
    z: Tensor, tables: FrozenTables, tau: Tensor | float, floor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Source and target distributions of z [..., H]: both sets of scores come from one product.

    A generated token spends its time on the number of operations, not on their size: they are few, and in place.
    """
    scores = F.linear(rounded(z, dtype), tables.lookup)
    slots = scores.shape[-1] // 2
    length = torch.linalg.vector_norm(wide(z), dim=-1, keepdim=True).clamp_min_(EPS)
    distance = torch.rsub(scores.narrow(-1, 0, slots) / length, 1).clamp_min_(floor)
    source = torch.softmax(distance.mul_(tau).reciprocal_(), dim=-1)
    edge = F.linear(rounded(source, dtype), tables.transition)
    return source, torch.softmax(edge.add_(scores.narrow(-1, slots, slots)), dim=-1)


def frozen_displacement(source: Tensor, target: Tensor, tables: FrozenTables, eps: float, dtype: torch.dtype) -> Tensor:
    """σ(g) LN_disp(c_tgt - c_src), the gate taken into the norm's own weights."""
    move = F.linear(rounded(target - source, dtype), tables.states)
    return F.layer_norm(move, move.shape[-1:], tables.scale, tables.shift, eps)
