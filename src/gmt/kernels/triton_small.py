"""The smaller Triton kernels: the cell for a token or a few, the loss of a row of logits, the commit."""

import triton
import triton.language as tl

from gmt.kernels.triton_base import residual
from gmt.kernels.triton_norm import EPS

LOG2_E = tl.constexpr(1.4426950408889634)
LOG_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def few_scores_kernel(
    x_ptr, update_ptr, weight_ptr, bias_ptr, lookup_ptr, offset_ptr, scores_ptr, norm_eps,
    H: tl.constexpr, HP: tl.constexpr, F: tl.constexpr, BS: tl.constexpr, HAS_UPDATE: tl.constexpr,
    FOLDED: tl.constexpr,
):  # fmt: skip
    """A generated token's scores, spread over the chip by rows of lookup; the last is |z|. FOLDED: lookup has LN2 in
    it, as in triton_cell.py."""
    compute = lookup_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    lines = tl.program_id(1) * BS + tl.arange(0, BS)
    cols = tl.arange(0, HP)
    inside = cols < H
    fits = (lines < 2 * F)[:, None] & inside[None, :]
    table = tl.load(lookup_ptr + lines[:, None] * H + cols[None, :], mask=fits, other=0.0).to(tl.float32)
    h = residual(x_ptr, update_ptr, row * H + cols, inside, HAS_UPDATE, H == HP)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    off = tl.where(inside, h - tl.sum(h, 0) / H, 0.0)
    unit = off * tl.rsqrt(tl.sum(off * off, 0) / H + norm_eps)
    z = unit * weight + bias
    scores = tl.sum(table * (unit if FOLDED else z).to(compute).to(tl.float32)[None, :], 1)
    scores += tl.load(offset_ptr + lines, mask=lines < 2 * F, other=0.0)
    tl.store(scores_ptr + row * (2 * F + 1) + lines, scores, mask=lines < 2 * F)
    if tl.program_id(1) == 0:
        tl.store(scores_ptr + row * (2 * F + 1) + 2 * F, tl.maximum(tl.sqrt(tl.sum(z * z, 0)), EPS))


