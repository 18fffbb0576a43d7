"""The memory cell in Triton: one pass over the tokens forward, one backward, and the sums over tokens.

Names and order are those of memory/cell.py, which is the reference; a tile of
BM tokens keeps its distributions over all slots on the chip, so that only the residual stream travels. The residual
sum before the cell and LN2 are made here too: h and z are never written. Sums over tokens are written as one partial
sum per tile and added up outside: no atomics, so that they repeat bit for bit.

Rows of `lookup` [2F, H] alternate: ĉ of a slot, then its row of the folded query-key matrix. One product then gives
both scores of a slot side by side, and they part without leaving their thread. `states` [F, H] are C~ with each row's
mean taken out: what LN_disp's own centring would do to their sum.
"""

import triton
import triton.language as tl

# the paper's ε
EPS = tl.constexpr(1e-8)


@triton.jit
def residual(x_ptr, update_ptr, place, fits, HAS_UPDATE: tl.constexpr):
    """h = x + what attention gave, rounded as the plain sum is, then in float32."""
    h = tl.load(x_ptr + place, mask=fits, other=0.0)
    if HAS_UPDATE:
        h = (h.to(tl.float32) + tl.load(update_ptr + place, mask=fits, other=0.0).to(tl.float32)).to(h.dtype)
    return h.to(tl.float32)


