"""Cross-entropy from the hidden state and the output embedding, without the logits of a whole batch in memory.

A chunk of tokens at a time: logits, losses, and at once the gradients, since the logits are at hand. Backward then
only scales them. The vocabulary is padded while computing to a multiple of 64, which matrix products want; the
padding has no parameters and no share in anything.
"""

# Triton's launch arguments are not those of the kernel's signature
# pyright: reportArgumentType=false, reportCallIssue=false

import torch
from torch import Tensor

from gmt.kernels.available import machine_lacks
from gmt.kernels.products import tall_product

IGNORED = -100  # a label that takes no part in the loss
CHUNK_BYTES = 1 << 29  # of logits


def _has_kernel(x: Tensor) -> bool:
    return machine_lacks(x.device) is None and x.dtype != torch.float64


def _chunk(vocab: int, item: int) -> int:
    return max(64, CHUNK_BYTES // (vocab * item) // 64 * 64)


@torch.library.custom_op("gmt::linear_cross_entropy", mutates_args=())
def _loss_and_gradients(x: Tensor, weight: Tensor, labels: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of the losses, and what it does to x [N, H] and weight [V, H]."""
    vocab, fused = weight.shape[0], _has_kernel(x)
    padded = -(-vocab // 64) * 64 if fused else vocab
    matrix = weight.new_empty((padded, weight.shape[1]), dtype=x.dtype)
    matrix[:vocab] = weight  # rounded on the way: padding a rounded copy would be three passes over it
    matrix[vocab:] = 0
    wide = torch.promote_types(x.dtype, torch.float32)
    losses = x.new_empty(x.shape[0], dtype=wide)
    dx = torch.empty_like(x) if save else x.new_empty(0)
    dweight = weight.new_empty(matrix.shape, dtype=wide) if save else weight.new_empty(0, dtype=wide)
    rows = _chunk(padded, x.element_size())
    room = x.new_empty(min(rows, x.shape[0]), padded)  # one for all chunks: a new one would stand beside the last
    if save and not len(x):
        dweight.zero_()
    for start in range(0, x.shape[0], rows):
        part, wanted = x[start : start + rows], labels[start : start + rows]
        logits = torch.mm(part, matrix.T, out=room[: len(part)])
        share = _softmax_loss(logits, wanted, losses[start : start + rows], vocab, save, fused)
        if save:
            share = share.to(x.dtype)
            torch.mm(share, matrix, out=dx[start : start + rows])
            tall_product(dweight, share, part, add=start > 0)
    return losses.sum(), dx, dweight[:vocab].contiguous() if save else dweight


def _softmax_loss(logits: Tensor, labels: Tensor, losses: Tensor, vocab: int, save: bool, fused: bool) -> Tensor:
    """Writes the losses; returns softmax - onehot, in the logits' place where a kernel can."""
    if fused:
        from gmt.kernels.triton_small import cross_entropy_kernel

        with torch.cuda.device_of(logits):
            cross_entropy_kernel[(logits.shape[0],)](
                logits, labels, losses, vocab, logits.stride(0), IGNORED, BV=8192, RUN=8, SAVE=save, num_warps=16
            )
        return logits
    counts = labels != IGNORED
    chosen = labels.masked_fill(~counts, 0)[:, None]
    logits = logits.to(losses.dtype)
    whole = torch.logsumexp(logits, dim=-1, keepdim=True)
    losses.copy_(torch.where(counts, (whole - logits.gather(1, chosen))[:, 0], 0))
    share = (logits - whole).exp_()
    share.scatter_add_(1, chosen, share.new_full((1, 1), -1).expand(chosen.shape))
    return share.mul_(counts[:, None])


@_loss_and_gradients.register_fake
def _(x, weight, labels, save):  # type: ignore
    wide = torch.promote_types(x.dtype, torch.float32)
    if not save:
        return x.new_empty((), dtype=wide), x.new_empty(0), weight.new_empty(0, dtype=wide)
    return x.new_empty((), dtype=wide), torch.empty_like(x), torch.empty_like(weight, dtype=wide)


def _setup(ctx, inputs, output):  # type: ignore
    ctx.save_for_backward(output[1], output[2])
    ctx.weight_type = inputs[1].dtype
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, *_):  # type: ignore
    dx, dweight = ctx.saved_tensors
    if grad is None:
        return None, None, None, None
    # scaled in float32: 1 / tokens is no number of bfloat16
    return (dx.to(dweight.dtype) * grad).to(dx.dtype), (dweight * grad).to(ctx.weight_type), None, None


torch.library.register_autograd("gmt::linear_cross_entropy", _backward, setup_context=_setup)


def linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Sum over tokens of -log softmax(x weight^T)[label]; x [N, H], labels [N]."""
    total, _, _ = torch.ops.gmt.linear_cross_entropy(
        x.contiguous(), weight, labels.contiguous(), torch.is_grad_enabled()
    )
    return total
