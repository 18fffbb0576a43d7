"""The package against the paper's equations written out as loops (tests/oracle.py)."""

import numpy as np
import pytest
import torch

from gmt import GraphMemoryLM
from gmt.memory.maintenance import keyed_generator
from tests import oracle
from tests.conftest import batch_of, small_model

TOLERANCE = {"rtol": 0, "atol": 1e-9}


def numbers(lm: GraphMemoryLM) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().copy() for name, tensor in lm.state_dict().items()}


def settings(lm: GraphMemoryLM, tau: float) -> oracle.Settings:
    slots = lm.cfg.memory.slots
    return oracle.Settings(
        blocks=lm.cfg.model.blocks,
        heads=lm.cfg.model.heads,
        slots=slots,
        tau=tau,
        n_target=slots / 4,
        h_target=0.8257 * np.log(slots - 1),
    )


def flat(values: torch.Tensor) -> np.ndarray:
    return values.detach().flatten(0, -2).numpy()


# targets above what routing reaches by itself, so that the hinge of each term is open and has a gradient
OPEN_HINGES = ("losses.cluster_target=4.9", "losses.edge_floor=1.3")


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_forward_and_terms(tau):
    lm = small_model(*OPEN_HINGES)
    ids, labels = batch_of(lm)
    cfg = settings(lm, tau)
    cfg.n_target, cfg.h_target = 4.9, 1.3
    out = lm(ids, labels, tau=tau, return_routes=True)
    logits, blocks = oracle.forward(numbers(lm), cfg, ids.tolist())
    loss, task, aux, _ = oracle.objective(numbers(lm), cfg, ids.tolist(), labels.tolist())

    np.testing.assert_allclose(out.logits.detach().numpy(), np.array(logits), **TOLERANCE)
    for route, seen in zip(out.routes, blocks, strict=True):
        np.testing.assert_allclose(flat(route.source), np.array(seen.source), **TOLERANCE)
        np.testing.assert_allclose(flat(route.target), np.array(seen.target), **TOLERANCE)
        np.testing.assert_allclose(flat(route.displacement), np.array(seen.displacement), **TOLERANCE)
    assert out.aux.keys() == aux.keys()
    for name, value in aux.items():
        assert value > 0, f"{name} is closed: this case could not see it go wrong"
        assert out.aux[name].item() == pytest.approx(value, abs=1e-9), name
    assert out.task_loss.item() == pytest.approx(task, abs=1e-9)
    assert out.loss.item() == pytest.approx(loss, abs=1e-9)


@pytest.mark.parametrize("sublayer", ["dense", "none"])
def test_controls(sublayer):
    """The dense baseline's GELU layer is the oracle's; without a second sublayer a block is attention alone."""
    lm = small_model(f"model.sublayer={sublayer}")
    ids, labels = batch_of(lm)
    weights = numbers(lm)
    if sublayer == "none":  # an all-zero dense layer is no layer
        for index in range(lm.cfg.model.blocks):
            weights[f"blocks.{index}.dense.up.weight"] = np.zeros((1, lm.cfg.model.hidden))
            weights[f"blocks.{index}.dense.down.weight"] = np.zeros((lm.cfg.model.hidden, 1))
            weights[f"blocks.{index}.norm2.weight"] = weights[f"blocks.{index}.norm2.bias"] = np.zeros(8)
    logits, _ = oracle.forward(weights, settings(lm, 1.0), ids.tolist())
    out = lm(ids, labels)
    np.testing.assert_allclose(out.logits.detach().numpy(), np.array(logits), **TOLERANCE)
    assert out.writes is None and out.aux == {} and torch.equal(out.loss, out.task_loss)


def test_commit_is_the_papers_write_back():
    lm = small_model()
    before = numbers(lm)
    ids, labels = batch_of(lm, rows=3)
    out = lm(ids, labels, tau=0.7)
    _, blocks = oracle.forward(before, settings(lm, 0.7), ids.tolist())
    lm.commit(out.writes)
    visited = 0
    for index, (cell, seen) in enumerate(zip(lm.cells, blocks, strict=True)):
        memory = f"blocks.{index}.memory."
        expected = oracle.write_back(before[memory + "centroids"], before[memory + "momentum"], seen)
        np.testing.assert_allclose(cell.centroids.detach().numpy(), expected, **TOLERANCE)
        usage = oracle.usage_update(before[memory + "usage"], seen)
        np.testing.assert_allclose(cell.usage.numpy(), usage, **TOLERANCE)
        np.testing.assert_array_equal(cell.age.numpy(), before[memory + "age"] + 1)
        visited += int((out.writes.slot_count[index] > 0).sum())
    slots = lm.cfg.memory.slots * lm.cfg.model.blocks
    assert 0 < visited < slots, "the case needs both visited and empty slots"


