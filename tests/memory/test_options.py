"""Settings that studies vary: each does what its name says, and nothing beside it."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.kernels.available import shape_lacks, use_fused
from gmt.memory.cell import MemoryCell
from gmt.memory.kmeans import spherical_kmeans
from gmt.memory.losses import commit_loss
from gmt.memory.maintenance import keyed_generator
from gmt.memory.routing import transition_matrix
from gmt.memory.temperature import temperature
from gmt.model.language_model import GraphMemoryLM

SMALL = ("model.blocks=2", "model.hidden=8", "model.heads=2", "model.context=8", "model.vocab=23", "memory.slots=6")


def model(*overrides: str) -> GraphMemoryLM:
    torch.manual_seed(0)
    return GraphMemoryLM(GMTConfig.preset("tiny", *SMALL, *overrides)).double()


def tokens(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(23, (rows, 9), generator=torch.Generator().manual_seed(1))
    return ids[:, :-1], ids[:, 1:]


# --- the commitment that the authors gave up -----------------------------------------------------------------------


def test_the_commitment_draws_states_to_memory_and_teaches_memory_nothing():
    """MSE(x, sg(w_src C~)): its gradient is 2 (x - s) / n in x, and there is none in s."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    loss = commit_loss(x, state, None)
    assert loss.item() == pytest.approx(((x - state) ** 2).sum().item() / 24)
    (grad,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(grad, 2 * (x - state).detach() / 24)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(commit_loss(x.detach(), state, None), state)


def test_the_commitment_leaves_padding_out():
    x, state = torch.ones(1, 4, 2), torch.zeros(1, 4, 2)
    x[0, 2:] = 100
    assert commit_loss(x, state, torch.tensor([[True, True, False, False]])).item() == 1.0


def test_the_form_is_chosen_by_the_setting():
    """Both are the same mean square; tracking has 1 - m before it, and so a gradient in the momentum."""
    (ids, labels), found = tokens(), {}
    for form in ("track", "commit"):
        lm = model(f"losses.track_form={form}")
        found[form] = lm(ids, labels).aux["track"]
        found[form].backward()
        assert (lm.cells[0].momentum.grad is not None) == (form == "track")
    slowness = 1 / (1 + torch.tensor(4.6, dtype=torch.float64).exp())
    torch.testing.assert_close(found["track"], slowness * found["commit"])


def test_the_kernels_know_tracking_alone():
    cfg = GMTConfig.preset("tiny", *SMALL, "losses.track_form=commit", "memory.kernels=fused")
    assert "track_form" in (shape_lacks(cfg) or "")
    with pytest.raises(GMTError, match="cannot run"):
        use_fused(cfg, torch.zeros(1, 8))


# --- edges, centroids ------------------------------------------------------------------------------------------------


def test_uniform_edges_lead_everywhere_alike():
    transition = transition_matrix(model("memory.edges=uniform").cells[0].edges)
    wanted = (torch.ones(6, 6, dtype=torch.float64) - torch.eye(6, dtype=torch.float64)) / 5
    torch.testing.assert_close(transition, wanted)


@pytest.mark.parametrize("edges", ["frozen", "uniform"])
def test_held_edges_have_no_gradient(edges):
    lm, (ids, labels) = model(f"memory.edges={edges}"), tokens()
    lm(ids, labels).loss.backward()
    assert all(cell.edges.grad is None for cell in lm.cells)
    assert all(cell.centroids.grad is not None for cell in lm.cells)


def test_what_is_drawn_after_the_edges_is_alike():
    """So that arms of a study differ in their edges alone."""
    learned, frozen, uniform = (model(f"memory.edges={kind}").state_dict() for kind in ("learned", "frozen", "uniform"))
    assert all(torch.equal(learned[name], frozen[name]) for name in learned)
    assert [n for n in learned if not torch.equal(learned[n], uniform[n])] == [
        f"blocks.{b}.memory.edges" for b in range(2)
    ]


def test_centroids_without_gradients():
    lm, (ids, labels) = model("memory.train_centroids=false"), tokens()
    out = lm(ids, labels)
    out.loss.backward()
    before = lm.cells[0].centroids.clone()
    assert lm.cells[0].centroids.grad is None and lm.cells[0].edges.grad is not None
    lm.commit(out.writes)
    assert not torch.equal(lm.cells[0].centroids, before)


# --- schedules and maintenance ------------------------------------------------------------------------------------


def test_a_straight_line_of_temperatures():
    assert [temperature(s, 10, 1.0, 0.1, "linear") for s in (0, 5, 10, 20)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(("reset", "merge"), [(True, False), (False, True), (False, False)])
def test_maintenance_by_halves(reset, merge):
    cfg = GMTConfig.preset("tiny", *SMALL, f"maintenance.reset={reset}", f"maintenance.merge={merge}")
    cell = MemoryCell(cfg)
    cell.reset_memory()
    with torch.no_grad():
        cell.centroids[1] = cell.centroids[0]  # a near-duplicate
        cell.age.fill_(1000)
        cell.usage[5] = 0.0  # a dead slot
    event = cell.maintain(torch.randn(6, 8), keyed_generator(0))
    assert event.reset.tolist() == [False] * 5 + [reset]
    assert event.merged.tolist() == [False, merge, False, False, False, False]


# --- k-means -------------------------------------------------------------------------------------------------------


def test_k_means_finds_planted_directions():
    generator = torch.Generator().manual_seed(0)
    planted = F.normalize(torch.randn(4, 16, generator=generator), dim=-1)
    lengths = torch.rand(400, 1, generator=generator) * 9 + 1  # directions count, not lengths
    states = (planted.repeat(100, 1) + 0.05 * torch.randn(400, 16, generator=generator)) * lengths
    best = max(
        (spherical_kmeans(states, 4, keyed_generator(key)) @ planted.T).max(1).values.min().item() for key in range(5)
    )
    assert best > 0.99  # a start may be caught in a poor division; the best of five is not
    sums = [
        (F.normalize(states, dim=-1) @ spherical_kmeans(states, 4, keyed_generator(3), rounds).T).max(-1).values.sum()
        for rounds in range(6)
    ]
    assert all(later >= before - 1e-4 for before, later in pairwise(sums)), "Lloyd's rounds only gain"
    assert sums[-1] > sums[0]
    found = spherical_kmeans(states, 4, keyed_generator(7))
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(4))
    assert torch.equal(found, spherical_kmeans(states, 4, keyed_generator(7)))


def test_k_means_of_as_many_points_as_clusters_is_the_points():
    states = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    found = spherical_kmeans(states, 5, keyed_generator(0))
    assert (
        torch.equal(found.sum(0).sort().values, F.normalize(states, dim=-1).sum(0).sort().values)
        or ((found @ F.normalize(states, dim=-1).T).max(1).values > 0.9999).all()
    )


def test_a_cluster_without_members_keeps_its_place():
    """Two equal points: the first takes both, and the second centre must not become zero."""
    states = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    for key in range(10):
        found = spherical_kmeans(states, 3, keyed_generator(key))
        torch.testing.assert_close(found.norm(dim=-1), torch.ones(3))


# --- initialisation and schedule of the stable recipe --------------------------------------------------------------


@pytest.mark.parametrize("sublayer", ["memory", "dense"])
def test_what_projects_into_the_residual_stream_may_begin_smaller(sublayer):
    wide = ("model.hidden=64", f"model.sublayer={sublayer}", "model.dense_width=64", "model.blocks=8")
    plain, scaled = model(*wide), model(*wide, "model.residual_init=scaled")
    for name, tensor in scaled.state_dict().items():
        if name.endswith(("attention.output.weight", "dense.down.weight")):
            assert tensor.std().item() == pytest.approx(0.02 / 4, rel=0.1)  # sqrt(2 * 8) = 4
        elif name.endswith("weight") and "norm" not in name:
            assert tensor.std().item() == pytest.approx(plain.state_dict()[name].std().item(), rel=0.2)


def test_the_objective_weighs_its_terms_by_the_schedule():
    lm, (ids, labels) = model(), tokens()
    whole = lm(ids, labels)
    lm.set_aux_weight(0.25)
    quarter = lm(ids, labels)
    assert quarter.task_loss.item() == whole.task_loss.item()
    torch.testing.assert_close(quarter.loss - quarter.task_loss, (whole.loss - whole.task_loss) / 4)


def test_the_weight_travels_with_no_checkpoint():
    lm = model()
    lm.set_aux_weight(0.0)
    assert "aux_weight" not in lm.state_dict()
    assert model().aux_weight.item() == 1.0


def test_queries_and_keys_may_begin_wider():
    wide = model("model.hidden=64", "memory.navigation=64", "memory.navigation_init=0.1")
    plain = model("model.hidden=64", "memory.navigation=64")
    for cell, other in zip(wide.cells, plain.cells, strict=True):
        assert cell.query.weight.std().item() == pytest.approx(0.1, rel=0.1)
        assert cell.key.weight.std().item() == pytest.approx(0.1, rel=0.1)
        assert other.key.weight.std().item() == pytest.approx(0.02, rel=0.1)
