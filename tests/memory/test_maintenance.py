"""Rules of reset and merge that the oracle's one case does not reach."""

import torch

from gmt.memory.losses import cluster_loss
from gmt.memory.maintenance import forget_moments, keyed_generator, maintain, reseed_positions, track_usage
from gmt.memory.temperature import temperature

RULES = {"dead_below": 0.01, "merge_cosine": 0.95, "merge_age": 100}


def memory(slots: int, usage: list[float], age: float = 0.0):
    torch.manual_seed(0)
    centroids = torch.nn.functional.normalize(torch.randn(slots, 6, dtype=torch.float64), dim=-1)
    return centroids, torch.tensor(usage, dtype=torch.float64), torch.full((slots,), age, dtype=torch.float64)


def test_more_than_half_dead_are_reseeded_at_random():
    centroids, usage, age = memory(4, [0.0, 0.0, 0.0, 1.0])
    candidates = torch.ones(4, 6, dtype=torch.float64)
    event = maintain(centroids, usage, age, candidates, generator=keyed_generator(3), **RULES)
    assert event.reset.tolist() == [True, True, True, False]
    assert (centroids[:3] @ torch.ones(6, dtype=torch.float64) / 6**0.5 < 0.99).all()
    torch.testing.assert_close(centroids.norm(dim=-1), torch.ones(4, dtype=torch.float64))
    assert usage.tolist() == [0.25, 0.25, 0.25, 1.0]


def test_exactly_half_dead_are_reseeded_from_tokens():
    centroids, usage, age = memory(4, [0.0, 0.5, 0.0, 0.5])
    candidates = torch.eye(6, dtype=torch.float64)[:4] * 3
    maintain(centroids, usage, age, candidates, generator=keyed_generator(3), **RULES)
    assert torch.equal(centroids[[0, 2]], torch.eye(6, dtype=torch.float64)[:2])


def test_usage_at_the_threshold_is_alive():
    centroids, usage, age = memory(4, [0.01, 0.0099, 0.5, 0.5])
    event = maintain(centroids, usage, age, torch.ones(4, 6), generator=keyed_generator(3), **RULES)
    assert event.reset.tolist() == [False, True, False, False]


def test_the_cluster_term_of_one_slot_is_at_its_most():
    """exp of the entropy with its ε falls just under 1 here, and is held at 1."""
    usage = torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64)
    assert abs(cluster_loss(usage, 4.9).item() - 3.9) < 1e-12


def test_random_resets_depend_on_the_key_alone():
    runs = []
    for key in ((1, 2, 3), (1, 2, 3), (1, 2, 4)):
        centroids, usage, age = memory(4, [0.0] * 4)
        torch.manual_seed(len(runs))  # the global generator has no say
        maintain(centroids, usage, age, torch.zeros(4, 6), generator=keyed_generator(*key), **RULES)
        runs.append(centroids)
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_all_equal_slots_leave_one():
    """Every pair is a near-duplicate: the tie goes against j, and no slot is replaced twice."""
    centroids, usage, age = memory(4, [0.25] * 4, age=100)
    centroids[:] = centroids[0].clone()
    first = centroids[0].clone()
    candidates = torch.eye(6, dtype=torch.float64)[:4]
    event = maintain(centroids, usage, age, candidates, generator=keyed_generator(0), **RULES)
    assert event.merged.tolist() == [False, True, True, True]
    assert torch.equal(centroids[0], first) and torch.equal(centroids[1:], candidates[:3])
    assert age.tolist() == [100, 0, 0, 0]


def test_nothing_to_do_changes_nothing():
    centroids, usage, age = memory(4, [0.25] * 4, age=500)
    before = [t.clone() for t in (centroids, usage, age)]
    event = maintain(centroids, usage, age, torch.zeros(4, 6), generator=keyed_generator(0), **RULES)
    assert not event.replaced.any()
    assert all(torch.equal(a, b) for a, b in zip((centroids, usage, age), before, strict=True))


def test_replaced_slots_lose_their_moments():
    parameter = torch.nn.Parameter(torch.randn(4, 6))
    optimizer = torch.optim.AdamW([parameter])
    parameter.square().sum().backward()
    optimizer.step()
    before = {k: v.clone() for k, v in optimizer.state[parameter].items()}
    forget_moments(optimizer, parameter, torch.tensor([False, True, False, False]))
    for name in ("exp_avg", "exp_avg_sq"):
        moment = optimizer.state[parameter][name]
        assert (moment[1] == 0).all() and (moment[0] != 0).all()
        assert torch.equal(moment[[0, 2, 3]], before[name][[0, 2, 3]])
    assert optimizer.state[parameter]["step"] == before["step"]


def test_positions_are_distinct_while_they_can_be():
    assert sorted(reseed_positions(8, 8, keyed_generator(0)).tolist()) == list(range(8))
    few = reseed_positions(3, 8, keyed_generator(0)).tolist()
    assert len(few) == 8 and set(few) == {0, 1, 2}


def test_a_pass_without_tokens_leaves_usage():
    usage, age = torch.full((4,), 0.25), torch.zeros(4)
    track_usage(usage, age, torch.zeros(4), torch.tensor(0.0), 0.99)
    assert usage.tolist() == [0.25] * 4


def test_temperature_at_the_papers_numbers():
    assert temperature(0, 20000, 1.0, 0.1) == 1.0
    assert abs(temperature(20000, 20000, 1.0, 0.1) - 0.1) < 1e-15
    assert temperature(30000, 20000, 1.0, 0.1) == temperature(20000, 20000, 1.0, 0.1)
    # by hand: p = 1/2, rho = ln(1.85914) = 0.620115, 0.1^rho = 0.239820
    assert abs(temperature(10000, 20000, 1.0, 0.1) - 0.239820) < 1e-6
    assert temperature(5, 10, 2.0, 2.0) == 2.0
