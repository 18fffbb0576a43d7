"""The memory cell in Triton: routing and moving forward, the same backward, and the sums by slot.

Names and order are those of memory/cell.py, which is the reference. LN2 goes row by row (triton_norm.py); these take a
tile of BM tokens. What travels between them is as wide as the slots, and not as the hidden state: scores, w_src and
w_tgt - w_src. Products that are nothing but that are left to torch (operators.py). Sums over tokens are written as one
partial sum per program and added up outside (triton_sums.py): no atomics, so that they repeat bit for bit.

LN2 is z = u a + b, with u of mean 0 and deviation 1. Only u is written, and kept for backward: `lookup` [2F, H], which
is ĉ over the folded query-key matrix, has a in it, and `offset` [2F] is what b adds to the scores. `states` [F, H] are
C~ with each row's mean taken out: what LN_disp's own centring would do to their sum.
"""

import triton
import triton.language as tl

from gmt.kernels.triton_base import load, residual, store


@triton.jit
def only(score, real, EVEN: tl.constexpr):
    """Scores of slots that are there; the others are -inf."""
    if not EVEN:
        score = tl.where(real, score, float("-inf"))
    return score


@triton.jit
def route_kernel(
    scores_ptr, offset_ptr, transition_ptr, gram_ptr, rest_ptr, tau_ptr, mask_ptr, kept_ptr, stats_ptr, slot_ptr,
    sums_ptr, n_tokens, floor, move_eps,
    F: tl.constexpr, FP: tl.constexpr, BM: tl.constexpr, OBSERVE: tl.constexpr, SAVE: tl.constexpr,
    HAS_MASK: tl.constexpr, REST: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From a token's products with lookup to where it is and where it goes.

    scores [N, 2F] are u lookup^T, and with offset along each centroid and with what it asks for; gram [F, F] are the
    mean products over H of the states, rest what the compute type leaves out of them. kept [N, F] takes w_src, then
    w_tgt - w_src and, for backward, the distance and, fifth, w_tgt; stats [3, N], after norm_kernel's two, the factor
    that LN_disp stretches by; sums [tiles, 2F] usage and counts.
    """
    compute = kept_ptr.dtype.element_ty
    tile = tl.program_id(0)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < n_tokens
    begin = tile.to(tl.int64) * BM
    lines = tl.arange(0, BM)  # of what begins at the tile: 32 bits are enough for them, and half the registers
    scores_ptr, kept_ptr = scores_ptr + begin * 2 * F, kept_ptr + begin * F
    slots = tl.arange(0, FP)
    real = slots < F
    fits = live[:, None] & real[None, :]
    place_f = lines[:, None] * F + slots[None, :]
    place_2f = lines[:, None] * (2 * F) + slots[None, :]
    plane = tl.full([], F, tl.int64) * n_tokens
    square_place = slots[:, None] * F + slots[None, :]
    square_fits = real[:, None] & real[None, :]

    # Registers bind: a tile [BM, FP] fills a quarter of them. So nothing is made before it is needed, and what is
    # finished is written at once. A product with nothing: what comes out of one lies as the next product wants it.
    along = load(scores_ptr + place_2f, fits, EVEN) + tl.load(offset_ptr + slots, mask=real, other=0.0)[None, :]
    along = tl.dot(tl.zeros([BM, 16], compute), tl.zeros([16, FP], compute), along, input_precision=PRECISION)

    # source: softmax of 1 / (τ d). Times 1 / x instead of over x: an inverse takes few instructions, a division ten.
    length = tl.load(stats_ptr + n_tokens + rows, mask=live, other=1.0)
    # added to, not subtracted from: a sign turned in a product's result is an integer instruction, and where the sum
    # began at zero and its loop was unrolled, ptxas 12.8 and 12.9 take such a result to be that zero
    distance = tl.maximum(along * (-1.0 / length)[:, None] + 1.0, floor)
    if SAVE:
        store(kept_ptr + 2 * plane + place_f, distance.to(compute), fits, EVEN)
    tau = tl.load(tau_ptr).to(tl.float32)
    score = only(1.0 / (tau * distance), real[None, :], EVEN)
    score = tl.exp(score - tl.max(score, 1)[:, None])
    source = score * (1.0 / tl.sum(score, 1))[:, None]
    narrow_source = source.to(compute)
    store(kept_ptr + place_f, narrow_source, fits, EVEN)
    if OBSERVE:
        counts = live
        if HAS_MASK:
            counts = live & (tl.load(mask_ptr + rows, mask=live, other=0) != 0)
        # the lowest index of equals, and no slot at all for padding
        slot = tl.argmax(source if EVEN else tl.where(real[None, :], source, -1.0), 1, tie_break_left=True)
        slot = tl.where(counts, slot, -1)
        tl.store(slot_ptr + rows, slot, mask=live)
        chosen = (slot[:, None] == slots[None, :]).to(tl.float32)
        seen = tl.where(counts[:, None], source, 0.0)
        tl.store(sums_ptr + tile * (2 * F) + slots, tl.sum(seen, 0), mask=real)
        tl.store(sums_ptr + tile * (2 * F) + F + slots, tl.sum(chosen, 0), mask=real)

    # target: softmax of one step over the graph plus the token's own need
    transition = load(transition_ptr + square_place, square_fits, EVEN)
    asks = tl.load(offset_ptr + F + slots, mask=real, other=0.0)
    logit = tl.dot(narrow_source, transition, input_precision=PRECISION)
    logit += load(scores_ptr + place_2f + F, fits, EVEN) + asks[None, :]
    logit = only(logit, real[None, :], EVEN)
    logit = tl.exp(logit - tl.max(logit, 1)[:, None])
    target = logit * (1.0 / tl.sum(logit, 1))[:, None]
    if SAVE:
        store(kept_ptr + 4 * plane + place_f, target.to(compute), fits, EVEN)
    # subtracted before it is rounded: the two are nearly equal early in training
    delta = (target - source).to(compute)
    store(kept_ptr + plane + place_f, delta, fits, EVEN)

    # the variance of c_tgt - c_src over H is a quadratic form of delta: no look at H is needed
    form = tl.zeros([BM, FP], dtype=tl.float32)
    if REST:  # the gram matrix in two parts of the compute type is exact enough for centroids that are nearly alike
        rest = load(rest_ptr + square_place, square_fits, EVEN)
        form = tl.dot(delta, rest, form, input_precision=PRECISION)
    gram = load(gram_ptr + square_place, square_fits, EVEN)
    form = tl.dot(delta, gram, form, input_precision=PRECISION)
    stretch = tl.rsqrt(tl.maximum(tl.sum(form * delta.to(tl.float32), 1), 0.0) + move_eps)
    tl.store(stats_ptr + 2 * n_tokens + rows, stretch, mask=live)


@triton.jit
def move_kernel(
    x_ptr, update_ptr, states_ptr, scale_ptr, shift_ptr, gram_ptr, means_ptr, mask_ptr, out_ptr, kept_ptr, stats_ptr,
    sums_ptr, n_tokens,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
    HAS_UPDATE: tl.constexpr, OBSERVE: tl.constexpr, SAVE: tl.constexpr, HAS_MASK: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The residual stream moved from source to target, and the tracking term.

    scale and shift are LN_disp's with the gate in them; means [F] what was taken out of the states. kept's fourth
    [N, F] takes the tracking term's pull; sums [tiles, F + 1] its pull on the means, and its error.
    """
    compute = states_ptr.dtype.element_ty
    tile = tl.program_id(0)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < n_tokens
    begin = tile.to(tl.int64) * BM
    lines = tl.arange(0, BM)
    x_ptr, update_ptr, out_ptr = x_ptr + begin * H, update_ptr + begin * H, out_ptr + begin * H
    kept_ptr += begin * F
    slots = tl.arange(0, FP)
    real = slots < F
    fits = live[:, None] & real[None, :]
    place_f = lines[:, None] * F + slots[None, :]
    plane = tl.full([], F, tl.int64) * n_tokens

    pull = tl.zeros([BM, FP], dtype=tl.float32)
    squares = tl.zeros([BM, BH], dtype=tl.float32)
    plain = tl.zeros([BM, BH], dtype=tl.float32)
    counts = live
    if HAS_MASK:
        counts = live & (tl.load(mask_ptr + rows, mask=live, other=0) != 0)
    delta = load(kept_ptr + plane + place_f, fits, EVEN)
    stretch = tl.load(stats_ptr + 2 * n_tokens + rows, mask=live, other=0.0)
    for start in range(0, H, BH):
        cols = start + tl.arange(0, BH)
        inside = cols < H
        both = live[:, None] & inside[None, :]
        place = lines[:, None] * H + cols[None, :]
        states = load(states_ptr + slots[:, None] * H + cols[None, :], real[:, None] & inside[None, :], EVEN)
        move = tl.dot(delta, states, input_precision=PRECISION)
        scale = tl.load(scale_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        h = residual(x_ptr, update_ptr, place, both, HAS_UPDATE, EVEN)
        out = (h + move * stretch[:, None] * scale[None, :] + shift[None, :]).to(out_ptr.dtype.element_ty)
        store(out_ptr + place, out, both, EVEN)
        if OBSERVE:
            seen_out = out.to(tl.float32)
            if HAS_MASK or not EVEN:
                seen_out = tl.where(counts[:, None] & inside[None, :], seen_out, 0.0)
            squares += seen_out * seen_out
            plain += seen_out
            pull = tl.dot(seen_out.to(compute), tl.trans(states), pull, input_precision=PRECISION)

    # the tracking term: |out - w C~|^2 and its pull on w, (out - w C~) C~^T, from out C~^T and C~ C~^T, where
    # C~ = states + means
    if OBSERVE:
        narrow_source = load(kept_ptr + place_f, fits, EVEN)
        source = narrow_source.to(tl.float32)
        square_fits = real[:, None] & real[None, :]
        gram = load(gram_ptr + slots[:, None] * F + slots[None, :], square_fits, EVEN)
        own = tl.dot(narrow_source, gram, input_precision=PRECISION) * H
        pull -= own
        means = tl.load(means_ptr + slots, mask=real, other=0.0)
        lean, total = tl.sum(source * means[None, :], 1), tl.sum(plain, 1)
        error = tl.sum(squares, 1) - tl.sum(source * (2.0 * pull + own), 1) - (2.0 * total - H * lean) * lean
        left = tl.where(counts[:, None], pull + (total - H * lean)[:, None] * means[None, :], 0.0)
        if SAVE:
            store(kept_ptr + 3 * plane + place_f, left.to(compute), fits, EVEN)
        tilt = tl.where(counts, 2.0 * (H * lean - total), 0.0)
        tl.store(sums_ptr + tile * (F + 1) + slots, tl.sum(source * tilt[:, None], 0), mask=real)
        tl.store(sums_ptr + tile * (F + 1) + F, tl.sum(tl.where(counts, error, 0.0), 0))


@triton.jit
def slot_sum_kernel(
    out_ptr, source_ptr, slot_ptr, sums_ptr, n_tokens, tokens_per_part,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
    SAVE: tl.constexpr, HAS_MASK: tl.constexpr, REST: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
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
    for start in range(first, end, BT):
        rows = start + tl.arange(0, BT)
        live = rows < end
        rows64 = rows.to(tl.int64)
        whole = load(out_ptr + rows64[:, None] * H + cols[None, :], live[:, None] & inside[None, :], EVEN)
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
            place = rows64[None, :] * F + slots[:, None]
            source = load(source_ptr + place, counts[None, :] & real[:, None], EVEN and not HAS_MASK)
            soft = tl.dot(source, out, soft, input_precision=PRECISION)
    place = part.to(tl.int64) * (2 * F * H) + slots[:, None] * H + cols[None, :]
    fits = real[:, None] & inside[None, :]
    tl.store(sums_ptr + place, hard, mask=fits)
    tl.store(sums_ptr + F * H + place, soft, mask=fits)


@triton.jit
def backward_kernel(
    reach_ptr, transition_ptr, gram_ptr, tau_ptr, mask_ptr, kept_ptr, stats_ptr, sums_grad_ptr,
    scaled_ptr, bent_ptr, dscores_ptr, along_ptr, n_tokens, floor,
    F: tl.constexpr, FP: tl.constexpr, BM: tl.constexpr,
    OBSERVE: tl.constexpr, HAS_MASK: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores, and all whose gradient is then one product over tokens.

    The displacement is r (δ M) + b with M = C a and r = (δ G δ^T + ε)^-1/2; C, G, a and b are states, gram, scale and
    shift. reach [N, F] is g M^T. For the products over tokens go out: scaled [N, F], r δ; bent [N, F], whose
    product with δ is the gradient of G; dscores [N, 2F], whose product with lookup is the gradient of u
    but for what comes through |z|; along [N], the share of z that is.
    """
    compute = kept_ptr.dtype.element_ty
    tile = tl.program_id(0)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < n_tokens
    lines = tl.arange(0, BM)  # see route_kernel
    begin = tile.to(tl.int64) * BM
    reach_ptr, dscores_ptr = reach_ptr + begin * F, dscores_ptr + begin * 2 * F
    kept_ptr, scaled_ptr, bent_ptr = kept_ptr + begin * F, scaled_ptr + begin * F, bent_ptr + begin * F
    slots = tl.arange(0, FP)
    real = slots < F
    fits = live[:, None] & real[None, :]
    place_f = lines[:, None] * F + slots[None, :]
    plane = tl.full([], F, tl.int64) * n_tokens

    # The tokens' matrices and gram are asked for before any is waited for: a tile takes as long as its loads do, one
    # after the other. The transition matrix comes late, for registers bind: what is finished is written at once, and
    # sums begin in the accumulator of the last product.
    reach = load(reach_ptr + place_f, fits, EVEN)
    narrow_delta = load(kept_ptr + plane + place_f, fits, EVEN)
    narrow_source = load(kept_ptr + place_f, fits, EVEN)
    # not w_src and δ added up: of a target that is small beside them nothing would be left but their rounding
    narrow_target = load(kept_ptr + 4 * plane + place_f, fits, EVEN)
    if OBSERVE:
        pull = load(kept_ptr + 3 * plane + place_f, fits, EVEN)
    if EVEN:
        distance = tl.load(kept_ptr + 2 * plane + place_f)
    else:
        distance = tl.load(kept_ptr + 2 * plane + place_f, mask=fits, other=1.0)
    square_fits = real[:, None] & real[None, :]
    square_place = slots[:, None] * F + slots[None, :]
    gram = load(gram_ptr + square_place, square_fits, EVEN)
    reach = tl.dot(tl.zeros([BM, 16], compute), tl.zeros([16, FP], compute), reach, input_precision=PRECISION)

    # through the displacement's norm: r itself moves with δ
    stretch = tl.load(stats_ptr + 2 * n_tokens + rows, mask=live, other=0.0)
    bend = stretch * stretch * stretch * tl.sum(narrow_delta.to(tl.float32) * reach, 1)
    store(scaled_ptr + place_f, (stretch[:, None] * narrow_delta.to(tl.float32)).to(compute), fits, EVEN)
    bent = (-0.5 * bend[:, None] * narrow_delta.to(tl.float32)).to(compute)
    store(bent_ptr + place_f, bent, fits, EVEN)
    ddelta = tl.dot(bent + bent, gram, stretch[:, None] * reach, input_precision=PRECISION)

    target = narrow_target.to(tl.float32)
    dasks = (target * (ddelta - tl.sum(ddelta * target, 1)[:, None])).to(compute)
    place_2f = lines[:, None] * (2 * F) + slots[None, :]
    store(dscores_ptr + place_2f + F, dasks, fits, EVEN)
    if OBSERVE:
        usage = tl.load(sums_grad_ptr + slots, mask=real, other=0.0).to(tl.float32)
        error = tl.load(sums_grad_ptr + 3 * F).to(tl.float32)
        extra = usage[None, :] - 2.0 * error * pull.to(tl.float32)
        if HAS_MASK:
            counts = tl.load(mask_ptr + rows, mask=live, other=0) != 0
            extra = tl.where(counts[:, None], extra, 0.0)
        ddelta -= extra
    transition = load(transition_ptr + square_place, square_fits, EVEN)
    dsource = tl.dot(dasks, tl.trans(transition), -ddelta, input_precision=PRECISION)
    source = narrow_source.to(tl.float32)
    dscore = source * (dsource - tl.sum(dsource * source, 1)[:, None])
    clamped = distance <= tl.full([], floor, tl.float32).to(compute)
    distance = distance.to(tl.float32)
    tau = tl.load(tau_ptr).to(tl.float32)
    length = tl.load(stats_ptr + n_tokens + rows, mask=live, other=1.0)
    dcosine = tl.where(clamped, 0.0, dscore * (1.0 / (tau * distance * distance)))
    along = tl.sum(dcosine * (1.0 - distance), 1) / (length * length)
    dnear = (dcosine * (1.0 / length)[:, None]).to(compute)
    store(dscores_ptr + place_2f, dnear, fits, EVEN)
    tl.store(along_ptr + rows, along, mask=live)
