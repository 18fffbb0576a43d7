"""The loss in chunks against logits that are whole: value and both gradients."""

import pytest
import torch
from torch.nn import functional as F

from gmt.kernels import cross_entropy
from gmt.kernels.cross_entropy import IGNORED, linear_cross_entropy


def whole(x, weight, labels):
    return F.cross_entropy((x @ weight.T), labels, ignore_index=IGNORED, reduction="sum")


def case(tokens=37, hidden=8, vocab=23, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    x, weight = torch.randn(tokens, hidden, dtype=dtype), torch.randn(vocab, hidden, dtype=dtype)
    labels = torch.randint(vocab, (tokens,))
    labels[::5] = IGNORED
    return x.requires_grad_(), weight.requires_grad_(), labels


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("rows", [64, 10_000])
def test_value_and_gradients(monkeypatch, rows, interpret):
    dtype, atol = (torch.float32, 1e-4) if interpret else (torch.float64, 1e-10)
    if interpret:
        pytest.importorskip("triton")
        monkeypatch.setattr(cross_entropy, "_has_kernel", lambda x: True)
    monkeypatch.setattr(cross_entropy, "_chunk", lambda *_: rows)
    x, weight, labels = case(tokens=150 if rows == 64 else 37, dtype=dtype)
    mine, want = linear_cross_entropy(x, weight, labels), whole(x, weight, labels)
    torch.testing.assert_close(mine, want, rtol=0, atol=atol)
    for a, b in zip(
        torch.autograd.grad(3 * mine, (x, weight)), torch.autograd.grad(3 * want, (x, weight)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("label", [23, -1, 10**6])
def test_a_label_that_is_no_token_is_not_a_number(monkeypatch, label):
    pytest.importorskip("triton")
    monkeypatch.setattr(cross_entropy, "_has_kernel", lambda x: True)
    x, weight, labels = case(dtype=torch.float32)
    labels[3] = label
    assert torch.isnan(linear_cross_entropy(x, weight, labels))


def test_the_gradients_scale_is_not_rounded():
    """A mean over 30,720 tokens in bfloat16: the scale is float32's until it is multiplied."""
    x, weight, labels = case(dtype=torch.float32)
    x = x.detach().to(torch.bfloat16).requires_grad_()
    (whole,) = torch.autograd.grad(linear_cross_entropy(x, weight, labels), x)
    (mean,) = torch.autograd.grad(linear_cross_entropy(x, weight, labels) / 30720, x)
    assert torch.equal(mean, (whole.float() / 30720).to(torch.bfloat16))


def test_strided_labels_are_read_as_they_are():
    x, weight, labels = case()
    apart = torch.stack([labels, labels * 0], dim=1)[:, 0]
    assert torch.equal(linear_cross_entropy(x, weight, apart), linear_cross_entropy(x, weight, labels))


def test_nothing_to_score_is_zero():
    x, weight, labels = case()
    total = linear_cross_entropy(x, weight, torch.full_like(labels, IGNORED))
    assert total == 0
    total.backward()
    assert x.grad.abs().sum() == 0 and weight.grad.abs().sum() == 0


def test_without_gradients_none_are_made():
    x, weight, labels = case()
    with torch.no_grad():
        assert torch.ops.gmt.linear_cross_entropy(x, weight, labels, False)[2].numel() == 0
        torch.testing.assert_close(linear_cross_entropy(x, weight, labels), whole(x, weight, labels))


def test_the_models_loss_is_the_same_without_logits(lm):
    from tests.conftest import batch_of

    ids, labels = batch_of(lm)
    labels = labels.clone()
    labels[0, 2] = IGNORED
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 4:] = False
    a, b = lm(ids, labels, mask=mask), lm(ids, labels, mask=mask, return_logits=False)
    assert b.logits is None and a.logits is not None
    torch.testing.assert_close(a.loss, b.loss, rtol=0, atol=1e-12)
    parameters = list(lm.parameters())
    for x, y in zip(torch.autograd.grad(a.loss, parameters), torch.autograd.grad(b.loss, parameters), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
