"""Types: memory state survives casts in float32; a float64 model stays float64; bfloat16 rounds operands only."""

import pytest
import torch

from gmt.memory.precision import product
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


def test_products_round_operands_and_accumulate_in_float32():
    torch.manual_seed(0)
    a, b = torch.randn(7, 33), torch.randn(33, 5)
    exact = a.bfloat16().double() @ b.bfloat16().double()
    torch.testing.assert_close(product(a, b, torch.bfloat16).double(), exact, rtol=1e-6, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(product(a, b, torch.float32).double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
