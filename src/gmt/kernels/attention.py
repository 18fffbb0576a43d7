"""Causal attention with dropout as one operator, registered with autograd and compile.

With torch's own, attention is a quarter of a training step on an H200 (docs/performance.md).
"""

# Triton's launch arguments are not those of the kernel's signature
# pyright: reportArgumentType=false, reportCallIssue=false

import math
from typing import Any

import torch
from torch import Tensor

from gmt.kernels.available import machine_lacks

HEAD_SIZES = (16, 32, 64, 128)
# queries and keys of a tile, warps and stages, by kernel; the fastest on an H200 (docs/results/speed.md)
TILES = {
    "forward": {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 3},
    "queries": {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 3},
    "keys": {"BM": 32, "BN": 64, "num_warps": 4, "num_stages": 3},
}


def _launch(qkv: Tensor, heads: int, dropout: float, kernel: str) -> tuple[tuple[int, int], tuple[Any, ...], dict]:
    """A kernel's grid, its last arguments and its constants."""
    batch, length, width = qkv.shape
    size = width // 3 // heads
    tile = TILES[kernel] | ({"BM": 32, "BN": 32, "num_stages": 1} if qkv.dtype == torch.float32 else {})
    grid = math.ceil(length / tile["BN" if kernel == "keys" else "BM"]), batch * heads
    numbers = length, heads, size**-0.5, min(round(dropout * 2**32), 2**32 - 1), 1 / (1 - dropout)
    precision = "ieee" if qkv.dtype == torch.float32 else "tf32"
    constants = {"D": size, "DROP": dropout > 0, "PRECISION": precision, **tile}
    if kernel == "keys":
        constants["EVEN"] = length % tile["BM"] == 0
    return grid, numbers, constants


@torch.library.custom_op("gmt::attention_forward", mutates_args=())
def attention_forward(qkv: Tensor, seed: Tensor, heads: int, dropout: float) -> tuple[Tensor, Tensor]:
    """qkv [B, T, 3 H] -> out [B, T, H]; log [B, heads, T] for backward."""
    from gmt.kernels.triton_attention import attention_kernel

    out, log = _room(qkv, heads)
    grid, numbers, constants = _launch(qkv, heads, dropout, "forward")
    with torch.cuda.device_of(qkv):
        attention_kernel[grid](qkv, out, log, seed, *numbers, 0.0, **constants)
    return out, log


def _room(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, length, width = qkv.shape
    return qkv.new_empty(batch, length, width // 3), qkv.new_empty((batch, heads, length), dtype=torch.float32)


@attention_forward.register_fake
def _(qkv, seed, heads, dropout):  # type: ignore
    return _room(qkv, heads)


@torch.library.custom_op("gmt::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, qkv: Tensor, seed: Tensor, out: Tensor, log: Tensor, heads: int, dropout: float
) -> Tensor:
    from gmt.kernels.triton_attention import keys_backward_kernel, queries_backward_kernel

    dqkv, delta = torch.empty_like(qkv), torch.empty_like(log)
    kept = torch.empty_like(log, dtype=torch.int32)
    with torch.cuda.device_of(qkv):
        grid, numbers, constants = _launch(qkv, heads, dropout, "queries")
        queries_backward_kernel[grid](grad, qkv, out, log, seed, dqkv, delta, kept, *numbers, **constants)
        grid, numbers, constants = _launch(qkv, heads, dropout, "keys")
        keys_backward_kernel[grid](grad, qkv, log, delta, kept, seed, dqkv, *numbers, 0.0, **constants)
    return dqkv


@attention_backward.register_fake
def _(grad, qkv, seed, out, log, heads, dropout):  # type: ignore
    return torch.empty_like(qkv)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv, seed, ctx.heads, ctx.dropout = inputs
    ctx.save_for_backward(qkv, seed, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Any, ...]:
    if grad is None:
        return None, None, None, None
    dqkv = torch.ops.gmt.attention_backward(grad.contiguous(), *ctx.saved_tensors, ctx.heads, ctx.dropout)
    return dqkv, None, None, None


torch.library.register_autograd("gmt::attention_forward", _backward, setup_context=_setup)


def takes_kernel(qkv: Tensor, heads: int) -> bool:
    """Whether the operator can run for these."""
    fits = qkv.shape[-1] // 3 // heads in HEAD_SIZES and qkv.dtype in (torch.bfloat16, torch.float16)
    return fits and machine_lacks(qkv.device) is None


def dropout_attention(qkv: Tensor, heads: int, dropout: float) -> Tensor:
    """Causal attention of all heads; qkv [B, T, 3 H] holds queries, keys and values -> [B, T, H]."""
    seed = torch.randint(2**31 - 1, (1,), device=qkv.device)  # drawn where torch draws: a resumed run draws it again
    return torch.ops.gmt.attention_forward(qkv.contiguous(), seed, heads, dropout)[0]
