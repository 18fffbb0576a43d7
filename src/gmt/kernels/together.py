"""Small tensors of all blocks put into one and taken apart again, many kinds of them in a launch or two.

A compiled graph writes every part of a stack by a launch of its own: with sixteen blocks a step had two hundred.
What comes apart is copied. Views would be free, but a compiled backward that is given both a tensor and views of it may
write its results over the views, and so over the tensor (torch 2.13).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def _copy(to: list[Tensor], parts: list[Tensor]) -> None:
    for dtype in {part.dtype for part in parts}:  # of one type they go in one launch, of several each by itself
        same = [index for index, part in enumerate(parts) if part.dtype == dtype]
        torch._foreach_copy_([to[i] for i in same], [parts[i] for i in same])  # pyright: ignore[reportPrivateImportUsage]


def _wholes(parts: list[Tensor], blocks: int) -> list[Tensor]:
    return [part.new_empty((blocks, *part.shape)) for part in parts[::blocks]]


@torch.library.custom_op("gmt::put_together", mutates_args=())
def _put_together(parts: list[Tensor], blocks: int) -> list[Tensor]:
    """All blocks' of the first kind, then of the next."""
    wholes = _wholes(parts, blocks)
    _copy([part for whole in wholes for part in whole.unbind()], parts)
    return wholes


@_put_together.register_fake
def _(parts, blocks):  # type: ignore
    return _wholes(parts, blocks)


@torch.library.custom_op("gmt::take_apart", mutates_args=())
def _take_apart(wholes: list[Tensor]) -> list[Tensor]:
    views = [part for whole in wholes for part in whole.unbind()]
    parts = [torch.empty_like(part) for part in views]
    _copy(parts, views)
    return parts


@_take_apart.register_fake
def _(wholes):  # type: ignore
    return [torch.empty_like(part) for whole in wholes for part in whole.unbind()]


def _remember_blocks(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)  # what nobody used has no gradient, and not one of zeros
    ctx.blocks = len(inputs[0][0]) if len(inputs) == 1 else inputs[1]


def _apart_backward(ctx: Any, grads: list[Tensor | None]) -> list[Tensor | None]:
    kinds = [grads[start : start + ctx.blocks] for start in range(0, len(grads), ctx.blocks)]
    known = [next((grad for grad in kind if grad is not None), None) for kind in kinds]
    parts = [
        torch.zeros_like(like) if grad is None else grad.contiguous()
        for kind, like in zip(kinds, known, strict=True)
        if like is not None
        for grad in kind
    ]
    wholes = iter(torch.ops.gmt.put_together(parts, ctx.blocks) if parts else ())
    return [None if like is None else next(wholes) for like in known]


def _together_backward(ctx: Any, grads: list[Tensor | None]) -> tuple[list[Tensor | None], None]:
    known = [grad.contiguous() for grad in grads if grad is not None]
    parts = iter(torch.ops.gmt.take_apart(known) if known else ())
    return [None if grad is None else next(parts) for grad in grads for _ in range(ctx.blocks)], None


torch.library.register_autograd("gmt::put_together", _together_backward, setup_context=_remember_blocks)
torch.library.register_autograd("gmt::take_apart", _apart_backward, setup_context=_remember_blocks)


def together(*kinds: Sequence[Tensor]) -> list[Tensor]:
    """torch.stack of each kind: as many tensors of one shape and type as there are blocks."""
    if not torch.compiler.is_compiling():
        return [torch.stack(list(kind)) for kind in kinds]
    found: list[Tensor | None] = [None] * len(kinds)
    # of an operator's results all take a gradient, or none
    for learned in (True, False):
        same = [n for n, kind in enumerate(kinds) if any(part.requires_grad for part in kind) == learned]
        if same:
            wholes = torch.ops.gmt.put_together([part for n in same for part in kinds[n]], len(kinds[0]))
            for n, whole in zip(same, wholes, strict=True):
                found[n] = whole
    return found  # pyright: ignore[reportReturnType]


def apart(*wholes: Tensor) -> list[Sequence[Tensor]]:
    """whole.unbind() of each."""
    if not torch.compiler.is_compiling():
        return [whole.unbind() for whole in wholes]
    parts, blocks = torch.ops.gmt.take_apart(list(wholes)), wholes[0].shape[0]
    return [parts[start : start + blocks] for start in range(0, len(parts), blocks)]
