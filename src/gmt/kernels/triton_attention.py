"""Causal attention with dropout in Triton: one pass forward, two backward, none with atomics.

Names follow the usual ones: S = q k^T, P = softmax(S), O = dropout(P) v. A tile of BM queries meets keys BN at a time
and keeps its sums on the chip; backward makes P again from the saved logarithms of the softmax's sums, in base 2.
Which weights are dropped is a hash of a seed, the head and the place in S, a product of two odd numbers: made again
wherever it is needed, and an instruction a weight, where a generator's ten rounds would cost more than the products.
"""

# a kernel's functions are no Python that a type checker could follow
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# multipliers with few biased bits in a 32-bit hash of two rounds
FIRST, SECOND = tl.constexpr(0x7FEB352D), tl.constexpr(0x846CA68B)
GOLDEN = tl.constexpr(0x9E3779B1)  # tells steps from turns
TURN = tl.constexpr(32)  # keys


@triton.jit
def mixed(x):
    """Every bit of a 32-bit number spread over all of them."""
    x = x.to(tl.uint32)
    x ^= x >> 16
    x *= FIRST
    x ^= x >> 15
    x *= SECOND
    return x ^ (x >> 16)


@triton.jit
def head_key(seed_ptr, head):
    return mixed(tl.load(seed_ptr).to(tl.uint32) ^ mixed(2 * head + 1))


@triton.jit
def query_keys(base, rows):
    """One for each query of a head: an odd number."""
    return mixed(base + rows) | 1