def test_gradients_agree_with_finite_differences_after_a_commit():
    """The whole objective, at the second step: a step of training and a commit have moved everything."""
    lm = small_model(*OPEN_HINGES, "model.hidden=6", "model.vocab=7", "memory.slots=4", "losses.cluster_target=3.9")
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    ids, labels = batch_of(lm, rows=2, length=4)
    out = lm(ids, labels, tau=0.8)
    out.loss.backward()
    lm.commit(out.writes)
    optimizer.step()
    optimizer.zero_grad()

    cfg = settings(lm, 0.8)
    cfg.n_target, cfg.h_target = 3.9, 1.3
    weights = numbers(lm)
    rows, goals = ids.tolist(), labels.tolist()
    loss, _, aux, blocks = oracle.objective(weights, cfg, rows, goals)
    assert min(aux.values()) > 0, "every term must take part"
    track_targets = [list(np.array(seen.out)) for seen in blocks]
    out = lm(ids, labels, tau=0.8)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(loss, abs=1e-9)

    step, worst = 1e-6, 0.0
    generator = np.random.default_rng(0)
    for name, parameter in lm.named_parameters():
        value = weights[name].reshape(-1) if weights[name].ndim else weights[name][None]
        gradient = parameter.grad.numpy().reshape(-1)
        # every entry of a small tensor, a sample of a large one
        for k in generator.permutation(value.size)[:12]:
            original, sides = value[k], []
            for sign in (1, -1):
                perturbed = value.copy()
                perturbed[k] = original + sign * step
                changed = weights | {name: perturbed.reshape(weights[name].shape)}
                sides.append(oracle.objective(changed, cfg, rows, goals, track_targets)[0])
            numeric = (sides[0] - sides[1]) / (2 * step)
            assert gradient[k] == pytest.approx(numeric, rel=1e-5, abs=2e-8), f"{name}[{k}]"
            worst = max(worst, abs(gradient[k]))
    assert worst > 1e-3


def aged_memory(lm: GraphMemoryLM):
    """A cell in which slot 1 is dead and slots 2, 3 and 4 are near-duplicates of each other."""
    cell = lm.cells[0]
    with torch.no_grad():
        cell.centroids[3] = cell.centroids[2] * 1.3 + 1e-3
        cell.centroids[4] = cell.centroids[2] - 1e-3
        cell.usage.copy_(torch.tensor([0.3, 1e-4, 0.2, 0.1, 0.2]))
        cell.age.copy_(torch.tensor([500.0, 500, 100, 100, 300]))
    return cell


@pytest.mark.parametrize("ages", [(500, 500, 100, 100, 300), (500, 500, 99, 100, 300), (0, 0, 0, 0, 0)])
def test_reset_and_merge(ages):
    lm = small_model()
    cell = aged_memory(lm)
    cell.age.copy_(torch.tensor(ages, dtype=torch.float64))
    candidates = torch.randn(5, 8, dtype=torch.float64)
    expected = oracle.maintain(
        cell.centroids.detach().numpy(), cell.usage.numpy(), cell.age.numpy(), candidates.numpy(), 0.128 / 5
    )
    event = cell.maintain(candidates, keyed_generator(0))
    np.testing.assert_allclose(cell.centroids.detach().numpy(), expected[0], **TOLERANCE)
    np.testing.assert_allclose(cell.usage.numpy(), expected[1], **TOLERANCE)
    np.testing.assert_allclose(cell.age.numpy(), expected[2], **TOLERANCE)
    assert sorted(expected[3]) == event.replaced.nonzero().flatten().tolist()
    assert event.reset.tolist() == [False, True, False, False, False]
    assert len(expected[3]) == {100: 3, 99: 2, 0: 1}[ages[2]]
