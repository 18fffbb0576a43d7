"""Small tensors of all blocks put into one and taken apart again, in a launch each.

A compiled graph writes every part of a stack by a launch of its own: with sixteen blocks a step had two hundred.
What comes apart is copied. Views would be free, but a compiled backward that is given both a tensor and views of it may
write its results over the views, and so over the tensor (torch 2.13).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("gmt::together", mutates_args=())
def _together(parts: list[Tensor]) -> Tensor:
    whole = parts[0].new_empty((len(parts), *parts[0].shape))
    torch._foreach_copy_(list(whole.unbind()), parts)  # pyright: ignore[reportPrivateImportUsage]
    return whole


@_together.register_fake
def _(parts):  # type: ignore
    return parts[0].new_empty((len(parts), *parts[0].shape))


@torch.library.custom_op("gmt::apart", mutates_args=())
def _apart(whole: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(part) for part in whole.unbind()]
    torch._foreach_copy_(parts, list(whole.unbind()))  # pyright: ignore[reportPrivateImportUsage]
    return parts


@_apart.register_fake
def _(whole):  # type: ignore
    return [torch.empty_like(part) for part in whole.unbind()]


def _nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Neither gradient needs anything from its forward."""


def _apart_backward(ctx: Any, grads: list[Tensor | None]) -> Tensor | None:
    known = next((grad for grad in grads if grad is not None), None)
    if known is None:
        return None
    return torch.ops.gmt.together([torch.zeros_like(known) if grad is None else grad for grad in grads])


def _together_backward(ctx: Any, grad: Tensor) -> Any:
    return torch.ops.gmt.apart(grad.contiguous())


torch.library.register_autograd("gmt::together", _together_backward, setup_context=_nothing)
torch.library.register_autograd("gmt::apart", _apart_backward, setup_context=_nothing)


def together(parts: Sequence[Tensor]) -> Tensor:
    """torch.stack of tensors of one type."""
    return torch.ops.gmt.together(list(parts)) if torch.compiler.is_compiling() else torch.stack(list(parts))


def apart(whole: Tensor) -> Sequence[Tensor]:
    """whole.unbind()"""
    return torch.ops.gmt.apart(whole) if torch.compiler.is_compiling() else whole.unbind()
