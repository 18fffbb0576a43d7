"""Matrix products as the GPU likes them."""

import torch
from torch import Tensor

from gmt.memory.precision import unautocast, wide_mm


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a b, accumulated and returned in at least float32."""
    if a.device.type == "cuda" and a.dtype == torch.bfloat16:
        return wide_mm(a, b)
    kind = torch.promote_types(a.dtype, torch.float32)
    with unautocast(a):
        return a.to(kind) @ b.to(kind)


def narrow_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in their own type, accumulated as torch has it."""
    with unautocast(a):
        return a @ b


def tall_product(total: Tensor, a: Tensor, b: Tensor, add: bool) -> None:
    """total = a^T b over many tokens, or total += a^T b without writing the product down first where the GPU can."""
    if a.device.type == "cuda" and a.dtype == torch.bfloat16:
        if add:
            torch.addmm(total, a.T, b, out_dtype=torch.float32, out=total)
        else:
            torch.mm(a.T, b, out_dtype=torch.float32, out=total)
    elif add:
        total += wide_product(a.T, b)
    else:
        total.copy_(wide_product(a.T, b))
