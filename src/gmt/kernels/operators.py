"""The two operators of the fused cell, forward and backward, registered with autograd and compile."""

# Triton's launch arguments are not those of the kernel's signature
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false

import math
from typing import Any

import torch
from torch import Tensor

from gmt.kernels.products import tall_product
from gmt.memory.precision import unautocast

PARTS = 22  # of the sums over tokens: with twelve columns of tiles two for each multiprocessor of an H200

# tokens and hidden columns of a tile, warps and stages, by kernel: chosen on an H200 at F 128, H 768
TILES = {
    "forward": {"BM": 128, "BH": 64, "num_warps": 8, "num_stages": 3},
    "backward": {"BM": 64, "BH": 64, "num_warps": 4, "num_stages": 3},
    "sums": {"BT": 64, "BH": 64, "num_warps": 4, "num_stages": 1},
    "few": {"BM": 16, "BH": 256, "num_warps": 8, "num_stages": 1},  # tokens: long rows, for there is one tile
}


def _tile(kernel: str, slots: int, dtype: torch.dtype, tokens: int = 1 << 20) -> dict[str, int]:
    """What fits on the chip: less of it for float32, and for more slots."""
    kernel = "few" if tokens <= 16 and kernel == "forward" and dtype != torch.float32 and slots <= 128 else kernel
    tile = {"FP": max(16, 1 << (slots - 1).bit_length()), **TILES[kernel]}
    if dtype == torch.float32 or slots > 128:
        smaller = (
            {"BM": 32, "BT": 32, "BH": 32} if dtype != torch.float32 or slots <= 128 else {"BM": 16, "BT": 16, "BH": 16}
        )
        tile |= {name: size for name, size in smaller.items() if name in tile} | {"num_stages": 1}
    return tile


def _precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"  # the second is not looked at for bfloat16