@triton.jit
def turn_keys(base, cols):
    return mixed((base ^ FIRST) + cols // TURN) | 1


@triton.jit
def step_keys(base, cols):
    return mixed((base ^ GOLDEN) + cols % TURN) | 1


@triton.jit
def key_keys(base, cols):
    """One for each key, odd too: of the TURN it is in and of its step there. What the queries meet step by step is then
    made once, and a new turn costs a product a query."""
    return turn_keys(base, cols) * step_keys(base, cols)


@triton.jit
def places(row_keys, base, steps, start, BN: tl.constexpr):
    """A query's key times a key's, for each place in S of this tile."""
    if BN == TURN:
        found = (row_keys * turn_keys(base, start))[:, None] * steps[None, :]
    else:
        found = row_keys[:, None] * key_keys(base, start + tl.arange(0, BN))[None, :]
    return found


@triton.jit
def kept_weights(places, threshold):
    """False for threshold in 2^32 places: the product's high bits are as good as random."""
    return places >= threshold.to(tl.uint32)


@triton.jit
def keys_and_values(k_ptr, v_ptr, cols, n_rows, stride, D: tl.constexpr, EDGE: tl.constexpr):
    place = cols[:, None] * stride + tl.arange(0, D)[None, :]
    if EDGE:  # before it all keys are there
        k = tl.load(k_ptr + place, mask=(cols < n_rows)[:, None], other=0.0)
        v = tl.load(v_ptr + place, mask=(cols < n_rows)[:, None], other=0.0)
    else:
        k, v = tl.load(k_ptr + place), tl.load(v_ptr + place)
    return k, v


@triton.jit
def scores(q, k, rows, cols, n_rows, EDGE: tl.constexpr, PRECISION: tl.constexpr):
    """S, not scaled yet; at the edge of what a query sees, what it does not see is no number."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if EDGE:
        s = tl.where((cols[None, :] <= rows[:, None]) & (cols < n_rows)[None, :], s, float("-inf"))
    return s


@triton.jit
def attend_part(
    acc, total, most, q, k_ptr, v_ptr, rows, row_keys, base, steps, first, last, n_rows, stride, scale, threshold,
    nothing, D: tl.constexpr, BN: tl.constexpr, EDGE: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for start in range(first, last, BN):
        cols = start + tl.arange(0, BN)
        k, v = keys_and_values(k_ptr, v_ptr, cols, n_rows, stride, D, EDGE)
        s = scores(q, k, rows, cols, n_rows, EDGE, PRECISION)
        higher = tl.maximum(most, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - higher[:, None])
        shrink = tl.exp2(most - higher)
        total = total * shrink + tl.sum(p, 1)
        if DROP:  # after the sum: dropout is of weights that are normalised
            p = tl.where(kept_weights(places(row_keys, base, steps, start, BN), threshold), p, nothing)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        most = higher
    return acc, total, most


@triton.jit
def attention_kernel(
    qkv_ptr, out_ptr, log_ptr, seed_ptr, n_rows, heads, scale, threshold, boost, nothing,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """qkv [B, T, 3, heads, D] -> out [B, T, heads, D], log [B, heads, T]. boost = 1 / (1 - dropout); nothing is 0, and
    no constant: the compiler would round weights before it drops them, and take the pairs apart again."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # those that see most begin first
    head = tl.program_id(1)
    batch, which = (head // heads).to(tl.int64), head % heads
    stride = 3 * heads * D
    q_ptr = qkv_ptr + batch * n_rows * stride + which * D
    k_ptr, v_ptr = q_ptr + heads * D, q_ptr + 2 * heads * D
    rows = tile * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    live = rows < n_rows
    q = tl.load(q_ptr + rows[:, None] * stride + dims[None, :], mask=live[:, None], other=0.0)
    acc = tl.zeros([BM, D], dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    most = tl.full([BM], float("-inf"), tl.float32)
    base = head_key(seed_ptr, head)
    row_keys, steps = query_keys(base, rows), step_keys(base, tl.arange(0, BN))
    acc, total, most = attend_part(
        acc, total, most, q, k_ptr, v_ptr, rows, row_keys, base, steps, 0, tile * BM, n_rows, stride,
        scale * LOG2_E, threshold, nothing, D, BN, False, DROP, PRECISION,
    )  # fmt: skip
    acc, total, most = attend_part(
        acc, total, most, q, k_ptr, v_ptr, rows, row_keys, base, steps, tile * BM,
        tl.minimum((tile + 1) * BM, n_rows), n_rows, stride, scale * LOG2_E, threshold, nothing,
        D, BN, True, DROP, PRECISION,
    )  # fmt: skip
    out = acc * (boost / total)[:, None]
    place = (batch * n_rows + rows)[:, None] * heads * D + which * D + dims[None, :]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=live[:, None])
    tl.store(log_ptr + head.to(tl.int64) * n_rows + rows, most + tl.log2(total), mask=live)


@triton.jit
def queries_part(
    dq, q, grad, log, delta, k_ptr, v_ptr, rows, row_keys, base, steps, first, last, n_rows, stride, scale,
    threshold, boost,
    D: tl.constexpr, BN: tl.constexpr, EDGE: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for start in range(first, last, BN):
        cols = start + tl.arange(0, BN)
        k, v = keys_and_values(k_ptr, v_ptr, cols, n_rows, stride, D, EDGE)
        p = tl.exp2(scores(q, k, rows, cols, n_rows, EDGE, PRECISION) * scale - log[:, None])
        dp = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
        if DROP:
            dp = tl.where(kept_weights(places(row_keys, base, steps, start, BN), threshold), dp, 0.0)
        dq = tl.dot((p * (dp * boost - delta[:, None])).to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit
def queries_backward_kernel(
    grad_ptr, qkv_ptr, out_ptr, log_ptr, seed_ptr, dqkv_ptr, delta_ptr, kept_ptr,
    n_rows, heads, scale, threshold, boost,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of q, and on the way what the keys' kernel needs of each query, [B, heads, T]: delta, the sum of out
    times its gradient, and its key."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    batch, which = (head // heads).to(tl.int64), head % heads
    stride = 3 * heads * D
    start = batch * n_rows * stride + which * D
    k_ptr, v_ptr = qkv_ptr + start + heads * D, qkv_ptr + start + 2 * heads * D
    rows = tile * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    live = rows < n_rows
    q = tl.load(qkv_ptr + start + rows[:, None] * stride + dims[None, :], mask=live[:, None], other=0.0)
    place = (batch * n_rows + rows)[:, None] * heads * D + which * D + dims[None, :]
    grad = tl.load(grad_ptr + place, mask=live[:, None], other=0.0)
    out = tl.load(out_ptr + place, mask=live[:, None], other=0.0)
    delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    log = tl.load(log_ptr + head.to(tl.int64) * n_rows + rows, mask=live, other=0.0)
    tl.store(delta_ptr + head.to(tl.int64) * n_rows + rows, delta, mask=live)
    base = head_key(seed_ptr, head)
    row_keys, steps = query_keys(base, rows), step_keys(base, tl.arange(0, BN))
    if DROP:
        tl.store(kept_ptr + head.to(tl.int64) * n_rows + rows, row_keys.to(tl.int32, bitcast=True), mask=live)
    dq = tl.zeros([BM, D], dtype=tl.float32)
    dq = queries_part(
        dq, q, grad, log, delta, k_ptr, v_ptr, rows, row_keys, base, steps, 0, tile * BM, n_rows, stride,
        scale * LOG2_E, threshold, boost, D, BN, False, DROP, PRECISION,
    )  # fmt: skip
    dq = queries_part(
        dq, q, grad, log, delta, k_ptr, v_ptr, rows, row_keys, base, steps, tile * BM,
        tl.minimum((tile + 1) * BM, n_rows), n_rows, stride, scale * LOG2_E, threshold, boost,
        D, BN, True, DROP, PRECISION,
    )  # fmt: skip
    dq_place = start + rows[:, None] * stride + dims[None, :]
    tl.store(dqkv_ptr + dq_place, (dq * scale).to(dqkv_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit
def keys_part(
    dk, dv, k, v, q_ptr, grad_ptr, log_ptr, delta_ptr, kept_ptr, cols, col_keys, first, last, n_rows,
    stride, grad_stride, scale, threshold, boost, nothing,
    D: tl.constexpr, BM: tl.constexpr, EDGE: tl.constexpr, EVEN: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Keys along the rows here: what is summed over queries then needs no transposing."""
    dims = tl.arange(0, D)
    for start in range(first, last, BM):
        rows = start + tl.arange(0, BM)
        place, grad_place = rows[:, None] * stride + dims[None, :], rows[:, None] * grad_stride + dims[None, :]
        if EVEN:
            q, grad = tl.load(q_ptr + place), tl.load(grad_ptr + grad_place)
            log, delta = tl.load(log_ptr + rows), tl.load(delta_ptr + rows)
        else:
            live = rows < n_rows
            q = tl.load(q_ptr + place, mask=live[:, None], other=0.0)
            grad = tl.load(grad_ptr + grad_place, mask=live[:, None], other=0.0)
            # past the end the logarithm is so large that no weight is left
            log = tl.load(log_ptr + rows, mask=live, other=float("inf"))
            delta = tl.load(delta_ptr + rows, mask=live, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale - log[None, :])
        if EDGE:
            p = tl.where(cols[:, None] <= rows[None, :], p, 0.0)
        dp = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
        if DROP:
            row_keys = tl.load(kept_ptr + rows, mask=rows < n_rows, other=0).to(tl.uint32, bitcast=True)
            kept = kept_weights(col_keys[:, None] * row_keys[None, :], threshold)
            dp = tl.where(kept, dp, 0.0)
            dropped = tl.where(kept, p, nothing)
        else:
            dropped = p
        dv = tl.dot(dropped.to(grad.dtype), grad, dv, input_precision=PRECISION)
        dk = tl.dot((p * (dp * boost - delta[None, :])).to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def keys_backward_kernel(
    grad_ptr, qkv_ptr, log_ptr, delta_ptr, kept_ptr, seed_ptr, dqkv_ptr,
    n_rows, heads, scale, threshold, boost, nothing,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of k and v. EVEN: the queries fill their tiles."""
    tile = tl.program_id(0)  # the first keys are seen by most
    head = tl.program_id(1)
    batch, which = (head // heads).to(tl.int64), head % heads
    stride = 3 * heads * D
    start = batch * n_rows * stride + which * D
    cols = tile * BN + tl.arange(0, BN)
    dims = tl.arange(0, D)
    inside = cols < n_rows
    place = start + heads * D + cols[:, None] * stride + dims[None, :]
    k = tl.load(qkv_ptr + place, mask=inside[:, None], other=0.0)
    v = tl.load(qkv_ptr + place + heads * D, mask=inside[:, None], other=0.0)
    col_keys = key_keys(head_key(seed_ptr, head), cols)
    dk = tl.zeros([BN, D], dtype=tl.float32)
    dv = tl.zeros([BN, D], dtype=tl.float32)
    q_ptr, rows_ptr = qkv_ptr + start, grad_ptr + batch * n_rows * heads * D + which * D
    log_ptr += head.to(tl.int64) * n_rows
    delta_ptr += head.to(tl.int64) * n_rows
    kept_ptr += head.to(tl.int64) * n_rows
    edge = tl.cdiv((tile + 1) * BN, BM) * BM  # from here on every query sees all of the tile
    dk, dv = keys_part(
        dk, dv, k, v, q_ptr, rows_ptr, log_ptr, delta_ptr, kept_ptr, cols, col_keys, tile * BN // BM * BM,
        tl.minimum(edge, n_rows), n_rows, stride, heads * D, scale * LOG2_E, threshold, boost, nothing,
        D, BM, True, EVEN, DROP, PRECISION,
    )  # fmt: skip
    dk, dv = keys_part(
        dk, dv, k, v, q_ptr, rows_ptr, log_ptr, delta_ptr, kept_ptr, cols, col_keys, edge, n_rows, n_rows,
        stride, heads * D, scale * LOG2_E, threshold, boost, nothing, D, BM, False, EVEN, DROP, PRECISION,
    )  # fmt: skip
    tl.store(dqkv_ptr + place, (dk * scale).to(dqkv_ptr.dtype.element_ty), mask=inside[:, None])
    tl.store(dqkv_ptr + place + heads * D, (dv * boost).to(dqkv_ptr.dtype.element_ty), mask=inside[:, None])
