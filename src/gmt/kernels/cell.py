"""The memory cell through the fused kernels: the same numbers as MemoryCell.forward, in few passes over memory.

What depends on no token (C~, ĉ, P, the folded query-key matrix, LN2's weights in them) is made by the reference's own
functions, for all blocks at once, and its gradients go on through them; the tokens' way is two operators
(operators.py). A model calls all_tables, fused_block for each block, and gather_seen.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gmt.kernels.operators  # noqa: F401  registers torch.ops.gmt.fused_cell
from gmt.kernels.together import apart, together
from gmt.memory import losses
from gmt.memory.cell import MemoryCell, Seen
from gmt.memory.frozen import fold, takes_frozen_path
from gmt.memory.precision import compute_type, product, unautocast, wide
from gmt.memory.routing import direction, transition_matrix


class BlockTables(NamedTuple):
    """What one block's tokens need that depends on none of them, as the operator wants it."""

    tables: Tensor  # lookup, transition, gram and others, one after the other: see operators.table_sizes
    vectors: Tensor  # LN2's, LN_disp's bias with the gate in it, and others: see operators.vector_sizes
    scale: Tensor  # [H] LN_disp's weight with the gate in it
    rest: Tensor  # [F, F] what the compute type left out of gram


class Tables(NamedTuple):
    """The blocks', and all that needs no token: [L] each."""

    blocks: list[BlockTables]
    slowness: Tensor  # 1 - m
    ortho: Tensor
    edge: Tensor
    contrast: Tensor


class BlockSeen(NamedTuple):
    """What one block's operator saw; `gather_seen` makes of all blocks' what a model looks at."""

    sums: Tensor  # [3F + 1] usage, counts, the tracking term's pull on the means and its error
    slot_sum: Tensor  # [F, H]
    reseed: Tensor | None  # [K, H]


