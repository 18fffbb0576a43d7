"""What the cell's kernels share: loads and stores that need not look, and the residual stream."""

import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources as OutOfResources  # for who launches: Triton has one door


@triton.jit
def load(place, fits, EVEN: tl.constexpr):
    """EVEN: everything fits, and nobody needs to look."""
    return tl.load(place) if EVEN else tl.load(place, mask=fits, other=0.0)


@triton.jit
def store(place, value, fits, EVEN: tl.constexpr):
    if EVEN:
        tl.store(place, value)
    else:
        tl.store(place, value, mask=fits)


@triton.jit
def residual(x_ptr, update_ptr, place, fits, HAS_UPDATE: tl.constexpr, EVEN: tl.constexpr):
    """h = x + what attention gave, rounded as the plain sum is, then in float32."""
    h = load(x_ptr + place, fits, EVEN)
    if HAS_UPDATE:
        h = (h.to(tl.float32) + load(update_ptr + place, fits, EVEN).to(tl.float32)).to(h.dtype)
    return h.to(tl.float32)
