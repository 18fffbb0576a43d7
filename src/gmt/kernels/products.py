"""Matrix products as the GPU likes them."""

import torch
from torch import Tensor

from gmt.memory.precision import unautocast


def tall_product(a: Tensor, b: Tensor) -> Tensor:
    """a^T b over many tokens, [N, I] and [N, J] to [I, J], accumulated and returned in at least float32."""
    if a.device.type == "cuda" and a.dtype == torch.bfloat16:
        return torch.mm(a.T, b, out_dtype=torch.float32)
    kind = torch.promote_types(a.dtype, torch.float32)
    with unautocast(a):
        return a.T.to(kind) @ b.to(kind)


def add_tall_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a^T b, without writing the product down first where the GPU can."""
    if a.device.type == "cuda" and a.dtype == torch.bfloat16:
        torch.addmm(total, a.T, b, out_dtype=torch.float32, out=total)
    else:
        total += tall_product(a, b)
