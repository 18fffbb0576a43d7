"""The memory cell through the fused kernels: the same numbers as MemoryCell.forward, in few passes over memory.

What depends on memory alone (C~, ĉ, P, the folded query-key matrix) is made by the reference's own functions, for all
blocks at once, and its gradients go on through them; the tokens' way is two operators (operators.py).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import gmt.kernels.operators  # noqa: F401  registers torch.ops.gmt.cell_forward
from gmt.memory import losses
from gmt.memory.cell import MemoryCell, Seen
from gmt.memory.frozen import fold, takes_frozen_path
from gmt.memory.precision import compute_type, product, unautocast, wide
from gmt.memory.routing import direction, transition_matrix


class BlockTables(NamedTuple):
    """What one block needs that depends on memory alone, as the kernels want it, and its terms of the objective."""

    lookup: Tensor  # [2F, H]
    transition: Tensor  # [F, F]
    states: Tensor  # [F, H]
    scale: Tensor  # [H]
    shift: Tensor  # [H]
    gram: Tensor  # [2, F, F] in the compute type, and what that leaves out
    means: Tensor  # [F]
    slowness: Tensor  # [] 1 - m
    ortho: Tensor  # []
    edge: Tensor  # []
    contrast: Tensor  # []


class _Watched(torch.autograd.Function):
    """torch.stack that also remembers what it copied: memory written before the backward is then an error, as it is
    where memory itself is saved."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.stack(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        assert ctx.saved_tensors  # looking at them compares their versions
        return grads[0].unbind()


def _watched(*tensors: Tensor) -> Tensor:
    # a compiled graph would drop what it does not compute with
    return torch.stack(tensors) if torch.compiler.is_compiling() else _Watched.apply(*tensors)  # pyright: ignore


@torch.no_grad()
def _second_moments(states: Tensor) -> tuple[Tensor, Tensor]:
    """LN_disp's statistics: mean products over H of the centred states, [..., 2, F, F], and their means [..., F]."""
    wider = states.float()
    means = wider.mean(-1)
    centred = wider - means[..., None]
    with unautocast(centred):
        gram = centred @ centred.mT / states.shape[-1]
    rough = gram.to(states.dtype)
    return torch.stack([rough, (gram - rough.float()).to(states.dtype)], dim=-3), means


def all_tables(cells: Sequence[MemoryCell], dtype: torch.dtype) -> list[BlockTables]:
    """The tables of every block, in operations on all of them: a block's own are too small to fill a GPU."""
    cfg = cells[0].cfg

    def stacked(*names: str) -> Tensor:
        found = []
        for cell in cells:
            value: Any = cell
            for name in names:
                value = getattr(value, name)
            found.append(value)
        return torch.stack(found)

    centroids = wide(_watched(*(cell.centroids for cell in cells)))
    with unautocast(centroids):
        plain = F.layer_norm(centroids, centroids.shape[-1:], eps=cells[0].norm_centroids.eps)
        weight, bias = wide(stacked("norm_centroids", "weight")), wide(stacked("norm_centroids", "bias"))
        states = plain * weight[:, None] + bias[:, None]
    keys = product(states, stacked("key", "weight").mT, dtype)
    transition = transition_matrix(stacked("edges"))
    gate = wide(stacked("gate")).sigmoid()[:, None]
    gram, means = _second_moments(states.to(dtype))
    parts = (
        torch.cat([direction(states), fold(stacked("query", "weight"), keys, dtype)], dim=1).to(dtype),
        transition.to(dtype),
        states.to(dtype),
        gate * wide(stacked("norm_displacement", "weight")),
        gate * wide(stacked("norm_displacement", "bias")),
        gram,
        means,
        1 - wide(stacked("momentum")).sigmoid(),
        losses.ortho_loss(centroids),
        losses.edge_loss(transition, cfg.edge_floor),
        losses.contrast_loss(transition),
    )
    return [BlockTables(*block) for block in zip(*(part.unbind() for part in parts), strict=True)]


def fused_forward(
    cell: MemoryCell,
    h: Tensor,
    z: Tensor,
    tau: Tensor | float,
    mask: Tensor | None = None,
    *,
    observe: bool = True,
    reseed: Tensor | None = None,
    tables: BlockTables | None = None,
) -> tuple[Tensor, Seen | None]:
    """MemoryCell.forward without the routes: those are never whole in memory here."""
    dtype, shape = compute_type(z), h.shape
    if takes_frozen_path(observe):
        matrices = _packed(cell, dtype)
    else:
        tables = tables or all_tables([cell], dtype)[0]
        matrices = tables[:7]
    warmth = tau if isinstance(tau, Tensor) else torch.full((), tau, device=h.device)
    out, *_, usage, count, error, slot_sum, _ = torch.ops.gmt.cell_forward(
        *(x.flatten(0, -2).contiguous() for x in (h, z.to(dtype))), *matrices, warmth,
        None if mask is None else mask.flatten().contiguous(),
        cell.cfg.memory.distance_floor, cell.norm_displacement.eps, observe, torch.is_grad_enabled(),
    )  # fmt: skip
    out = out.view(shape)
    if tables is None or not observe:
        return out, None
    size = z.numel() if mask is None else (mask.sum() * shape[-1]).clamp_min(1)
    seen = Seen(
        slot_sum=slot_sum,
        slot_count=count,
        usage_sum=usage,
        reseed=None if reseed is None else out.detach().flatten(0, -2)[reseed],
        track=tables.slowness * (error / size),
        ortho=tables.ortho,
        edge=tables.edge,
        contrast=tables.contrast,
    )
    return out, seen


def _packed(cell: MemoryCell, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The frozen tables as the kernel wants them, kept with them."""
    tables = cell.frozen_tables(dtype)
    frozen = cell.frozen
    assert frozen is not None
    if frozen.packed is None:
        products = tables.lookup.T.to(dtype), tables.transition.to(dtype), tables.states.to(dtype)
        frozen.packed = (*products, tables.scale, tables.shift, *_second_moments(products[2]))
    return frozen.packed
