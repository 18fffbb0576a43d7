"""The memory cell in Triton: one pass over the tokens forward, one backward, and the sums over tokens.

The one file that imports triton. Names and order are those of memory/cell.py, which is the reference; a tile of
BM tokens keeps its distributions over all slots on the chip, so that only z, h and the output travel. Sums over
tokens are written as one partial sum per tile and added up outside: no atomics, so that they repeat bit for bit.
"""

import triton
import triton.language as tl

# the paper's ε, and LayerNorm's
EPS = tl.constexpr(1e-8)


@triton.jit
def forward_kernel(
    h_ptr, z_ptr, lookup_ptr, transition_ptr, states_ptr, scale_ptr, shift_ptr, gram_ptr, means_ptr, tau_ptr, mask_ptr,
    out_ptr, source_ptr, delta_ptr, distance_ptr, stats_ptr, pull_ptr, slot_ptr, usage_ptr, count_ptr, error_ptr,
    n_tokens, floor, norm_eps,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
    OBSERVE: tl.constexpr, SAVE: tl.constexpr, HAS_MASK: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From z and h to the block's output; what backward and the write-back need on the side.

    lookup [2F, H] is ĉ over the folded query-key matrix; scale and shift are LN_disp's with the gate in them; means
    [F] and gram [F, F] are the means over H of the states, and the products over H of what is left of them.
    """
    compute = states_ptr.dtype.element_ty
    tile = tl.program_id(0)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < n_tokens
    rows64 = rows.to(tl.int64)
    slots = tl.arange(0, FP)
    real = slots < F

    # one product a loop: two in one were pipelined into each other, and the second came out wrong
    along = tl.zeros([BM, FP], dtype=tl.float32)
    square = tl.zeros([BM], dtype=tl.float32)
    for start in range(0, H, BH):
        cols = start + tl.arange(0, BH)
        inside = cols < H
        z = tl.load(z_ptr + rows64[:, None] * H + cols[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        wide = z.to(tl.float32)
        square += tl.sum(wide * wide, 1)
        near = tl.load(lookup_ptr + slots[None, :] * H + cols[:, None], mask=real[None, :] & inside[:, None], other=0.0)
        along = tl.dot(z.to(compute), near, along, input_precision=PRECISION)
    context = tl.zeros([BM, FP], dtype=tl.float32)
    for start in range(0, H, BH):
        cols = start + tl.arange(0, BH)
        inside = cols < H
        z = tl.load(z_ptr + rows64[:, None] * H + cols[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        asks = tl.load(
            lookup_ptr + (F + slots)[None, :] * H + cols[:, None], mask=real[None, :] & inside[:, None], other=0.0
        )
        context = tl.dot(z.to(compute), asks, context, input_precision=PRECISION)

    # source: softmax of 1 / (τ d)
    length = tl.maximum(tl.sqrt(square), EPS)
    distance = tl.maximum(1.0 - along / length[:, None], floor)
    tau = tl.load(tau_ptr).to(tl.float32)
    score = tl.where(real[None, :], 1.0 / (tau * distance), float("-inf"))
    score = tl.exp(score - tl.max(score, 1)[:, None])
    source = score / tl.sum(score, 1)[:, None]

    # target: softmax of one step over the graph plus the token's own need
    square_fits = real[:, None] & real[None, :]
    transition = tl.load(transition_ptr + slots[:, None] * F + slots[None, :], mask=square_fits, other=0.0)
    logit = tl.dot(source.to(compute), transition, input_precision=PRECISION) + context
    logit = tl.where(real[None, :], logit, float("-inf"))
    logit = tl.exp(logit - tl.max(logit, 1)[:, None])
    # subtracted before it is rounded: the two are nearly equal early in training
    delta = (logit / tl.sum(logit, 1)[:, None] - source).to(compute)

    # mean and variance of c_tgt - c_src over H are a linear and a quadratic form of delta: no look at H is needed
    square_place = slots[:, None] * F + slots[None, :]
    gram = tl.load(gram_ptr + square_place, mask=square_fits, other=0.0)
    form = tl.dot(delta, gram, input_precision=PRECISION)
    if REST:  # the gram matrix in two parts of the compute type is exact enough for centroids that are nearly alike
        rest = tl.load(gram_ptr + F * F + square_place, mask=square_fits, other=0.0)
        form += tl.dot(delta, rest, input_precision=PRECISION)
    means = tl.load(means_ptr + slots, mask=real, other=0.0)
    wide_delta = delta.to(tl.float32)
    mean = tl.sum(wide_delta * means[None, :], 1)
    rstd = tl.rsqrt(tl.maximum(tl.sum(form * wide_delta, 1), 0.0) + norm_eps)

    counts = live
    if HAS_MASK:
        counts = live & (tl.load(mask_ptr + rows, mask=live, other=0) != 0)
    fits = live[:, None] & real[None, :]
    place_f = rows64[:, None] * F + slots[None, :]
    # written before the last loop, so that little is held through it
    if OBSERVE or SAVE:
        tl.store(source_ptr + place_f, source.to(compute), mask=fits)
    if SAVE:
        tl.store(delta_ptr + place_f, delta, mask=fits)
        tl.store(distance_ptr + place_f, distance.to(compute), mask=fits)
        tl.store(stats_ptr + rows64 * 2, length, mask=live)
        tl.store(stats_ptr + rows64 * 2 + 1, rstd, mask=live)
    toward_own = tl.zeros([BM], dtype=tl.float32)
    if OBSERVE:
        # the lowest index of equals, and no slot at all for padding
        slot = tl.argmax(tl.where(real[None, :], source, -1.0), 1, tie_break_left=True)
        slot = tl.where(counts, slot, -1)
        tl.store(slot_ptr + rows, slot, mask=live)
        chosen = (slot[:, None] == slots[None, :]).to(tl.float32)
        seen = tl.where(counts[:, None], source, 0.0)
        tl.store(usage_ptr + tile * F + slots, tl.sum(seen, 0), mask=real)
        tl.store(count_ptr + tile * F + slots, tl.sum(chosen, 0), mask=real)
        toward_own = tl.sum(source * means[None, :], 1)

    pull = tl.zeros([BM, FP], dtype=tl.float32)
    error = tl.zeros([BM], dtype=tl.float32)
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
        h = tl.load(h_ptr + place, mask=both, other=0.0).to(tl.float32)
        out = (h + (move - mean[:, None]) * rstd[:, None] * scale[None, :] + shift[None, :]).to(
            out_ptr.dtype.element_ty
        )
        tl.store(out_ptr + place, out, mask=both)
        if OBSERVE:
            seen_out = tl.where(counts[:, None] & inside[None, :], out.to(tl.float32), 0.0)
            error += tl.sum(seen_out * seen_out, 1)
            pull = tl.dot(seen_out.to(compute), tl.trans(states), pull, input_precision=PRECISION)

    if OBSERVE:
        # the tracking term: |out - w C~|^2, and its pull on w, (out - w C~) C~^T, from out C~^T and C~ C~^T
        again = tl.load(source_ptr + place_f, mask=fits, other=0.0)
        gram = tl.load(gram_ptr + square_place, mask=square_fits, other=0.0)
        own = tl.dot(again, gram, input_precision=PRECISION) + toward_own[:, None] * means[None, :]
        left = tl.where(counts[:, None], pull - H * own, 0.0)
        error = error - tl.sum(again.to(tl.float32) * (pull + left), 1)
        if SAVE:
            tl.store(pull_ptr + place_f, left.to(compute), mask=fits)
        tl.store(error_ptr + tile, tl.sum(tl.where(counts, error, 0.0), 0))


@triton.jit
def slot_sum_kernel(
    out_ptr, source_ptr, slot_ptr, slot_sum_ptr, soft_sum_ptr, n_tokens, tokens_per_part,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
    SAVE: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial sums over tokens of the output: by hard slot for the write-back, by w_src for the tracking term."""
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
        hard += tl.dot(chosen, out, input_precision=PRECISION)
        if REST:  # what goes into memory is summed in two parts, so that nothing of it is rounded away
            rest = (whole.to(tl.float32) - out.to(tl.float32)).to(compute)
            hard += tl.dot(chosen, rest, input_precision=PRECISION)
        if SAVE:
            # a padding token's share of w_src counts for nothing, as its error does
            counts = (slot >= 0) & live
            source = tl.load(
                source_ptr + rows64[None, :] * F + slots[:, None], mask=counts[None, :] & real[:, None], other=0.0
            )
            soft += tl.dot(source, out, input_precision=PRECISION)
    place = part * F * H + slots[:, None] * H + cols[None, :]
    fits = real[:, None] & inside[None, :]
    tl.store(slot_sum_ptr + place, hard, mask=fits)
    if SAVE:
        tl.store(soft_sum_ptr + place, soft, mask=fits)


@triton.jit
def backward_kernel(
    grad_ptr, z_ptr, lookup_ptr, transition_ptr, states_ptr, scale_ptr, gram_ptr, means_ptr, tau_ptr, mask_ptr,
    source_ptr, delta_ptr, distance_ptr, stats_ptr, pull_ptr, usage_grad_ptr, error_grad_ptr,
    dz_ptr, narrow_ptr, scaled_ptr, bent_ptr, dscores_ptr, columns_ptr, leans_ptr,
    n_tokens, floor,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
    OBSERVE: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the tokens, and of everything whose gradient is then one product over tokens.

    LN_disp's backward is dm = r (g a - f - s u), u = r (m - μ) and m = δ C~, with f and s means over H. Only dm C~^T
    is wanted here, and it comes from (g a) C~^T and the gram matrix: m itself is never made again. For the products
    over tokens go out: narrow [N, H], g in the compute type; scaled [N, F], r δ; bent [N, F], s r^2 δ; dscores
    [N, 2F], of z's product with lookup; and partial sums columns [tiles, H] of g and leans [tiles, F] of r f δ.
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

    reach = tl.zeros([BM, FP], dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
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
        tl.store(columns_ptr + tile * H + cols, tl.sum(grad, 0), mask=inside)
        scale = tl.load(scale_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        weighted = grad * scale[None, :]
        total += tl.sum(weighted, 1)
        reach = tl.dot(weighted.to(compute), tl.trans(states), reach, input_precision=PRECISION)

    narrow_delta = tl.load(delta_ptr + place_f, mask=fits, other=0.0)
    delta = narrow_delta.to(tl.float32)
    length = tl.load(stats_ptr + rows64 * 2, mask=live, other=1.0)
    rstd = tl.load(stats_ptr + rows64 * 2 + 1, mask=live, other=0.0)
    square_fits = real[:, None] & real[None, :]
    gram = tl.load(gram_ptr + slots[:, None] * F + slots[None, :], mask=square_fits, other=0.0)
    means = tl.load(means_ptr + slots, mask=real, other=0.0)
    reach = reach - total[:, None] * means[None, :]
    bend = rstd * tl.sum(delta * reach, 1) / H  # s
    scaled = rstd[:, None] * delta
    bent = (bend * rstd)[:, None] * scaled
    ddelta = rstd[:, None] * (
        reach - (bend * rstd * H)[:, None] * tl.dot(narrow_delta, gram, input_precision=PRECISION)
    )
    tl.store(scaled_ptr + place_f, scaled.to(compute), mask=fits)
    tl.store(bent_ptr + place_f, bent.to(compute), mask=fits)
    tl.store(leans_ptr + tile * F + slots, tl.sum((total / H)[:, None] * scaled, 0), mask=real)

    source = tl.load(source_ptr + place_f, mask=fits, other=0.0).to(tl.float32)
    target = source + delta
    dlogit = target * (ddelta - tl.sum(ddelta * target, 1)[:, None])
    transition = tl.load(transition_ptr + slots[:, None] * F + slots[None, :], mask=square_fits, other=0.0)
    dsource = tl.dot(dlogit.to(compute), tl.trans(transition), input_precision=PRECISION) - ddelta
    if OBSERVE:
        pull = tl.load(pull_ptr + place_f, mask=fits, other=0.0).to(tl.float32)
        usage = tl.load(usage_grad_ptr + slots, mask=real, other=0.0).to(tl.float32)
        error = tl.load(error_grad_ptr).to(tl.float32)
        extra = usage[None, :] - 2.0 * error * pull
        if HAS_MASK:
            counts = tl.load(mask_ptr + rows, mask=live, other=0) != 0
            extra = tl.where(counts[:, None], extra, 0.0)
        dsource += extra
    dscore = source * (dsource - tl.sum(dsource * source, 1)[:, None])
    distance = tl.load(distance_ptr + place_f, mask=fits, other=1.0)
    clamped = distance <= tl.full([], floor, tl.float32).to(compute)
    distance = distance.to(tl.float32)
    tau = tl.load(tau_ptr).to(tl.float32)
    dcosine = tl.where(clamped, 0.0, dscore / (tau * distance * distance))
    along = tl.sum(dcosine * (1.0 - distance), 1) / (length * length)
    dnear = (dcosine / length[:, None]).to(compute)
    dasks = dlogit.to(compute)
    place_2f = rows64[:, None] * (2 * F) + slots[None, :]
    tl.store(dscores_ptr + place_2f, dnear, mask=fits)
    tl.store(dscores_ptr + place_2f + F, dasks, mask=fits)

    for start in range(0, H, BH):
        cols = start + tl.arange(0, BH)
        inside = cols < H
        both = live[:, None] & inside[None, :]
        place = rows64[:, None] * H + cols[None, :]
        rows_fit = real[:, None] & inside[None, :]
        near = tl.load(lookup_ptr + slots[:, None] * H + cols[None, :], mask=rows_fit, other=0.0)
        asks = tl.load(lookup_ptr + (F + slots)[:, None] * H + cols[None, :], mask=rows_fit, other=0.0)
        dz = tl.dot(dnear, near, input_precision=PRECISION)
        dz += tl.dot(dasks, asks, input_precision=PRECISION)
        z = tl.load(z_ptr + place, mask=both, other=0.0).to(tl.float32)
        tl.store(dz_ptr + place, (dz - z * along[:, None]).to(dz_ptr.dtype.element_ty), mask=both)


@triton.jit
def cross_entropy_kernel(
    logits_ptr, label_ptr, loss_ptr, n_vocab, stride, ignored,
    BV: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """One row: its loss, and in the logits' place their gradient, softmax - onehot. Past n_vocab there is nothing."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(label_ptr + row)
    counts = label != ignored
    valid = (label >= 0) & (label < n_vocab)
    # finite, so that a lane with nothing in it yet subtracts to a number
    most = tl.full([BV], -1e30, tl.float32)
    total = tl.zeros([BV], dtype=tl.float32)
    for start in range(0, n_vocab, BV):
        cols = start + tl.arange(0, BV)
        x = tl.load(logits_ptr + row * stride + cols, mask=cols < n_vocab, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, x)
        total = total * tl.exp(most - higher) + tl.exp(x - higher)
        most = higher
    top = tl.max(most, 0)
    whole = top + tl.log(tl.sum(total * tl.exp(most - top), 0))
    chosen = tl.load(logits_ptr + row * stride + tl.where(valid, label, 0)).to(tl.float32)
    # a label that is no token makes the loss what it is: not a number
    loss = tl.where(valid, whole - chosen, float("nan"))
    tl.store(loss_ptr + row, tl.where(counts, loss, 0.0))
    if SAVE:
        for start in range(0, stride, BV):
            cols = start + tl.arange(0, BV)
            inside = cols < stride
            x = tl.load(logits_ptr + row * stride + cols, mask=inside, other=0.0)
            share = tl.exp(x.to(tl.float32) - whole) - tl.where(cols == label, 1.0, 0.0)
            share = tl.where((cols < n_vocab) & counts, share, 0.0)
            tl.store(logits_ptr + row * stride + cols, share.to(x.dtype), mask=inside)
