"""Types: memory state survives casts in float32; a float64 model stays float64; bfloat16 rounds operands only."""

import pytest
import torch

from gmt.memory import precision
from gmt.memory.precision import product
from gmt.memory.readout import displacement
from tests.conftest import batch_of, small_model

STATE = ("centroids", "usage", "age")


@pytest.mark.parametrize("cast", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.bfloat16()])
def test_memory_state_survives_casts(cast):
    lm = small_model(dtype=torch.float32)
    lm(*batch_of(lm)).loss.backward()  # gradients are cast along
    before = {name: getattr(lm.cells[0], name).detach().clone() for name in STATE}
    tau = lm.tau.clone()
    cast(lm)
    for name in STATE:
        kept = getattr(lm.cells[0], name)
        assert kept.dtype == torch.float32 and torch.equal(kept, before[name])
    assert lm.cells[0].centroids.grad.dtype == torch.float32
    assert lm.tau.dtype == torch.float32 and torch.equal(lm.tau, tau)
    assert lm.cells[0].edges.dtype == lm.blocks[0].norm1.weight.dtype != torch.float32


def test_half_from_double_is_float32():
    cell = small_model(dtype=torch.float64).half().cells[0]
    assert {getattr(cell, name).dtype for name in STATE} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_model_of_any_type_reads_and_writes(dtype):
    lm = small_model(dtype=dtype)
    out = lm(*batch_of(lm), return_routes=True)
    wide = torch.promote_types(dtype, torch.float32)
    assert out.logits.dtype == dtype
    assert out.routes[0].displacement.dtype == dtype
    assert out.routes[0].source.dtype == out.writes.slot_sum.dtype == out.loss.dtype == wide
    out.loss.backward()
    lm.commit(out.writes)
    assert lm.cells[0].centroids.dtype == wide
    assert all(torch.isfinite(p).all() for p in lm.parameters())


def test_autocast_keeps_distances_and_statistics_in_float32():
    lm = small_model(dtype=torch.float32)
    ids, labels = batch_of(lm)
    with torch.autocast("cpu", torch.bfloat16):
        out = lm(ids, labels, return_routes=True)
    assert out.routes[0].source.dtype == out.writes.slot_sum.dtype == out.loss.dtype == torch.float32
    # not rounded to bfloat16 anywhere on the way out of a product
    assert not torch.equal(out.routes[0].source, out.routes[0].source.bfloat16().float())
    exact = lm(ids, labels, return_routes=True)
    torch.testing.assert_close(out.routes[0].source, exact.routes[0].source, rtol=0.05, atol=0.02)


def test_autocast_rounds_the_operands_of_products():
    lm = small_model(dtype=torch.float32)
    h = torch.randn(1, 4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = lm.cells[0](h, h, 1.0)[1].source
    states = lm.cells[0].tables(torch.float32).directions
    z = torch.nn.functional.normalize(h, dim=-1)
    cosine = z.bfloat16().double() @ states.bfloat16().double().T
    expected = torch.softmax(1 / (1 - cosine).clamp_min(0.01), -1)
    torch.testing.assert_close(rounded.double(), expected, rtol=1e-5, atol=1e-6)


def test_autocast_leaves_a_float64_model_alone():
    lm = small_model(dtype=torch.float64)
    h = torch.randn(1, 4, 8, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = lm.cells[0](h, h, 1.0)
    assert torch.equal(rounded[0], lm.cells[0](h, h, 1.0)[0])


def test_the_displacement_survives_bfloat16_when_source_and_target_nearly_agree():
    """Subtracted after rounding, the direction of a small move would be noise: that is why it is done before."""
    torch.manual_seed(0)
    source = torch.softmax(torch.randn(64, 128, dtype=torch.float64), -1)
    target = source * (1 + 1e-3 * torch.randn(64, 128, dtype=torch.float64))
    states = torch.randn(128, 96, dtype=torch.float64)
    norm, gate = torch.nn.LayerNorm(96).double(), torch.tensor(1.0, dtype=torch.float64)
    exact = displacement(source, target, states, norm, gate, torch.float64)
    low = displacement(source.float(), target.float(), states.float(), norm.float(), gate.float(), torch.bfloat16)
    cosine = torch.nn.functional.cosine_similarity(low.double(), exact, dim=-1)
    assert cosine.min() > 0.99


def test_losses_are_wide_in_a_bfloat16_model():
    out = (lm := small_model(dtype=torch.bfloat16))(*batch_of(lm))
    assert {v.dtype for v in (out.task_loss, out.loss, *out.aux.values())} == {torch.float32}
    lm = small_model(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        low = lm(*batch_of(lm)).aux
    exact = lm(*batch_of(lm)).aux
    for name in ("ortho", "edge", "contrast"):  # of memory alone, so autocast must not touch them
        assert torch.equal(low[name], exact[name]), name


def test_products_round_operands_and_accumulate_in_float32():
    torch.manual_seed(0)
    a, b = torch.randn(7, 33), torch.randn(33, 5)
    exact = a.bfloat16().double() @ b.bfloat16().double()
    torch.testing.assert_close(product(a, b, torch.bfloat16).double(), exact, rtol=1e-6, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(product(a, b, torch.float32).double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


def test_the_product_by_matrix_units_rounds_operands_and_gradient_alike(monkeypatch):
    """The GPU's own product has no CPU: here another takes its place, and the rest is as it will be there."""
    monkeypatch.setattr(precision, "wide_mm", lambda a, b: a.float() @ b.float())
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 7).bfloat16().requires_grad_(), torch.randn(7, 3).bfloat16().requires_grad_()
    probe = torch.randn(2, 5, 3)
    out = precision.by_matrix_units(a, b)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, a.float() @ b.float())
    assert precision.by_matrix_units(a[:, :0], b).shape == (2, 0, 3)
    grads = torch.autograd.grad(out, (a, b), probe)
    narrow = probe.bfloat16().float()
    for found, wanted in zip(
        grads, (narrow @ b.float().T, torch.einsum("nti,ntj->ij", a.float(), narrow)), strict=True
    ):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted.bfloat16())
