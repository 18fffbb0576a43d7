"""LN2 in Triton, row by row: of x and what attention adds to u, and back."""

import triton
import triton.language as tl

from gmt.kernels.triton_base import load, residual, store

# the paper's ε
EPS = tl.constexpr(1e-8)


@triton.jit
def norm_kernel(
    x_ptr, update_ptr, weight_ptr, bias_ptr, unit_ptr, stats_ptr, n_tokens, norm_eps,
    H: tl.constexpr, HP: tl.constexpr, HAS_UPDATE: tl.constexpr, FOLDED: tl.constexpr,
):  # fmt: skip
    """u of h = x + update, or z itself where lookup does not have LN2 in it; and of each token 1 / deviation of h, and
    the length of z."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, HP)
    inside = cols < H
    h = residual(x_ptr, update_ptr, row * H + cols, inside, HAS_UPDATE, H == HP)
    off = tl.where(inside, h - tl.sum(h, 0) / H, 0.0)
    rstd = tl.rsqrt(tl.sum(off * off, 0) / H + norm_eps)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    unit = off * rstd
    z = unit * weight + bias
    tl.store(unit_ptr + row * H + cols, (unit if FOLDED else z).to(unit_ptr.dtype.element_ty), mask=inside)
    tl.store(stats_ptr + row, rstd)
    tl.store(stats_ptr + n_tokens + row, tl.maximum(tl.sqrt(tl.sum(z * z, 0)), EPS))


@triton.jit
def through_length(unit_ptr, dunit_ptr, place, inside, weight, bias, along, EVEN: tl.constexpr):
    """u, the gradient of z through |z|, and the whole one of u."""
    unit = load(unit_ptr + place, inside, EVEN).to(tl.float32)
    dz = -along * (unit * weight + bias)
    return unit, dz, load(dunit_ptr + place, inside, EVEN).to(tl.float32) + dz * weight


@triton.jit
def write_norm(
    dx_ptr, dupdate_ptr, place, inside, grad, unit, dunit, rstd, mean, lean,
    HAS_UPDATE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradient of h, from that of u and what goes straight through: for x, and for what attention added."""
    dx = grad + rstd * (dunit - mean - unit * lean)
    store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), inside, EVEN)
    if HAS_UPDATE:
        store(dupdate_ptr + place, dx.to(dupdate_ptr.dtype.element_ty), inside, EVEN)


@triton.jit
def norm_backward_kernel(
    grad_ptr, unit_ptr, weight_ptr, bias_ptr, dunit_ptr, dscores_ptr, along_ptr, stats_ptr, dx_ptr, dupdate_ptr,
    columns_ptr, n_tokens,
    H: tl.constexpr, HA: tl.constexpr, HB: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
    HAS_UPDATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """LN2's backward, and the residual stream's own gradient added. A program takes rows as far apart as there are
    programs, and keeps the sums over its rows, columns [programs, 3H + 2F]: what LN2's weight and bias have through
    |z|, beside what they have through lookup and offset; g, for shift; and dscores, for offset. A row goes in two
    parts, of HA and HB columns: 768 in one of 1,024 would leave a quarter of the registers empty. STAGES: the next
    rows are fetched meanwhile."""
    a, b = tl.arange(0, HA), HA + tl.arange(0, HB)
    inside = b < H
    full: tl.constexpr = HA + HB == H
    a_weight, a_bias = tl.load(weight_ptr + a).to(tl.float32), tl.load(bias_ptr + a).to(tl.float32)
    b_weight = load(weight_ptr + b, inside, full).to(tl.float32)
    b_bias = load(bias_ptr + b, inside, full).to(tl.float32)
    a_product, a_plain, a_whole = tl.zeros([HA], tl.float32), tl.zeros([HA], tl.float32), tl.zeros([HA], tl.float32)
    b_product, b_plain, b_whole = tl.zeros([HB], tl.float32), tl.zeros([HB], tl.float32), tl.zeros([HB], tl.float32)
    scores = tl.arange(0, 2 * FP)
    asked = scores < 2 * F
    dscores = tl.zeros([2 * FP], dtype=tl.float32)
    for row in tl.range(tl.program_id(0).to(tl.int64), n_tokens, tl.num_programs(0), num_stages=STAGES):
        begin = row * H
        rstd, along = tl.load(stats_ptr + row), tl.load(along_ptr + row)
        a_grad = tl.load(grad_ptr + begin + a).to(tl.float32)
        b_grad = load(grad_ptr + begin + b, inside, full).to(tl.float32)
        a_unit, a_dz, a_dunit = through_length(unit_ptr, dunit_ptr, begin + a, None, a_weight, a_bias, along, True)
        b_unit, b_dz, b_dunit = through_length(unit_ptr, dunit_ptr, begin + b, inside, b_weight, b_bias, along, full)
        dscores += load(dscores_ptr + row * (2 * F) + scores, asked, F == FP).to(tl.float32)
        a_product += a_dz * a_unit
        b_product += b_dz * b_unit
        a_plain += a_dz
        b_plain += b_dz
        a_whole += a_grad
        b_whole += b_grad
        mean = (tl.sum(a_dunit, 0) + tl.sum(b_dunit, 0)) / H
        lean = (tl.sum(a_dunit * a_unit, 0) + tl.sum(b_dunit * b_unit, 0)) / H
        write_norm(dx_ptr, dupdate_ptr, begin + a, None, a_grad, a_unit, a_dunit, rstd, mean, lean, HAS_UPDATE, True)
        write_norm(dx_ptr, dupdate_ptr, begin + b, inside, b_grad, b_unit, b_dunit, rstd, mean, lean, HAS_UPDATE, full)
    columns_ptr += tl.program_id(0) * (3 * H + 2 * F)
    tl.store(columns_ptr + a, a_product)
    tl.store(columns_ptr + H + a, a_plain)
    tl.store(columns_ptr + 2 * H + a, a_whole)
    tl.store(columns_ptr + b, b_product, mask=inside)
    tl.store(columns_ptr + H + b, b_plain, mask=inside)
    tl.store(columns_ptr + 2 * H + b, b_whole, mask=inside)
    tl.store(columns_ptr + 3 * H + scores, dscores, mask=asked)
