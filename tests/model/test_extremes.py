"""Extremes give finite numbers or a clear error, never NaN."""

import pytest
import torch

from gmt.memory.maintenance import keyed_generator
from tests.conftest import batch_of, small_model


def assert_finite_step(lm, ids, labels, **kwargs):
    out = lm(ids, labels, return_routes=True, **kwargs)
    out.loss.backward()
    lm.commit(out.writes)
    values = [out.logits, out.loss, *out.aux.values(), *(t for route in out.routes for t in route)]
    values += [p.grad for p in lm.parameters() if p.grad is not None] + list(lm.state_dict().values())
    assert all(torch.isfinite(v).all() for v in values)
    return out


@pytest.mark.parametrize("tau", [1e-6, 1000.0])
def test_the_ends_of_the_range_of_temperatures(tau):
    lm = small_model("memory.distance_floor=1e-6", dtype=torch.float32)
    assert_finite_step(lm, *batch_of(lm), tau=tau)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_very_low_temperature(dtype):
    lm = small_model(dtype=dtype)
    out = assert_finite_step(lm, *batch_of(lm), tau=1e-3)
    assert (out.routes[0].source.max(-1).values > 0.999).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_parallel_to_a_centroid(dtype):
    lm = small_model(dtype=dtype)
    ids, labels = batch_of(lm)
    states = []
    hook = lm.blocks[0].norm2.register_forward_hook(lambda m, a, out: states.append(out.detach()))
    lm(ids)
    hook.remove()
    with torch.no_grad():  # LN_C(C) of this centroid is just that state, so that the distance is at its floor
        cell, norm = lm.cells[0], lm.cells[0].norm_centroids
        norm.weight.fill_(1)
        norm.bias.zero_()
        z = states[0][0, 3] - states[0][0, 3].mean()
        lm.blocks[0].norm2.bias.sub_(states[0][0, 3].mean())
        cell.centroids[2] = z
    out = assert_finite_step(lm, ids, labels, tau=1e-3)
    assert out.routes[0].source[0, 3, 2] == 1


def test_all_centroids_equal():
    lm = small_model()
    with torch.no_grad():
        for cell in lm.cells:
            cell.centroids.copy_(cell.centroids[:1].expand_as(cell.centroids).clone())
    out = assert_finite_step(lm, *batch_of(lm))
    torch.testing.assert_close(out.routes[0].source, torch.full((2, 6, 5), 0.2, dtype=torch.float64))
    assert (out.writes.slot_count[0] == torch.tensor([12, 0, 0, 0, 0])).all(), "ties go to the lowest index"


def test_zero_states_and_centroids():
    lm = small_model()
    with torch.no_grad():
        for cell in lm.cells:
            cell.centroids.zero_()
            cell.norm_centroids.bias.zero_()
        for block in lm.blocks:
            block.norm2.weight.zero_()
            block.norm2.bias.zero_()
    assert_finite_step(lm, *batch_of(lm))


def test_all_slots_dead():
    lm = small_model()
    for cell in lm.cells:
        cell.usage.zero_()
        event = cell.maintain(torch.zeros(5, 8), keyed_generator(0))
        assert event.reset.all()
    assert_finite_step(lm, *batch_of(lm))


def test_a_batch_of_one_token():
    lm = small_model()
    out = assert_finite_step(lm, *batch_of(lm, rows=1, length=1))
    assert out.writes.tokens == 1 and out.writes.slot_count.sum() == 2


def test_a_batch_of_padding_alone():
    lm = small_model()
    ids, labels = batch_of(lm)
    usage = lm.cells[0].usage.clone()
    out = assert_finite_step(lm, ids, labels, mask=torch.zeros_like(ids, dtype=torch.bool))
    assert out.writes.tokens == 0 and out.task_loss == 0
    assert torch.equal(lm.cells[0].usage, usage)


def test_two_slots():
    assert_finite_step(lm := small_model("memory.slots=2"), *batch_of(lm))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"ids": torch.zeros(0, 4, dtype=torch.long)}, "the batch is empty"),
        ({"ids": torch.zeros(2, 0, dtype=torch.long)}, "the batch is empty"),
        ({"ids": torch.zeros(4, dtype=torch.long)}, r"ids must be \[batch, tokens\]"),
        ({"ids": torch.full((1, 2), 11)}, "the token id 11 is outside this model's range of 0 to 10"),
        ({"ids": torch.full((1, 2), -1)}, "the token id -1 is outside"),
        (
            {"ids": torch.zeros(1, 17, dtype=torch.long)},
            "a sequence of 17 tokens is longer than this model's context of 16",
        ),
        ({"labels": torch.full((2, 4), 11)}, "the label 11 is outside"),
        ({"labels": torch.zeros(2, 3, dtype=torch.long)}, "labels have shape"),
        ({"mask": torch.ones(2, 3)}, "the mask has shape"),
        ({"positions": torch.full((2, 4), 16)}, "the position 16 is outside"),
        ({"mask": torch.ones(2, 5)}, r"the mask has shape \[2, 5\], not \[2, 4\]"),
        ({"tau": 0.0}, "the routing temperature must lie between 1e-06 and 1000, not be 0"),
        ({"tau": 1e-39}, "the routing temperature must lie between"),
        ({"tau": torch.tensor(0.0)}, "the routing temperature must lie between"),
        ({"tau": float("nan")}, "the routing temperature must lie between"),
    ],
)
def test_bad_input_is_one_sentence(lm, arguments, told):
    arguments = {"ids": torch.zeros(2, 4, dtype=torch.long)} | arguments
    with pytest.raises(ValueError, match=told):
        lm(**arguments)


def test_a_cache_cannot_outgrow_the_context(lm):
    from transformers import DynamicCache

    cache = DynamicCache()
    lm(torch.zeros(1, 16, dtype=torch.long), cache=cache)
    with pytest.raises(ValueError, match="a sequence of 17 tokens"):
        lm(torch.zeros(1, 1, dtype=torch.long), cache=cache)


@pytest.mark.parametrize("tau", [0.0, -1.0, 1e-50, float("inf"), float("nan")])
def test_a_stored_temperature_is_checked(lm, tau):
    with pytest.raises(ValueError, match="must lie between"):
        lm.set_temperature(tau)
