"""The memory cell through the fused kernels: the same numbers as MemoryCell.forward, in few passes over memory.

What depends on memory alone (C~, ĉ, P, the folded query-key matrix) is made by the reference's own functions, for all
blocks at once, and its gradients go on through them; the tokens' way is two operators (operators.py).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gmt.kernels.operators  # noqa: F401  registers torch.ops.gmt.memory_cell
from gmt.memory import losses
from gmt.memory.cell import MemoryCell, Seen
from gmt.memory.frozen import fold, takes_frozen_path
from gmt.memory.precision import compute_type, product, unautocast, wide
from gmt.memory.routing import direction, transition_matrix


class BlockTables(NamedTuple):
    """What one block needs that depends on memory alone, as the kernels want it, and its terms of the objective."""

    lookup: Tensor  # [2F, H] ĉ over the folded query-key matrix
    transition: Tensor  # [F, F]
    states: Tensor  # [F, H] C~ with the mean of each row taken out
    scale: Tensor  # [H]
    shift: Tensor  # [H]
    gram: Tensor  # [F, F] mean products over H of the states
    means: Tensor  # [F] what was taken out
    rest: Tensor  # [F, F] what the compute type left out of gram
    slowness: Tensor  # [] 1 - m
    ortho: Tensor  # []
    edge: Tensor  # []
    contrast: Tensor  # []


MATRICES = 8  # of these go into the operator


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


class Matrices(NamedTuple):
    """The memory states as LN_disp sees them."""

    states: Tensor
    gram: Tensor
    means: Tensor
    rest: Tensor


def _centred(states: Tensor, dtype: torch.dtype) -> Matrices:
    """LN_disp would take the mean over H out of the displacement, and divide by its spread. Both are linear or
    quadratic in the states, and so are made here once, and not for every token."""
    means = states.mean(-1)
    centred = (states - means[..., None]).to(dtype)
    with unautocast(states):
        gram = wide(centred) @ wide(centred).mT / states.shape[-1]
    rough = gram.to(dtype)
    return Matrices(centred, rough, means, (gram - wide(rough)).detach().to(dtype))


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
    centred = _centred(states, dtype)
    parts = (
        torch.cat([direction(states), fold(stacked("query", "weight"), keys, dtype)], dim=1).to(dtype),
        transition.to(dtype),
        centred.states,
        gate * wide(stacked("norm_displacement", "weight")),
        gate * wide(stacked("norm_displacement", "bias")),
        centred.gram,
        centred.means,
        centred.rest,
        1 - wide(stacked("momentum")).sigmoid(),
        losses.ortho_loss(centroids),
        losses.edge_loss(transition, cfg.edge_floor),
        losses.contrast_loss(transition),
    )
    return [BlockTables(*block) for block in zip(*(part.unbind() for part in parts), strict=True)]


def fused_forward(
    cell: MemoryCell,
    norm: nn.LayerNorm,
    x: Tensor,
    update: Tensor | None,
    tau: Tensor | float,
    mask: Tensor | None = None,
    *,
    observe: bool = True,
    reseed: Tensor | None = None,
    tables: BlockTables | None = None,
) -> tuple[Tensor, Seen | None]:
    """MemoryCell.forward of h = x + update and z = norm(h), without the routes: who wants to see them takes the plain
    way. `update` is what attention adds; h itself is never written.
    """
    dtype, shape = compute_type(x), x.shape
    frozen = takes_frozen_path(observe)
    if frozen:
        matrices = _packed(cell, dtype)
    else:
        tables = tables or all_tables([cell], dtype)[0]
        matrices = tables[:MATRICES]
    if update is not None:
        x = x.to(torch.promote_types(x.dtype, update.dtype))
    warmth = tau if isinstance(tau, Tensor) else torch.full((), tau, device=x.device)
    out, _, _, _, sums, slot_sums = torch.ops.gmt.memory_cell(
        x.flatten(0, -2).contiguous(), None if update is None else update.flatten(0, -2).contiguous(),
        norm.weight, norm.bias, *matrices, warmth,
        None if mask is None else mask.flatten().contiguous(),
        cell.cfg.memory.distance_floor, norm.eps, cell.norm_displacement.eps, observe, torch.is_grad_enabled(),
    )  # fmt: skip
    out = out.view(shape)
    if tables is None or not observe:
        return out, None
    usage, count, _, error = sums.split([*[cell.cfg.memory.slots] * 3, 1])
    size = x.numel() if mask is None else (mask.sum() * shape[-1]).clamp_min(1)
    seen = Seen(
        slot_sum=slot_sums[0],
        slot_count=count.detach(),
        usage_sum=usage,
        reseed=None if reseed is None else out.detach().flatten(0, -2)[reseed],
        track=tables.slowness * (error[0] / size),
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
        lookup, centred = tables.lookup.T.to(dtype).contiguous(), _centred(tables.states, dtype)
        matrices = lookup, tables.transition.to(dtype), centred.states, tables.scale, tables.shift
        frozen.packed = (*matrices, centred.gram, centred.means, centred.rest)
    return frozen.packed