@triton.jit
def forward_kernel(
    x_ptr, update_ptr, weight_ptr, bias_ptr, lookup_ptr, transition_ptr, states_ptr, scale_ptr, shift_ptr,
    gram_ptr, rest_ptr, means_ptr, tau_ptr, mask_ptr,
    out_ptr, kept_ptr, stats_ptr, slot_ptr, sums_ptr,
    n_tokens, floor, norm_eps, move_eps,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr,
    HAS_UPDATE: tl.constexpr, OBSERVE: tl.constexpr, SAVE: tl.constexpr, HAS_MASK: tl.constexpr, REST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From the residual stream to the block's output; what backward and the write-back need on the side.

    scale and shift are LN_disp's with the gate in them; gram [F, F] are the mean products over H of the states, rest
    what the compute type leaves out of them; means [F] what was taken out of the states. kept [5, N, F] takes w_src,
    w_tgt - w_src, the distance, the context scores and the tracking term's pull; stats [6, N] see below; sums
    [tiles, 3F + 1] usage, counts, the tracking term's pull on the means, its error.
    """
    compute = states_ptr.dtype.element_ty
    tile = tl.program_id(0)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < n_tokens
    rows64 = rows.to(tl.int64)
    slots = tl.arange(0, FP)
    real = slots < F

    # LN2's statistics, put together chunk by chunk: no difference of large numbers
    mean = tl.zeros([BM], dtype=tl.float32)
    spread = tl.zeros([BM], dtype=tl.float32)
    for start in tl.range(0, H, BS, num_stages=2):
        cols = start + tl.arange(0, BS)
        inside = cols < H
        both = live[:, None] & inside[None, :]
        h = residual(x_ptr, update_ptr, rows64[:, None] * H + cols[None, :], both, HAS_UPDATE)
        width = tl.minimum(H - start, BS)
        part = tl.sum(h, 1) / width
        off = tl.where(inside[None, :], h - part[:, None], 0.0)
        gap = part - mean
        mean += gap * width / (start + width)
        spread += tl.sum(off * off, 1) + gap * gap * start * width / (start + width)
    rstd = tl.rsqrt(spread / H + norm_eps)

    pairs = tl.arange(0, 2 * FP)
    scores = tl.zeros([BM, 2 * FP], dtype=tl.float32)
    square = tl.zeros([BM], dtype=tl.float32)
    on_weight = tl.zeros([BM], dtype=tl.float32)
    on_bias = tl.zeros([BM], dtype=tl.float32)
    for start in range(0, H, BH):
        cols = start + tl.arange(0, BH)
        inside = cols < H
        both = live[:, None] & inside[None, :]
        h = residual(x_ptr, update_ptr, rows64[:, None] * H + cols[None, :], both, HAS_UPDATE)
        weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        z = (h - mean[:, None]) * rstd[:, None] * weight[None, :] + bias[None, :]
        square += tl.sum(z * z, 1)
        if SAVE:
            on_weight += tl.sum(z * weight[None, :], 1)
            on_bias += tl.sum(z * bias[None, :], 1)
        table = tl.load(
            lookup_ptr + pairs[None, :] * H + cols[:, None], mask=(pairs < 2 * F)[None, :] & inside[:, None], other=0.0
        )
        scores = tl.dot(z.to(compute), table, scores, input_precision=PRECISION)
    along, context = tl.split(tl.reshape(scores, [BM, FP, 2]))

    # source: softmax of 1 / (τ d)
    length = tl.maximum(tl.sqrt(square), EPS)
    distance = tl.maximum(1.0 - along / length[:, None], floor)
    tau = tl.load(tau_ptr).to(tl.float32)
    score = tl.where(real[None, :], 1.0 / (tau * distance), float("-inf"))
    score = tl.exp(score - tl.max(score, 1)[:, None])
    source = score / tl.sum(score, 1)[:, None]

    # target: softmax of one step over the graph plus the token's own need
    square_place = slots[:, None] * F + slots[None, :]
    square_fits = real[:, None] & real[None, :]
    transition = tl.load(transition_ptr + square_place, mask=square_fits, other=0.0)
    logit = tl.dot(source.to(compute), transition, input_precision=PRECISION) + context
    logit = tl.where(real[None, :], logit, float("-inf"))
    logit = tl.exp(logit - tl.max(logit, 1)[:, None])
    # subtracted before it is rounded: the two are nearly equal early in training
    delta = (logit / tl.sum(logit, 1)[:, None] - source).to(compute)

    # the variance of c_tgt - c_src over H is a quadratic form of delta: no look at H is needed
    gram = tl.load(gram_ptr + square_place, mask=square_fits, other=0.0)
    form = tl.dot(delta, gram, input_precision=PRECISION)
    if REST:  # the gram matrix in two parts of the compute type is exact enough for centroids that are nearly alike
        rest = tl.load(rest_ptr + square_place, mask=square_fits, other=0.0)
        form += tl.dot(delta, rest, input_precision=PRECISION)
    stretch = tl.rsqrt(tl.maximum(tl.sum(form * delta.to(tl.float32), 1), 0.0) + move_eps)

    counts = live
    if HAS_MASK:
        counts = live & (tl.load(mask_ptr + rows, mask=live, other=0) != 0)
    fits = live[:, None] & real[None, :]
    place_f = rows64[:, None] * F + slots[None, :]
    plane = tl.full([], F, tl.int64) * n_tokens
    # written before the last loop, so that little is held through it
    if SAVE:
        tl.store(kept_ptr + place_f, source.to(compute), mask=fits)
        tl.store(kept_ptr + plane + place_f, delta, mask=fits)
        tl.store(kept_ptr + 2 * plane + place_f, distance.to(compute), mask=fits)
        tl.store(kept_ptr + 3 * plane + place_f, context.to(compute), mask=fits)
        tl.store(stats_ptr + rows, mean, mask=live)
        tl.store(stats_ptr + n_tokens + rows, rstd, mask=live)
        tl.store(stats_ptr + 2 * n_tokens + rows, length, mask=live)
        tl.store(stats_ptr + 3 * n_tokens + rows, stretch, mask=live)
        tl.store(stats_ptr + 4 * n_tokens + rows, on_weight, mask=live)
        tl.store(stats_ptr + 5 * n_tokens + rows, on_bias, mask=live)
    narrow_source = source.to(compute)
    if OBSERVE:
        # the lowest index of equals, and no slot at all for padding
        slot = tl.argmax(tl.where(real[None, :], source, -1.0), 1, tie_break_left=True)
        slot = tl.where(counts, slot, -1)
        tl.store(slot_ptr + rows, slot, mask=live)
        chosen = (slot[:, None] == slots[None, :]).to(tl.float32)
        seen = tl.where(counts[:, None], source, 0.0)
        tl.store(sums_ptr + tile * (3 * F + 1) + slots, tl.sum(seen, 0), mask=real)
        tl.store(sums_ptr + tile * (3 * F + 1) + F + slots, tl.sum(chosen, 0), mask=real)

    pull = tl.zeros([BM, FP], dtype=tl.float32)
    error = tl.zeros([BM], dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    for start in range(0, H, BH):
        cols = start + tl.arange(0, BH)
        inside = cols < H
        both = live[:, None] & inside[None, :]
        place = rows64[:, None] * H + cols[None, :]
        states = tl.load(
            states_ptr + slots[:, None] * H + cols[None, :], mask=real[:, None] & inside[None, :], other=0.0
        )
        move = tl.dot(delta, states, input_precision=PRECISION)
        scale = tl.load(scale_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        h = residual(x_ptr, update_ptr, place, both, HAS_UPDATE)
        out = (h + move * stretch[:, None] * scale[None, :] + shift[None, :]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place, out, mask=both)
        if OBSERVE:
            seen_out = tl.where(counts[:, None] & inside[None, :], out.to(tl.float32), 0.0)
            error += tl.sum(seen_out * seen_out, 1)
            total += tl.sum(seen_out, 1)
            pull = tl.dot(seen_out.to(compute), tl.trans(states), pull, input_precision=PRECISION)

    if OBSERVE:
        # the tracking term: |out - w C~|^2 and its pull on w, (out - w C~) C~^T, from out C~^T and C~ C~^T, where
        # C~ = states + means
        means = tl.load(means_ptr + slots, mask=real, other=0.0)
        wide_source = narrow_source.to(tl.float32)
        lean = tl.sum(wide_source * means[None, :], 1)
        gram = tl.load(gram_ptr + square_place, mask=square_fits, other=0.0)
        own = tl.dot(narrow_source, gram, input_precision=PRECISION) + lean[:, None] * means[None, :]
        pull += total[:, None] * means[None, :]
        left = tl.where(counts[:, None], pull - H * own, 0.0)
        error = error - tl.sum(wide_source * (pull + left), 1)
        if SAVE:
            tl.store(kept_ptr + 4 * plane + place_f, left.to(compute), mask=fits)
        tilt = tl.where(counts, 2.0 * (H * lean - total), 0.0)
        tl.store(sums_ptr + tile * (3 * F + 1) + 2 * F + slots, tl.sum(wide_source * tilt[:, None], 0), mask=real)
        tl.store(sums_ptr + tile * (3 * F + 1) + 3 * F, tl.sum(tl.where(counts, error, 0.0), 0))


@triton.jit
def slot_sum_kernel(
    out_ptr, source_ptr, slot_ptr, sums_ptr, n_tokens, tokens_per_part,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
    SAVE: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial sums over tokens of the output, [parts, 2, F, H]: by hard slot for the write-back, by w_src for the
    tracking term."""
    compute = source_ptr.dtype.element_ty
    cols = tl.program_id(0) * BH + tl.arange(0, BH)
    part = tl.program_id(1)
    inside = cols < H
    slots = tl.arange(0, FP)
    real = slots < F
    hard = tl.zeros([FP, BH], dtype=tl.float32)
    soft = tl.zeros([FP, BH], dtype=tl.float32)
    first = part * tokens_per_part
    end = tl.minimum(first + tokens_per_part, n_tokens)  # a tile must not reach into the next part
    for start in range(first, first + tokens_per_part, BT):
        rows = start + tl.arange(0, BT)
        live = rows < end
        rows64 = rows.to(tl.int64)
        whole = tl.load(out_ptr + rows64[:, None] * H + cols[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        out = whole.to(compute)
        slot = tl.load(slot_ptr + rows, mask=live, other=-1)
        chosen = (slots[:, None] == slot[None, :]).to(compute)
        hard = tl.dot(chosen, out, hard, input_precision=PRECISION)
        if REST:  # what goes into memory is summed in two parts, so that nothing of it is rounded away
            rest = (whole.to(tl.float32) - out.to(tl.float32)).to(compute)
            hard = tl.dot(chosen, rest, hard, input_precision=PRECISION)
        if SAVE:
            # a padding token's share of w_src counts for nothing, as its error does
            counts = (slot >= 0) & live
            source = tl.load(
                source_ptr + rows64[None, :] * F + slots[:, None], mask=counts[None, :] & real[:, None], other=0.0
            )
            soft = tl.dot(source, out, soft, input_precision=PRECISION)
    place = part.to(tl.int64) * (2 * F * H) + slots[:, None] * H + cols[None, :]
    fits = real[:, None] & inside[None, :]
    tl.store(sums_ptr + place, hard, mask=fits)
    tl.store(sums_ptr + F * H + place, soft, mask=fits)


@triton.jit
def backward_kernel(
    grad_ptr, x_ptr, update_ptr, weight_ptr, bias_ptr, lookup_ptr, beside_ptr, transition_ptr, states_ptr, scale_ptr,
    gram_ptr, tau_ptr, mask_ptr, kept_ptr, stats_ptr, sums_grad_ptr,
    dx_ptr, dupdate_ptr, z_ptr, narrow_ptr, scaled_ptr, bent_ptr, dscores_ptr, columns_ptr,
    n_tokens, floor,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
    HAS_UPDATE: tl.constexpr, OBSERVE: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the tokens, and of everything whose gradient is then one product over tokens.

    The displacement is r (δ C) a + b with r = (δ G δ^T + ε)^-1/2; C, G, a and b are states, gram, scale and shift.
    LN2's backward takes two means over H of dz, and those too are forms of what is at hand: `beside` [2, 2F] are the
    products of lookup with LN2's weight and bias. For the products over tokens go out: z and g in the compute type
    [N, H]; scaled [N, F], r δ; bent [2, N, F], whose products with w_src and δ make the gradient of G; dscores
    [N, 2F]; and partial sums columns [tiles, 3, H] of g, dz ẑ and dz.
    """
    compute = states_ptr.dtype.element_ty
    tile = tl.program_id(0)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < n_tokens
    rows64 = rows.to(tl.int64)
    slots = tl.arange(0, FP)
    real = slots < F
    fits = live[:, None] & real[None, :]
    place_f = rows64[:, None] * F + slots[None, :]
    plane = tl.full([], F, tl.int64) * n_tokens

    reach = tl.zeros([BM, FP], dtype=tl.float32)
    for start in range(0, H, BH):
        cols = start + tl.arange(0, BH)
        inside = cols < H
        both = live[:, None] & inside[None, :]
        place = rows64[:, None] * H + cols[None, :]
        states = tl.load(
            states_ptr + slots[:, None] * H + cols[None, :], mask=real[:, None] & inside[None, :], other=0.0
        )
        grad = tl.load(grad_ptr + place, mask=both, other=0.0).to(tl.float32)
        tl.store(narrow_ptr + place, grad.to(compute), mask=both)
        tl.store(columns_ptr + tile * (3 * H) + cols, tl.sum(grad, 0), mask=inside)
        scale = tl.load(scale_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        reach = tl.dot((grad * scale[None, :]).to(compute), tl.trans(states), reach, input_precision=PRECISION)

    # through the displacement's norm: r itself moves with δ
    narrow_delta = tl.load(kept_ptr + plane + place_f, mask=fits, other=0.0)
    delta = narrow_delta.to(tl.float32)
    stretch = tl.load(stats_ptr + 3 * n_tokens + rows, mask=live, other=0.0)
    square_fits = real[:, None] & real[None, :]
    square_place = slots[:, None] * F + slots[None, :]
    gram = tl.load(gram_ptr + square_place, mask=square_fits, other=0.0)
    bend = stretch * stretch * stretch * tl.sum(delta * reach, 1)
    ddelta = stretch[:, None] * reach - bend[:, None] * tl.dot(narrow_delta, gram, input_precision=PRECISION)
    tl.store(scaled_ptr + place_f, (stretch[:, None] * delta).to(compute), mask=fits)
    tl.store(bent_ptr + plane + place_f, (-0.5 * bend[:, None] * delta).to(compute), mask=fits)

    source = tl.load(kept_ptr + place_f, mask=fits, other=0.0).to(tl.float32)
    target = source + delta
    dlogit = target * (ddelta - tl.sum(ddelta * target, 1)[:, None])
    transition = tl.load(transition_ptr + square_place, mask=square_fits, other=0.0)
    dsource = tl.dot(dlogit.to(compute), tl.trans(transition), input_precision=PRECISION) - ddelta
    if OBSERVE:
        pull = tl.load(kept_ptr + 4 * plane + place_f, mask=fits, other=0.0).to(tl.float32)
        usage = tl.load(sums_grad_ptr + slots, mask=real, other=0.0).to(tl.float32)
        error = tl.load(sums_grad_ptr + 3 * F).to(tl.float32)
        extra = usage[None, :] - 2.0 * error * pull
        counted = (error * H) * source
        if HAS_MASK:
            counts = tl.load(mask_ptr + rows, mask=live, other=0) != 0
            extra = tl.where(counts[:, None], extra, 0.0)
            counted = tl.where(counts[:, None], counted, 0.0)
        dsource += extra
        tl.store(bent_ptr + place_f, counted.to(compute), mask=fits)
    dscore = source * (dsource - tl.sum(dsource * source, 1)[:, None])
    distance = tl.load(kept_ptr + 2 * plane + place_f, mask=fits, other=1.0)
    clamped = distance <= tl.full([], floor, tl.float32).to(compute)
    distance = distance.to(tl.float32)
    tau = tl.load(tau_ptr).to(tl.float32)
    length = tl.load(stats_ptr + 2 * n_tokens + rows, mask=live, other=1.0)
    dcosine = tl.where(clamped, 0.0, dscore / (tau * distance * distance))
    along = tl.sum(dcosine * (1.0 - distance), 1) / (length * length)
    dnear = (dcosine / length[:, None]).to(compute)
    dasks = dlogit.to(compute)
    dscores = tl.reshape(tl.join(dnear, dasks), [BM, 2 * FP])
    pairs = tl.arange(0, 2 * FP)
    pair_real = pairs < 2 * F
    tl.store(dscores_ptr + rows64[:, None] * (2 * F) + pairs[None, :], dscores, mask=live[:, None] & pair_real[None, :])

    # the two means over H that LN2's backward takes out; the length of z has no say in the cosine, so that of the
    # products with z itself only the context's are left
    wide_near, wide_asks = dnear.to(tl.float32), dasks.to(tl.float32)
    context = tl.load(kept_ptr + 3 * plane + place_f, mask=fits, other=0.0).to(tl.float32)
    near_weight = tl.load(beside_ptr + 2 * slots, mask=real, other=0.0)
    asks_weight = tl.load(beside_ptr + 2 * slots + 1, mask=real, other=0.0)
    near_bias = tl.load(beside_ptr + 2 * F + 2 * slots, mask=real, other=0.0)
    asks_bias = tl.load(beside_ptr + 2 * F + 2 * slots + 1, mask=real, other=0.0)
    on_weight = tl.load(stats_ptr + 4 * n_tokens + rows, mask=live, other=0.0)
    on_bias = tl.load(stats_ptr + 5 * n_tokens + rows, mask=live, other=0.0)
    flat = tl.sum(wide_near * near_weight[None, :] + wide_asks * asks_weight[None, :], 1) - along * on_weight
    tilted = tl.sum(wide_asks * (context - asks_bias[None, :]) - wide_near * near_bias[None, :], 1) + along * on_bias
    flat, tilted = flat / H, tilted / H

    mean = tl.load(stats_ptr + rows, mask=live, other=0.0)
    rstd = tl.load(stats_ptr + n_tokens + rows, mask=live, other=0.0)
    # what feeds no product is not fetched ahead by the compiler: so by hand, a chunk before it is needed
    first = tl.arange(0, BH)
    ahead = live[:, None] & (first < H)[None, :]
    next_h = residual(x_ptr, update_ptr, rows64[:, None] * H + first[None, :], ahead, HAS_UPDATE)
    next_grad = tl.load(grad_ptr + rows64[:, None] * H + first[None, :], mask=ahead, other=0.0)
    for start in range(0, H, BH):
        cols = start + tl.arange(0, BH)
        inside = cols < H
        both = live[:, None] & inside[None, :]
        place = rows64[:, None] * H + cols[None, :]
        h, grad = next_h, next_grad.to(tl.float32)
        ahead = live[:, None] & (cols + BH < H)[None, :]
        next_h = residual(x_ptr, update_ptr, place + BH, ahead, HAS_UPDATE)
        next_grad = tl.load(grad_ptr + place + BH, mask=ahead, other=0.0)
        table = tl.load(
            lookup_ptr + pairs[:, None] * H + cols[None, :], mask=pair_real[:, None] & inside[None, :], other=0.0
        )
        dz = tl.dot(dscores, table, input_precision=PRECISION)
        weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        unit = tl.where(both, (h - mean[:, None]) * rstd[:, None], 0.0)
        z = unit * weight[None, :] + bias[None, :]
        dz -= z * along[:, None]
        tl.store(z_ptr + place, z.to(compute), mask=both)
        tl.store(columns_ptr + tile * (3 * H) + H + cols, tl.sum(dz * unit, 0), mask=inside)
        tl.store(columns_ptr + tile * (3 * H) + 2 * H + cols, tl.sum(dz, 0), mask=inside)
        dx = grad + rstd[:, None] * (dz * weight[None, :] - flat[:, None] - unit * tilted[:, None])
        tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=both)
        if HAS_UPDATE:
            tl.store(dupdate_ptr + place, dx.to(dupdate_ptr.dtype.element_ty), mask=both)
