"""The frozen path: what depends on memory alone, made once and used until memory changes.

Two watches keep it from going stale. The tensors themselves and their version counters, which every in-place write
bumps, are compared at each use. Contents are compared where a text begins (`Frozen.differs`): that also sees a write
through `.data`, which no counter sees.
"""

import math
import operator
from typing import NamedTuple

import torch
from torch import Tensor

from gmt.memory.precision import EPS, product, rounded, wide


class FrozenTables(NamedTuple):
    """Matrices that tokens are multiplied with, rounded to the compute type already."""

    lookup: Tensor  # [H, 2F] ĉ, and beside it the query-key matrix C~ W_K W_Q^T / sqrt(D); transposed
    transition: Tensor  # [F, F] P
    states: Tensor  # [F, H] C~
    scale: Tensor  # [H] σ(g) times the weight of LN_disp
    shift: Tensor  # [H] σ(g) times its bias


class Frozen:
    """Tables in one compute type, with what they were made of."""

    def __init__(self, tables: FrozenTables, made_of: tuple[Tensor, ...], dtype: torch.dtype) -> None:
        self.tables, self.dtype = tables, dtype
        self.packed: tuple[Tensor, ...] | None = None  # the same as a kernel wants it, made by who has the kernel
        self.made_of = made_of
        self.versions = _versions(made_of)
        self.copies = [t.detach().clone() for t in made_of]

    def holds(self, made_of: tuple[Tensor, ...], dtype: torch.dtype) -> bool:
        """Whether no tensor was replaced or written in place since. Costs no look at the numbers."""
        same = all(map(operator.is_, made_of, self.made_of))
        return same and dtype == self.dtype and _versions(made_of) == self.versions

    def differs(self, made_of: tuple[Tensor, ...]) -> Tensor:
        """[] whether any number differs, on the device."""
        if any(
            a.shape != b.shape or a.dtype != b.dtype or a.device != b.device
            for a, b in zip(made_of, self.copies, strict=True)
        ):
            return torch.ones((), dtype=torch.bool, device=made_of[0].device)
        return torch.stack([(a != b).any() for a, b in zip(made_of, self.copies, strict=True)]).any()


def _versions(tensors: tuple[Tensor, ...]) -> list[int]:
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # inference tensors keep no count
        return []


def takes_frozen_path(observe: bool) -> bool:
    """Where neither writes nor gradients are wanted. A compiled graph makes its tables itself."""
    return not observe and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def fold(query: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """k W_Q / sqrt(D), [F, H]: z goes to context scores in one product, without a query in between."""
    return product(keys, query, dtype) / math.sqrt(keys.shape[-1])


def frozen_route(
    z: Tensor, tables: FrozenTables, tau: Tensor | float, floor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Source and target distributions of z [N, H], [N, F] each: both sets of scores come from one product.

    A generated token spends its time on the number of operations, not on their size: they are few, and in place.
    """
    scores = torch.mm(rounded(z, dtype), tables.lookup)
    along, context = scores.unsafe_chunk(2, dim=-1)
    length = torch.linalg.vector_norm(wide(z), dim=-1, keepdim=True)
    if len(z) == 1 and z.device.type == "cpu":
        # one token has one length, a number of the host: τ - (τ / |z|) z·ĉ then needs no broadcasting
        warmth = float(tau)
        scaled = along.mul_(-warmth / max(float(length), EPS)).add_(warmth).clamp_min_(warmth * floor)
    else:
        scaled = torch.rsub(along / length.clamp_min_(EPS), 1).clamp_min_(floor).mul_(tau)
    source = torch.softmax(scaled.reciprocal_(), dim=-1)
    return source, torch.softmax(torch.addmm(context, rounded(source, dtype), tables.transition), dim=-1)


def frozen_displacement(source: Tensor, target: Tensor, tables: FrozenTables, eps: float, dtype: torch.dtype) -> Tensor:
    """σ(g) LN_disp(c_tgt - c_src), the gate taken into the norm's own weights."""
    move = torch.mm(rounded(target - source, dtype), tables.states)
    return torch.layer_norm(move, move.shape[-1:], tables.scale, tables.shift, eps)