@torch.library.custom_op("gmt::cell_forward", mutates_args=())
def cell_forward(
    h: Tensor,
    z: Tensor,
    lookup: Tensor,
    transition: Tensor,
    states: Tensor,
    scale: Tensor,
    shift: Tensor,
    gram: Tensor,
    means: Tensor,
    tau: Tensor,
    mask: Tensor | None,
    floor: float,
    norm_eps: float,
    observe: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """h, z [N, H] -> out, source, delta, distance, stats, pull, slot, usage, count, error, slot_sum, soft_sum."""
    from gmt.kernels.triton_kernels import forward_kernel, slot_sum_kernel

    (tokens, hidden), slots, dtype = z.shape, states.shape[0], states.dtype
    sizes = _tile("forward", slots, dtype, tokens)
    tiles = math.ceil(tokens / sizes["BM"])
    out = torch.empty_like(h)
    saved = _saved(z, slots, dtype, observe, save)
    source, delta, distance, stats, pull, slot = saved
    usage, count = (z.new_empty((tiles, slots), dtype=torch.float32) for _ in range(2))
    error = z.new_empty(tiles, dtype=torch.float32)
    common = {"H": hidden, "F": slots, "PRECISION": _precision(dtype)}
    with torch.cuda.device_of(z):
        forward_kernel[(tiles,)](
            h, z, lookup, transition, states, scale, shift, gram, means, tau, mask if mask is not None else slot,
            out, source, delta, distance, stats, pull, slot, usage, count, error,
            tokens, floor, norm_eps,
            OBSERVE=observe, SAVE=save, HAS_MASK=mask is not None, REST=dtype != torch.float32, **sizes, **common,
        )  # fmt: skip
    if not observe:
        nothing = z.new_empty(0, dtype=torch.float32)
        return out, *saved, nothing, nothing.clone(), nothing.clone(), nothing.clone(), nothing.clone()
    sizes = _tile("sums", slots, dtype)
    parts = min(PARTS, math.ceil(tokens / sizes["BT"]))
    per_part = math.ceil(math.ceil(tokens / parts) / sizes["BT"]) * sizes["BT"]
    hard = z.new_empty((parts, slots, hidden), dtype=torch.float32)
    soft = torch.empty_like(hard) if save else hard[:0]
    with torch.cuda.device_of(z):
        slot_sum_kernel[(math.ceil(hidden / sizes["BH"]), parts)](
            out, source, slot, hard, soft, tokens, per_part,
            SAVE=save, REST=dtype != torch.float32, **sizes, **common,
        )  # fmt: skip
    return out, *saved, usage.sum(0), count.sum(0), error.sum(), hard.sum(0), soft.sum(0)


def _saved(z: Tensor, slots: int, dtype: torch.dtype, observe: bool, save: bool) -> list[Tensor]:
    """What backward needs, and the slot of each token; empty where it is not asked for."""
    tokens = z.shape[0]

    def room(wanted: bool, *shape: int, kind: torch.dtype = dtype) -> Tensor:
        return z.new_empty(shape if wanted else (0,), dtype=kind)

    return [
        room(observe or save, tokens, slots),
        room(save, tokens, slots),
        room(save, tokens, slots),
        room(save, tokens, 2, kind=torch.float32),
        room(save and observe, tokens, slots),
        room(observe, tokens, kind=torch.int32),
    ]


@cell_forward.register_fake
def _(h, z, lookup, transition, states, scale, shift, gram, means, tau, mask, floor, norm_eps, observe, save):  # type: ignore
    slots, hidden = states.shape
    saved = _saved(z, slots, states.dtype, observe, save)

    def total(*shape: int) -> Tensor:
        return z.new_empty(shape if observe else (0,), dtype=torch.float32)

    return (
        torch.empty_like(h), *saved, total(slots), total(slots), total(), total(slots, hidden), total(slots, hidden),
    )  # fmt: skip


@torch.library.custom_op("gmt::cell_backward", mutates_args=())
def cell_backward(
    grad: Tensor,
    z: Tensor,
    lookup: Tensor,
    transition: Tensor,
    states: Tensor,
    scale: Tensor,
    gram: Tensor,
    means: Tensor,
    tau: Tensor,
    mask: Tensor | None,
    source: Tensor,
    delta: Tensor,
    distance: Tensor,
    stats: Tensor,
    pull: Tensor,
    soft_sum: Tensor,
    usage_grad: Tensor,
    error_grad: Tensor,
    floor: float,
    observe: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of z, lookup, transition, states, scale and shift."""
    from gmt.kernels.triton_kernels import backward_kernel

    (tokens, hidden), slots, dtype = z.shape, states.shape[0], states.dtype
    sizes = _tile("backward", slots, dtype, tokens)
    tiles = math.ceil(tokens / sizes["BM"])
    dz, narrow = torch.empty_like(z), z.new_empty((tokens, hidden), dtype=dtype)
    scaled, bent = torch.empty_like(delta), torch.empty_like(delta)
    dscores = z.new_empty((tokens, 2 * slots), dtype=dtype)
    columns = z.new_empty((tiles, hidden), dtype=torch.float32)
    leans = z.new_empty((tiles, slots), dtype=torch.float32)
    with torch.cuda.device_of(z):
        backward_kernel[(tiles,)](
            grad, z, lookup, transition, states, scale, gram, means, tau, mask if mask is not None else stats,
            source, delta, distance, stats, pull, usage_grad, error_grad,
            dz, narrow, scaled, bent, dscores, columns, leans,
            tokens, floor,
            H=hidden, F=slots, OBSERVE=observe, HAS_MASK=mask is not None, PRECISION=_precision(dtype), **sizes,
        )  # fmt: skip
    with unautocast(z):
        return (
            dz,
            *_over_tokens(
                z,
                states,
                scale,
                means,
                mask,
                source,
                delta,
                soft_sum,
                error_grad,
                observe,
                narrow,
                scaled,
                bent,
                dscores,
                leans,
            ),
            columns.sum(0),
        )


def _over_tokens(
    z: Tensor,
    states: Tensor,
    scale: Tensor,
    means: Tensor,
    mask: Tensor | None,
    source: Tensor,
    delta: Tensor,
    soft_sum: Tensor,
    error_grad: Tensor,
    observe: bool,
    narrow: Tensor,
    scaled: Tensor,
    bent: Tensor,
    dscores: Tensor,
    leans: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of lookup, transition, states and scale: products over tokens of what the kernel left."""
    slots, dtype = states.shape[0], states.dtype
    dlookup = tall_product(dscores, z.to(dtype))
    dtransition = tall_product(source, dscores[:, slots:])
    centred = states.float() - means[:, None]
    moved = tall_product(scaled, narrow)  # (r δ)^T g
    dscale = (centred * moved).sum(0)
    dstates = torch.addmm(moved * scale - leans.sum(0)[:, None], tall_product(bent, delta), centred, alpha=-1)
    if observe:
        # the tracking term pulls the states too: -2 w^T (out - w C~), put together from sums over tokens
        counted = source if mask is None else source * mask[:, None].to(dtype)
        dstates = dstates - 2 * error_grad * (soft_sum - tall_product(counted, source) @ states.float())
    return dlookup, dtransition, dstates, dscale


@cell_backward.register_fake
def _(grad, z, lookup, transition, states, scale, *others):  # type: ignore
    def whole(x: Tensor) -> Tensor:
        return torch.empty_like(x, dtype=torch.float32)

    return torch.empty_like(z), whole(lookup), whole(transition), whole(states), whole(scale), whole(scale)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, z, lookup, transition, states, scale, _, gram, means, tau, mask, ctx.floor, _, ctx.observe, _ = inputs
    _, source, delta, distance, stats, pull, slot, _, count, _, slot_sum, soft_sum = output
    ctx.save_for_backward(
        z, lookup, transition, states, scale, gram, means, tau, mask, source, delta, distance, stats, pull, soft_sum
    )
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(source, delta, distance, stats, pull, slot, count, slot_sum, soft_sum)


def _backward(ctx: Any, grad: Tensor | None, *others: Tensor | None) -> tuple[Any, ...]:
    z, lookup, transition, states, scale, gram, means, tau, mask, *saved = ctx.saved_tensors
    usage_grad, error_grad = others[6], others[8]
    if grad is None:
        grad = torch.zeros_like(z)
    zeros = states.new_zeros(states.shape[0], dtype=torch.float32)
    usage_grad = zeros if usage_grad is None else usage_grad
    error_grad = zeros[0] if error_grad is None else error_grad
    dz, dlookup, dtransition, dstates, dscale, dshift = torch.ops.gmt.cell_backward(
        grad.contiguous(), z, lookup, transition, states, scale, gram, means, tau, mask, *saved,
        usage_grad.contiguous(), error_grad.clone(), ctx.floor, ctx.observe,
    )  # fmt: skip
    tables = dlookup.to(lookup.dtype), dtransition.to(transition.dtype), dstates.to(states.dtype)
    return grad, dz, *tables, dscale, dshift, None, None, None, None, None, None, None, None


torch.library.register_autograd("gmt::cell_forward", _backward, setup_context=_setup)