class _Watched(torch.autograd.Function):
    """torch.stack that also remembers what it copied: memory written before the backward is then an error, as it is
    where memory itself is saved. A compiled graph would drop what it does not compute with."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.stack(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        assert ctx.saved_tensors  # looking at them compares their versions
        return grads[0].unbind()


def _packed(
    lookup: Tensor,
    transition: Tensor,
    states: Tensor,
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
    norm: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """tables, vectors, scale and rest of [..., F, H] memory states C~. LN_disp would take the mean over H out of the
    displacement, and divide by its spread. Both are linear or quadratic in the states, and so are made here once, and
    not for every token: gram [F, F] are the mean products over H of the states without their means. So is LN2's `norm`,
    weight and bias [..., H], taken into lookup; without it tokens come to lookup as z."""
    weight, bias = (torch.ones_like(shift), torch.zeros_like(shift)) if norm is None else norm
    offset = (lookup * bias[..., None, :]).sum(-1)
    lookup = lookup * weight[..., None, :]
    means = states.mean(-1)
    centred = (states - means[..., None]).to(dtype)
    gram = product(centred, centred.mT, dtype) / states.shape[-1]
    rough = gram.to(dtype)
    # what all slots share moves nobody, and would be rounded for each of them by itself
    moves = ((wide(centred) - wide(centred).mean(-2, keepdim=True)) * scale[..., None, :]).to(dtype)
    tables = [matrix.to(dtype).flatten(-2) for matrix in (lookup, transition, rough, rough, moves, centred)]
    rest = (gram - wide(rough)).detach().to(dtype)
    vectors = torch.cat([weight, bias, shift, offset, means], -1)
    return torch.cat(tables, -1), vectors, scale.detach(), rest  # the gradient of scale goes through the moves


def all_tables(cells: Sequence[MemoryCell], norms: Sequence[nn.LayerNorm], dtype: torch.dtype) -> Tables:
    """The tables of every block, in operations on all of them: a block's own are too small to fill a GPU. `norms` are
    the LN2 of each."""
    cfg, eps = cells[0].cfg, cells[0].norm_centroids.eps
    kinds = (
        [cell.edges for cell in cells],
        [cell.query.weight for cell in cells],
        [cell.key.weight for cell in cells],
        [cell.momentum for cell in cells],
        [cell.gate for cell in cells],
        *([getattr(cell.norm_centroids, name) for cell in cells] for name in ("weight", "bias")),
        *([getattr(cell.norm_displacement, name) for cell in cells] for name in ("weight", "bias")),
        *([getattr(norm, name) for norm in norms] for name in ("weight", "bias")),
    )
    memory = [cell.centroids for cell in cells]
    if torch.compiler.is_compiling():
        centroids, *others = together(memory, *kinds)
    else:
        centroids, *others = _Watched.apply(*memory), *together(*kinds)
    edges, query, key, momentum, *vectors = others
    gate, weight, bias, scale, shift, *norm = map(wide, vectors)
    centroids, opened = wide(centroids), gate.sigmoid()[:, None]
    with unautocast(centroids):
        plain = F.layer_norm(centroids, centroids.shape[-1:], eps=eps)
        states = plain * weight[:, None] + bias[:, None]
    # W_K first: its gradient then comes out as W_K lies
    keys = product(key, states.mT, dtype).mT
    transition = transition_matrix(edges)
    lookup = torch.cat([direction(states), fold(query, keys, dtype)], dim=1)
    tables, vectors, scale, rest = _packed(lookup, transition, states, opened * scale, opened * shift, dtype, norm)
    # scale and rest take no gradient; as views they would be made by a launch for each block
    blocks = zip(*apart(tables, vectors), *apart(scale, rest), strict=True)
    return Tables(
        [BlockTables(*block) for block in blocks],
        1 - wide(momentum).sigmoid(),
        losses.ortho_loss(centroids),
        losses.edge_loss(transition, cfg.edge_floor),
        losses.contrast_loss(transition),
    )


def fused_block(
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
) -> tuple[Tensor, BlockSeen | None]:
    """MemoryCell.forward of h = x + update and z = norm(h), without the routes: who wants to see them takes the plain
    way. `update` is what attention adds; h itself is never written. `tables` must be given except on the frozen path.
    """
    dtype, shape = compute_type(x), x.shape
    if tables is None and not takes_frozen_path(observe):
        raise ValueError("a block whose memory is observed or takes a gradient wants its tables: all_tables makes them")
    given = (norm.weight, norm.bias, *_frozen(cell, dtype)) if tables is None else (None, None, *tables)
    if update is not None:
        x = x.to(torch.promote_types(x.dtype, update.dtype))
    warmth = tau if isinstance(tau, Tensor) else torch.full((), tau, device=x.device)
    out, _, _, _, _, sums, slot_sums = torch.ops.gmt.fused_cell(
        x.flatten(0, -2).contiguous(), None if update is None else update.flatten(0, -2).contiguous(),
        *given, warmth,
        None if mask is None else mask.flatten().contiguous(),
        cell.cfg.memory.distance_floor, norm.eps, cell.norm_displacement.eps, observe, torch.is_grad_enabled(),
    )  # fmt: skip
    out = out.view(shape)
    if not observe:
        return out, None
    return out, BlockSeen(sums, slot_sums[0], None if reseed is None else out.detach().flatten(0, -2)[reseed])


def gather_seen(blocks: Sequence[BlockSeen], tables: Tables, tokens: Tensor) -> Seen:
    """Of all blocks, [L, ...], in operations on all of them; `tokens` [] are those that count."""
    sums, slot_sum = together([seen.sums for seen in blocks], [seen.slot_sum.detach() for seen in blocks])
    slots, hidden = slot_sum.shape[1:]
    usage, count, _, error = sums.split([slots, slots, slots, 1], dim=-1)
    samples = [seen.reseed for seen in blocks if seen.reseed is not None]
    return Seen(
        slot_sum=slot_sum,
        slot_count=count.detach().contiguous(),  # views of one tensor could be neither added to nor sent
        usage_sum=usage.contiguous(),
        reseed=torch.stack(samples) if samples else None,
        track=tables.slowness * error[:, 0] / (tokens.clamp_min(1) * hidden),
        ortho=tables.ortho,
        edge=tables.edge,
        contrast=tables.contrast,
    )


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
) -> tuple[Tensor, Seen | None]:
    """One cell by itself."""
    tables = None if takes_frozen_path(observe) else all_tables([cell], [norm], compute_type(x))
    block = None if tables is None else tables.blocks[0]
    out, saw = fused_block(cell, norm, x, update, tau, mask, observe=observe, reseed=reseed, tables=block)
    if saw is None or tables is None:
        return out, None
    tokens = x.new_full((), x[..., 0].numel()) if mask is None else mask.sum()
    seen = gather_seen([saw], tables, tokens)
    return out, Seen(*(None if part is None else part[0] for part in seen))  # pyright: ignore[reportArgumentType]


def _frozen(cell: MemoryCell, dtype: torch.dtype) -> Sequence[Tensor]:
    """The frozen tables as the kernel wants them, kept with them."""
    tables = cell.frozen_tables(dtype)
    frozen = cell.frozen
    assert frozen is not None
    if frozen.packed is None:
        lookup, transition, states, scale, shift = tables
        frozen.packed = _packed(lookup.T, transition, states, scale, shift, dtype)
    return frozen.packed
