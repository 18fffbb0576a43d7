"""Sums over tokens in Triton: the products of the cell's backward, and all partial sums added up."""

import triton
import triton.language as tl

from gmt.kernels.triton_base import load, store


@triton.jit
def over_tokens(
    total, a_ptr, b_ptr, mask_ptr, i, j, first, end,
    A_COLS: tl.constexpr, B_COLS: tl.constexpr, A_ROW: tl.constexpr, B_ROW: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, HAS_MASK: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """total + a^T b of the tokens from first to end that count, one tile [BI, BJ] of it."""
    left, right = i * BI + tl.arange(0, BI), j * BJ + tl.arange(0, BJ)
    for start in range(first, end, BT):
        rows = start + tl.arange(0, BT)
        live = rows < end
        rows64 = rows.to(tl.int64)
        counts = live
        if HAS_MASK:
            counts = live & (tl.load(mask_ptr + rows, mask=live, other=0) != 0)
        fits = counts[:, None] & (left < A_COLS)[None, :]
        a = load(a_ptr + rows64[:, None] * A_ROW + left[None, :], fits, EVEN and not HAS_MASK)
        b = load(b_ptr + rows64[:, None] * B_ROW + right[None, :], live[:, None] & (right < B_COLS)[None, :], EVEN)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    return total


@triton.jit
def write_tile(
    out_ptr, total, i, j, A_COLS: tl.constexpr, B_COLS: tl.constexpr,
    BI: tl.constexpr, BJ: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    left, right = i * BI + tl.arange(0, BI), j * BJ + tl.arange(0, BJ)
    fits = (left < A_COLS)[:, None] & (right < B_COLS)[None, :]
    store(out_ptr + left[:, None] * B_COLS + right[None, :], total, fits, EVEN)


@triton.jit
def products_kernel(
    dscores_ptr, unit_ptr, scaled_ptr, narrow_ptr, kept_ptr, bent_ptr, sums_grad_ptr, mask_ptr,
    parts_ptr, n_tokens, tokens_per_part,
    H: tl.constexpr, F: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr,
    OBSERVE: tl.constexpr, HAS_MASK: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial sums over tokens of what backward_kernel wrote, [parts, 2FH + 3FF + FH]: dscores^T u, the
    gradient of lookup; w_src^T dasks, that of the transition matrix; bent^T δ, that of the gram matrix through the
    displacement's norm, and w_src^T w_src, times the error's gradient, through the tracking term; (r δ)^T g, that of
    the moves. Each is too small to fill a GPU; here they share one launch, as tiles that take as long as each other.
    """
    part = tl.program_id(1)
    first = part * tokens_per_part
    end = tl.minimum(first + tokens_per_part, n_tokens)  # a tile must not reach into the next part
    parts_ptr += part.to(tl.int64) * (3 * F * H + 3 * F * F)
    plane = tl.full([], F, tl.int64) * n_tokens
    total = tl.zeros([BI, BJ], dtype=tl.float32)
    slots: tl.constexpr = (F + BI - 1) // BI
    across: tl.constexpr = (F + BJ - 1) // BJ
    columns: tl.constexpr = (H + BJ - 1) // BJ
    square: tl.constexpr = slots * across
    full: tl.constexpr = EVEN and F % BJ == 0
    tile = tl.program_id(0)
    if tile < square:
        i, j = tile // across, tile % across
        total = over_tokens(
            total, kept_ptr, dscores_ptr + F, mask_ptr, i, j, first, end, F, F, F, 2 * F,
            BT, BI, BJ, False, full, PRECISION,
        )  # fmt: skip
        write_tile(parts_ptr + 2 * F * H, total, i, j, F, F, BI, BJ, full)
    elif tile < 2 * square:
        tile -= square
        i, j = tile // across, tile % across
        total = over_tokens(
            total, bent_ptr, kept_ptr + plane, mask_ptr, i, j, first, end, F, F, F, F,
            BT, BI, BJ, False, full, PRECISION,
        )  # fmt: skip
        write_tile(parts_ptr + 2 * F * H + F * F, total, i, j, F, F, BI, BJ, full)
    elif tile < 3 * square:
        tile -= 2 * square
        i, j = tile // across, tile % across
        if OBSERVE:
            total = over_tokens(
                total, kept_ptr, kept_ptr, mask_ptr, i, j, first, end, F, F, F, F,
                BT, BI, BJ, HAS_MASK, full, PRECISION,
            )  # fmt: skip
            error = tl.load(sums_grad_ptr + 3 * F).to(tl.float32)
            total *= error * H
        write_tile(parts_ptr + 2 * F * H + 2 * F * F, total, i, j, F, F, BI, BJ, full)
    elif tile < 3 * square + slots * columns:
        tile -= 3 * square
        i, j = tile // columns, tile % columns
        total = over_tokens(
            total, scaled_ptr, narrow_ptr, mask_ptr, i, j, first, end, F, H, F, H, BT, BI, BJ, False, EVEN, PRECISION
        )
        write_tile(parts_ptr + 2 * F * H + 3 * F * F, total, i, j, F, H, BI, BJ, EVEN)
    else:
        tile -= 3 * square + slots * columns
        i, j = tile // columns, tile % columns
        total = over_tokens(
            total, dscores_ptr, unit_ptr, mask_ptr, i, j, first, end, 2 * F, H, 2 * F, H,
            BT, BI, BJ, False, EVEN, PRECISION,
        )  # fmt: skip
        write_tile(parts_ptr, total, i, j, 2 * F, H, BI, BJ, EVEN)


@triton.jit
def column_sum(parts_ptr, sum_ptr, n_parts, stride, n_cols, block, factor, BP: tl.constexpr, BC: tl.constexpr):
    """The first n_cols of [parts, stride]: partial sums put together, always in the same order, and times a factor."""
    cols = block * BC + tl.arange(0, BC)
    inside = cols < n_cols
    total = tl.zeros([BP, BC], dtype=tl.float32)
    for start in range(0, n_parts, BP):
        parts = start + tl.arange(0, BP)
        place = parts.to(tl.int64)[:, None] * stride + cols[None, :]
        total += tl.load(parts_ptr + place, mask=(parts < n_parts)[:, None] & inside[None, :], other=0.0)
    tl.store(sum_ptr + cols, (factor * tl.sum(total, 0)).to(sum_ptr.dtype.element_ty), mask=inside)


@triton.jit
def column_sums_kernel(
    factor_ptr,
    a_ptr, a_sum_ptr, a_parts, a_stride, a_cols,
    b_ptr, b_sum_ptr, b_parts, b_stride, b_cols,
    c_ptr, c_sum_ptr, c_parts, c_stride, c_cols,
    d_ptr, d_sum_ptr, d_parts, d_stride, d_cols,
    A_BP: tl.constexpr, A_BC: tl.constexpr, B_BP: tl.constexpr, B_BC: tl.constexpr,
    C_BP: tl.constexpr, C_BC: tl.constexpr, D_BP: tl.constexpr, D_BC: tl.constexpr,
    C_TIMES: tl.constexpr, D_TIMES: tl.constexpr,
):  # fmt: skip
    """Four such sums in one launch: each is too short to fill a GPU. TIMES: so many times the number at factor_ptr;
    None leaves a sum as it is."""
    block = tl.program_id(0)
    a_end = tl.cdiv(a_cols, A_BC)
    b_end = a_end + tl.cdiv(b_cols, B_BC)
    c_end = b_end + tl.cdiv(c_cols, C_BC)
    if block < a_end:
        column_sum(a_ptr, a_sum_ptr, a_parts, a_stride, a_cols, block, 1.0, A_BP, A_BC)
    elif block < b_end:
        column_sum(b_ptr, b_sum_ptr, b_parts, b_stride, b_cols, block - a_end, 1.0, B_BP, B_BC)
    elif block < c_end:
        times = C_TIMES * tl.load(factor_ptr) if C_TIMES is not None else 1.0
        column_sum(c_ptr, c_sum_ptr, c_parts, c_stride, c_cols, block - b_end, times, C_BP, C_BC)
    else:
        times = D_TIMES * tl.load(factor_ptr) if D_TIMES is not None else 1.0
        column_sum(d_ptr, d_sum_ptr, d_parts, d_stride, d_cols, block - c_end, times, D_BP, D_BC)