@triton.jit
def few_move_kernel(
    x_ptr, update_ptr, scores_ptr, transition_ptr, states_ptr, scale_ptr, shift_ptr, gram_ptr, rest_ptr, tau_ptr,
    out_ptr, floor, move_eps,
    H: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BH: tl.constexpr,
    HAS_UPDATE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """The rest of a generated token's way, spread over the chip by columns: each program routes for itself."""
    compute = states_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BH + tl.arange(0, BH)
    inside = cols < H
    slots = tl.arange(0, FP)
    real = slots < F
    square_place = slots[:, None] * F + slots[None, :]
    square_fits = real[:, None] & real[None, :]
    along = tl.load(scores_ptr + row * (2 * F + 1) + slots, mask=real, other=0.0)
    context = tl.load(scores_ptr + row * (2 * F + 1) + F + slots, mask=real, other=0.0)
    length = tl.load(scores_ptr + row * (2 * F + 1) + 2 * F)
    tau = tl.load(tau_ptr).to(tl.float32)
    transition = tl.load(transition_ptr + square_place, mask=square_fits, other=0.0).to(tl.float32)
    gram = tl.load(gram_ptr + square_place, mask=square_fits, other=0.0).to(tl.float32)
    if REST:
        gram += tl.load(rest_ptr + square_place, mask=square_fits, other=0.0).to(tl.float32)
    states = tl.load(states_ptr + slots[:, None] * H + cols[None, :], mask=real[:, None] & inside[None, :], other=0.0)

    distance = tl.maximum(1.0 - along / length, floor)
    score = tl.where(real, 1.0 / (tau * distance), float("-inf"))
    score = tl.exp(score - tl.max(score, 0))
    source = score / tl.sum(score, 0)
    narrow = source.to(compute).to(tl.float32)
    logit = tl.where(real, tl.sum(narrow[:, None] * transition, 0) + context, float("-inf"))
    logit = tl.exp(logit - tl.max(logit, 0))
    delta = (logit / tl.sum(logit, 0) - source).to(compute).to(tl.float32)
    form = tl.sum(delta[:, None] * gram, 0)
    stretch = tl.rsqrt(tl.maximum(tl.sum(form * delta, 0), 0.0) + move_eps)
    move = tl.sum(delta[:, None] * states.to(tl.float32), 0)
    scale = tl.load(scale_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    h = residual(x_ptr, update_ptr, row * H + cols, inside, HAS_UPDATE, False)
    tl.store(out_ptr + row * H + cols, (h + move * stretch * scale + shift).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def cross_entropy_kernel(
    logits_ptr, label_ptr, loss_ptr, n_vocab, stride, ignored,
    BV: tl.constexpr, RUN: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """One row: its loss, and in the logits' place their gradient, softmax - onehot. Past n_vocab there is nothing.

    Exponentials bind. Of RUN logits that lie side by side, and so in one thread, the highest is taken first, and what
    was summed before is scaled once for all of them; and they are powers of two, which take an instruction less.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    label = tl.load(label_ptr + row)
    counts = label != ignored
    valid = (label >= 0) & (label < n_vocab)
    places = tl.arange(0, BV // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    # finite, so that a lane with nothing in it yet subtracts to a number
    most = tl.full([BV // RUN], -1e30, tl.float32)
    total = tl.zeros([BV // RUN], dtype=tl.float32)
    for start in range(0, n_vocab, BV):
        cols = start + places
        x = tl.load(logits_ptr + cols, mask=cols < n_vocab, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(x, 1) * LOG2_E)
        total = total * tl.exp2(most - higher) + tl.sum(tl.exp2(x * LOG2_E - higher[:, None]), 1)
        most = higher
    top = tl.max(most, 0)
    whole = top + tl.log2(tl.sum(total * tl.exp2(most - top), 0))
    chosen = tl.load(logits_ptr + tl.where(valid, label, 0)).to(tl.float32)
    # a label that is no token makes the loss what it is: not a number
    loss = tl.where(valid, whole * LOG_2 - chosen, float("nan"))
    tl.store(loss_ptr + row, tl.where(counts, loss, 0.0))
    if SAVE:
        # a row that does not count: every power of -inf is 0
        base = tl.where(counts, whole, float("inf"))
        for start in range(0, stride, BV):
            cols = start + places
            inside = cols < n_vocab
            x = tl.load(logits_ptr + cols, mask=inside, other=float("-inf"))
            share = tl.exp2(x.to(tl.float32) * LOG2_E - base)
            share = tl.where((cols == label) & counts, share - 1.0, share)
            tl.store(logits_ptr + cols, share.to(x.dtype), mask=cols < stride)


@triton.jit
def commit_kernel(
    centroids_ptrs, usage_ptrs, age_ptrs, momentum_ptrs, sum_ptr, count_ptr, usage_sum_ptr, tokens_ptr, keep_ptr,
    decay, n_rows,
    H: tl.constexpr, HP: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, BLOCKS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
):  # fmt: skip
    """What a pass saw into memory, in place: a program for each centroid of each block, and one for the usage and age
    of a block's slots. Blocks lie where they are: a tuple of pointers for each kind."""
    row, block = tl.program_id(0), tl.program_id(1)
    keep = True
    if HAS_KEEP:
        keep = tl.load(keep_ptr) != 0
    for index in tl.static_range(BLOCKS):  # pyright: ignore[reportGeneralTypeIssues]
        if block == index and keep:
            if row < n_rows:
                place = index * F + row
                count = tl.load(count_ptr + place)
                write_back(centroids_ptrs[index] + row * H, momentum_ptrs[index], sum_ptr + place * H, count, H, HP)
            else:
                slots = tl.arange(0, FP)
                real = slots < F
                tokens = tl.load(tokens_ptr)
                usage = tl.load(usage_ptrs[index] + slots, mask=real, other=0.0)
                seen = tl.load(usage_sum_ptr + index * F + slots, mask=real, other=0.0) / tl.maximum(tokens, 1.0)
                if tokens > 0:  # a pass without tokens says nothing of usage
                    tl.store(usage_ptrs[index] + slots, decay * usage + (1 - decay) * seen, mask=real)
                age = tl.load(age_ptrs[index] + slots, mask=real, other=0.0)
                tl.store(age_ptrs[index] + slots, age + 1.0, mask=real)


@triton.jit
def write_back(centroid_ptr, momentum_ptr, sum_ptr, count, H: tl.constexpr, HP: tl.constexpr):
    """normalise(m C + (1-m) mean) of one slot; where nobody came the mean is 0."""
    cols = tl.arange(0, HP)
    inside = cols < H
    m = tl.sigmoid(tl.load(momentum_ptr).to(tl.float32))
    mean = tl.load(sum_ptr + cols, mask=inside, other=0.0) / tl.maximum(count, EPS)
    new = m * tl.load(centroid_ptr + cols, mask=inside, other=0.0) + (1 - m) * mean
    tl.store(centroid_ptr + cols, new / tl.maximum(tl.sqrt(tl.sum(new * new, 0)), EPS), mask=inside)
