"""What holds for any size and any numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gmt import GMTConfig, GraphMemoryLM
from gmt.memory.routing import transition_matrix

SIZES = st.fixed_dictionaries(
    {
        "slots": st.integers(2, 9),
        "navigation": st.integers(1, 5),
        "heads": st.integers(1, 3),
        "width": st.integers(1, 4),
        "blocks": st.integers(1, 3),
        "rows": st.integers(1, 3),
        "length": st.integers(1, 7),
        "tau": st.floats(1e-3, 10),
        "seed": st.integers(0, 2**31),
        "scale": st.floats(0.0, 3.0),
    }
)


def draw(size) -> tuple[GraphMemoryLM, torch.Tensor, torch.Tensor]:
    torch.manual_seed(size["seed"])
    shape = {"blocks": size["blocks"], "hidden": max(2, 2 * size["heads"] * size["width"]), "heads": size["heads"]}
    cfg = GMTConfig.from_dict(
        {
            "model": shape | {"context": 8, "vocab": 13, "dropout": 0.0},
            "memory": {"slots": size["slots"], "navigation": size["navigation"]},
        }
    )
    lm = GraphMemoryLM(cfg).double()
    with torch.no_grad():
        for p in lm.parameters():
            p.add_(torch.randn_like(p) * size["scale"])
    tokens = torch.randint(13, (size["rows"], size["length"] + 1))
    return lm, tokens[:, :-1], tokens[:, 1:]


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_distributions_lie_on_the_simplex(size):
    lm, ids, labels = draw(size)
    out = lm(ids, labels, tau=size["tau"], return_routes=True)
    for route in out.routes:
        for weights in (route.source, route.target):
            assert weights.shape == (*ids.shape, size["slots"])
            assert (weights >= 0).all()
            torch.testing.assert_close(weights.sum(-1), torch.ones(ids.shape, dtype=torch.float64))
    assert torch.isfinite(out.loss)


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_transitions_are_rows_without_a_diagonal(size):
    lm, _, _ = draw(size)
    for cell in lm.cells:
        p = transition_matrix(cell.edges)
        assert (p.diagonal() == 0).all() and (p >= 0).all()
        torch.testing.assert_close(p.sum(-1), torch.ones(size["slots"], dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(SIZES)
def test_write_back_leaves_unit_centroids(size):
    lm, ids, labels = draw(size)
    lm.commit(lm(ids, labels, tau=size["tau"]).writes)
    for cell in lm.cells:
        torch.testing.assert_close(cell.centroids.norm(dim=-1), torch.ones(size["slots"], dtype=torch.float64))
        torch.testing.assert_close(cell.usage.sum(), torch.ones((), dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(SIZES, st.randoms(use_true_random=False))
def test_slots_have_no_order(size, random):
    """Permuting the slots permutes routing and leaves logits and terms unchanged."""
    lm, ids, labels = draw(size)
    before = lm(ids, labels, tau=size["tau"], return_routes=True)
    orders = []
    with torch.no_grad():
        for cell in lm.cells:
            order = torch.tensor(random.sample(range(size["slots"]), size["slots"]))
            cell.centroids.copy_(cell.centroids[order].clone())
            cell.edges.copy_(cell.edges[order][:, order].clone())
            orders.append(order)
    after = lm(ids, labels, tau=size["tau"], return_routes=True)
    torch.testing.assert_close(after.logits, before.logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after.loss, before.loss, rtol=1e-9, atol=1e-9)
    for order, new, old in zip(orders, after.routes, before.routes, strict=True):
        torch.testing.assert_close(new.source, old.source[..., order], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(new.target, old.target[..., order], rtol=1e-7, atol=1e-9)
