"""bfloat16 under Triton's interpreter, which stores its bits as 16-bit integers and computes with those.

Here they are widened to float32 before an operation and rounded after it, as a GPU does; products are left in float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

Builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle


def _is_narrow(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def _widened(handle: Any) -> np.ndarray:
    return (handle.data.astype(np.uint32) << 16).view(np.float32) if _is_narrow(handle) else handle.data


def _rounded(numbers: np.ndarray) -> np.ndarray:
    exact = torch.from_numpy(np.array(numbers, dtype=np.float32))
    return exact.bfloat16().view(torch.int16).numpy().view(np.uint16).reshape(numbers.shape)


@contextmanager
def right_bfloat16() -> Iterator[None]:
    before = {name: getattr(Builder, name) for name in ("create_dot", "binary_op", "cast_impl")}

    def dot(self, a, b, total, precision, most):  # type: ignore
        return Handle(np.matmul(_widened(a), _widened(b), dtype=total.data.dtype) + total.data, total.dtype.scalar)

    def binary(self, a, b, op):  # type: ignore
        if not _is_narrow(a):
            return before["binary_op"](self, a, b, op)
        result = op(_widened(a), _widened(b))
        return Handle(result, tl.int1) if result.dtype == np.bool_ else Handle(_rounded(result), tl.bfloat16)

    def cast(self, source, to):  # type: ignore
        if to.scalar == tl.bfloat16:
            return source if _is_narrow(source) else Handle(_rounded(source.data), tl.bfloat16)
        wide = Handle(_widened(source), tl.float32) if _is_narrow(source) else source
        return before["cast_impl"](self, wide, to)

    for name, new in zip(before, (dot, binary, cast), strict=True):
        setattr(Builder, name, new)
    try:
        yield
    finally:
        for name, old in before.items():
            setattr(Builder, name, old)
