"""An embedding whose compiled gradient repeats bit for bit.

Compile takes torch's own gradient apart, and adds tokens to their rows by atomics, in whatever order they come: two
runs of one program then differ from their third step on. Left in one piece it sorts the tokens first.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@torch.library.custom_op("gmt::embedding_backward", mutates_args=())
def _embedding_backward(grad: Tensor, ids: Tensor, rows: int) -> Tensor:
    # sorted by 32 bits in half the passes that 64 take
    return torch.ops.aten.embedding_dense_backward(grad, ids.int(), rows, -1, False)


@_embedding_backward.register_fake
def _(grad, ids, rows):  # type: ignore
    return grad.new_empty((rows, grad.shape[-1]))


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = weight.shape[0]
        return F.embedding(ids, weight)  # compile joins it to what comes next

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (ids,) = ctx.saved_tensors
        return None, torch.ops.gmt.embedding_backward(grads[0].contiguous(), ids, ctx.rows)


class Embedding(nn.Embedding):
    """nn.Embedding of nothing but a number of rows and their width."""

    def forward(self, input: Tensor | slice) -> Tensor:
        """Rows by their numbers; or by a slice, as they lie: nothing is gathered then, and no gradient sorted."""
        if isinstance(input, slice):
            return self.weight[input]
        if torch.compiler.is_compiling():
            return _Gathered.apply(input, self.weight)  # pyright: ignore
        return super().forward(input)
