"""Attention with dropout against its equations in float64, run by Triton's interpreter on the CPU.

Which weights are dropped is worked out here a second time, in Python's own integers.
"""

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton")

import gmt.kernels.attention as attention
from gmt.model.attention import CausalSelfAttention

BITS = 2**32 - 1


def mixed(x: int) -> int:
    x &= BITS
    x ^= x >> 16
    x = x * 0x7FEB352D & BITS
    x ^= x >> 15
    x = x * 0x846CA68B & BITS
    return x ^ x >> 16


def kept(seed: int, head: int, length: int, dropout: float) -> torch.Tensor:
    base = mixed(seed ^ mixed(2 * head + 1))
    rows = [mixed(base + i) | 1 for i in range(length)]
    other = base ^ 0x9E3779B1
    cols = [(mixed((base ^ 0x7FEB352D) + j // 32) | 1) * (mixed(other + j % 32) | 1) & BITS for j in range(length)]
    return torch.tensor([[(row * col & BITS) >= round(dropout * 2**32) for col in cols] for row in rows])


def oracle(qkv: torch.Tensor, seed: int, heads: int, dropout: float) -> torch.Tensor:
    batch, length, width = qkv.shape
    q, k, v = qkv.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    unseen = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(unseen, -math.inf).softmax(-1)
    masks = torch.stack([kept(seed, head, length, dropout) for head in range(batch * heads)])
    weights = weights * masks.view(weights.shape) / (1 - dropout)
    return (weights @ v).transpose(1, 2).reshape(batch, length, width // 3)


def run(qkv, seed, heads, dropout, grad):
    leaf = qkv.clone().requires_grad_()
    out, _ = torch.ops.gmt.attention_forward(leaf, torch.tensor([seed]), heads, dropout)
    return out.detach(), torch.autograd.grad(out, leaf, grad.to(out.dtype))[0]


@pytest.mark.parametrize(
    ("batch", "length", "heads", "size", "dropout"),
    [(2, 37, 2, 16, 0.0), (2, 37, 2, 16, 0.3), (1, 1, 1, 16, 0.2), (1, 33, 3, 32, 0.1), (1, 64, 1, 64, 0.5)],
)
def test_attention_and_its_gradient_are_those_of_the_equations(batch, length, heads, size, dropout):
    torch.manual_seed(length)
    qkv, grad = torch.randn(batch, length, 3 * heads * size), torch.randn(batch, length, heads * size)
    out, dqkv = run(qkv, 12345, heads, dropout, grad)
    exact = qkv.double().requires_grad_()
    wanted = oracle(exact, 12345, heads, dropout)
    torch.testing.assert_close(out.double(), wanted.detach(), atol=2e-6, rtol=0)
    (dexact,) = torch.autograd.grad(wanted, exact, grad.double())
    torch.testing.assert_close(dqkv.double(), dexact, atol=5e-6, rtol=0)


@pytest.mark.parametrize("length", [150, 256])
def test_the_tiles_of_a_gpu_agree(length):
    """In float16 the tiles are those of a GPU, larger than float32's, and meet the diagonal in other places."""
    torch.manual_seed(0)
    qkv, grad = torch.randn(1, length, 48).half(), torch.randn(1, length, 16).half()
    out, dqkv = run(qkv, 7, 1, 0.1, grad)
    exact = qkv.double().requires_grad_()
    wanted = oracle(exact, 7, 1, 0.1)
    torch.testing.assert_close(out.double(), wanted.detach(), atol=4e-3, rtol=0)
    (dexact,) = torch.autograd.grad(wanted, exact, grad.double())
    torch.testing.assert_close(dqkv.double(), dexact, atol=2e-2, rtol=0)


def test_one_seed_drops_the_same_and_another_others():
    torch.manual_seed(0)
    qkv, grad = torch.randn(1, 40, 48), torch.randn(1, 40, 16)
    first, again, other = (run(qkv, seed, 1, 0.2, grad) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_weights_are_dropped_at_the_rate_asked_for_and_apart_from_each_other():
    """Against the spread that independent draws would have."""
    rate, length = 0.1, 256
    heads = torch.stack([~kept(99, head, length, rate) for head in range(4)]).double()
    off = (heads - rate) / math.sqrt(rate * (1 - rate))
    for product in (
        off,
        off[:, 1:] * off[:, :-1],
        off[:, :, 1:] * off[:, :, :-1],
        off[:, 1:, 1:] * off[:, :-1, 1:] * off[:, 1:, :-1] * off[:, :-1, :-1],  # a rectangle's keys cancel
        off[:, 1:, 32:] * off[:, :-1, 32:] * off[:, 1:, :-32] * off[:, :-1, :-32],
        off[:, :, 33:] * off[:, :, 32:-1] * off[:, :, 1:-32] * off[:, :, :-33],  # two turns, two steps
        off[:, :, 32:] * off[:, :, :-32],
        off[1:] * off[:-1],
    ):
        assert abs(product.mean().item()) < 4 / math.sqrt(product.numel())


@pytest.mark.parametrize("compiled", [False, True])
def test_the_layer_takes_it_while_training_and_torch_s_otherwise(monkeypatch, compiled):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = CausalSelfAttention(32, 2, 0.2, own_kernel=True)
    x = torch.randn(2, 9, 32, requires_grad=True)
    plain = layer.eval()(x, None, None, 0)
    monkeypatch.setattr("gmt.model.attention.takes_kernel", lambda *_: True)
    assert torch.equal(layer(x, None, None, 0), plain), "no dropout, no kernel"
    layer.train()
    forward = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    torch.manual_seed(3)
    out = forward(x, None, None, 0)
    (dx,) = torch.autograd.grad(out.square().sum(), x)
    torch.manual_seed(3)
    seed = torch.randint(2**31 - 1, (1,)).item()
    wanted = layer.output(oracle(layer.qkv(x), seed, 2, 0.2))
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dx, torch.autograd.grad(wanted.square().sum(), x)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_made_again_in_backward_it_drops_the_same_weights(monkeypatch, compiled):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = CausalSelfAttention(32, 2, 0.2, own_kernel=True)
    monkeypatch.setattr("gmt.model.attention.takes_kernel", lambda *_: True)
    x = torch.randn(2, 9, 32, requires_grad=True)

    def made_again(x):
        return checkpoint(layer, x, None, None, 0, use_reentrant=False)

    forward = torch.compile(made_again, backend="aot_eager", fullgraph=True) if compiled else made_again
    torch.manual_seed(3)
    (dx,) = torch.autograd.grad(forward(x).square().sum(), x)
    torch.manual_seed(3)
    seed = torch.randint(2**31 - 1, (1,)).item()
    wanted = layer.output(oracle(layer.qkv(x), seed, 2, 0.2))
    torch.testing.assert_close(dx, torch.autograd.grad(wanted.square().sum(), x)[0], atol=1e-5, rtol=1e-4)


def test_a_cpu_and_a_float32_model_keep_torch_s():
    assert not attention.takes_kernel(torch.zeros(1, 4, 48, dtype=torch.bfloat16), 1)
    assert not attention.takes_kernel(torch.zeros(1, 4, 48, device="meta"), 1)
