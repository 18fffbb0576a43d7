"""Which number is held in which type: one rule for the whole memory.

Softmaxes, distances, statistics and memory state are at least float32 (a float64 model stays float64).
Matrix products take operands of the compute type and accumulate in float32.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-8  # every ε of the paper


def state_type() -> torch.dtype:
    """The type of new memory state: float32, or the default type where that is wider."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def wide(x: Tensor) -> Tensor:
    """x in at least float32."""
    if x.dtype.itemsize >= 4:
        return x
    return x.to(torch.promote_types(x.dtype, torch.float32))


def compute_type(x: Tensor) -> torch.dtype:
    """The type of matrix operands: autocast's where it is on, the tensor's own elsewhere. float64 stays float64."""
    device = x.device.type
    if x.dtype == torch.float64:
        return x.dtype
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b from operands rounded to dtype, accumulated and returned in at least float32.

    The rounded operands are widened again, or go to matrix units that do so: products of two bfloat16 numbers are exact
    in float32, and a bfloat16 result would lose just the small distances that routing lives on.
    """
    fits = (a.dim() > 1 and b.dim() == 2) or a.dim() == b.dim() == 3
    if a.device.type == "cuda" and dtype == torch.bfloat16 and fits:
        return by_matrix_units(a.to(dtype), b.to(dtype))
    with torch.autocast(a.device.type, enabled=False):
        return rounded(a, dtype) @ rounded(b, dtype)


def wide_mm(a: Tensor, b: Tensor) -> Tensor:
    """The same of 16-bit matrices, or of as many in each, by a GPU's matrix units, many times as fast as a product in
    float32."""
    return (torch.mm if b.dim() == 2 else torch.bmm)(a, b, out_dtype=torch.float32)


def by_matrix_units(a: Tensor, b: Tensor) -> Tensor:
    """[..., I] and [I, J], or [L, N, I] and [L, I, J], of 16 bits to [..., J] in float32, with gradients."""
    if b.dim() == 3:
        return WideProduct.apply(a, b)  # pyright: ignore
    return WideProduct.apply(a.flatten(0, -2), b).view(*a.shape[:-1], b.shape[-1])  # pyright: ignore


class WideProduct(torch.autograd.Function):
    """a @ b of 16-bit operands, in float32. Backward rounds the gradient as forward rounds its operands."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return wide_mm(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (a, b), grad = ctx.saved_tensors, grads[0].to(ctx.saved_tensors[0].dtype)
        return (
            wide_mm(grad, b.mT).to(a.dtype) if ctx.needs_input_grad[0] else None,
            wide_mm(a.mT, grad).to(b.dtype) if ctx.needs_input_grad[1] else None,
        )


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x with the precision of dtype, held in at least float32."""
    if x.dtype == dtype and dtype.itemsize >= 4:
        return x
    return x.to(dtype).to(torch.promote_types(dtype, torch.float32))


def unautocast(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast off on x's device. Entering costs microseconds, so that it is not entered where it is off."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def wide_layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """LayerNorm in at least float32, also where the norm's own weights are stored in less."""
    x = wide(x)
    weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        return F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)


class KeepsFloat32(nn.Module):
    """A module some of whose tensors survive `.half()` and `.to(torch.bfloat16)` in float32."""

    float32_tensors: tuple[str, ...] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = [getattr(self, name) for name in self.float32_tensors]
        ids = {id(t) for t in kept} | {id(t.grad) for t in kept if t.is_leaf and t.grad is not None}

        def guarded(t: Tensor) -> Tensor:
            new = fn(t)
            # from t and not from new: what was rounded away would not come back
            return t.to(new.device, torch.float32) if id(t) in ids and new.dtype.itemsize < 4 else new

        return super()._apply(guarded, recurse)
