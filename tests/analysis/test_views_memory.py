import math

import numpy as np
import pytest

from gmt.analysis.views import centroid_similarity, edge_entropy, edge_matrices, gate_and_momentum
from gmt.analysis.views.memory import cosines, seriate, telling_digits
from tests.analysis.conftest import check_drawing, one_token, random_trace, small_trace, table


def test_edges_and_the_strongest_of_them():
    transition = small_trace().transition.copy()
    transition[1, 2] = [0.7, 0.2, 0, 0.1]
    view = edge_matrices(small_trace(transition=transition), [0, 1])
    assert "0.333 in block 0, 0.425 in block 1; equal edges would have 0.333" in view.caption  # (3/3 + 0.7) / 4
    assert "The strongest of all, 0.700, goes from slot 2 to 0 in block 1" in view.caption
    assert len(view.rows) == 2 * 12  # all but the diagonals
    assert {(r["source"], r["target"]): r["probability"] for r in table(view) if r["block"] == 1}[
        2, 1
    ] == pytest.approx(0.2)
    assert {row[0] for row in edge_matrices(small_trace(), [1]).rows} == {1}


def test_cosines_by_hand():
    rows = np.array([[2.0, 0], [0, 3], [-1, 0], [1, 1]])
    root = math.sqrt(0.5)
    wanted = [[1, 0, -1, root], [0, 1, 0, root], [-1, 0, 1, -root], [root, root, -root, 1]]
    assert cosines(rows) == pytest.approx(np.array(wanted))
    assert cosines(np.zeros((2, 3))).tolist() == [[0, 0], [0, 0]]  # no direction, and no NaN


def test_seriation_brings_like_together():
    group = np.array([0, 1, 0, 1, 1, 0])
    order = seriate(np.where(group[:, None] == group, 0.9, -0.5) + 0.1 * np.eye(6))
    found = group[order]
    assert (np.diff(found) != 0).sum() == 1
    assert sorted(order.tolist()) == list(range(6))


def test_similarity_names_the_nearest_pair():
    centroids = np.zeros((2, 4, 6), dtype=np.float32)
    centroids[0, np.arange(4), np.arange(4)] = 1
    centroids[0, 3] = [0, 0.1, 0, 1, 0, 0]  # a cosine of 0.1 / sqrt(1.01) to slot 1, and of 0 to others
    view = centroid_similarity(small_trace(centroids=centroids), [0])
    assert "mean cosine 0.02, most alike 1 and 3 with 0.10, 0 pairs of 6 above 0.9" in view.caption
    assert len(view.rows) == 6
    assert [row["cosine"] for row in table(view) if (row["slot"], row["other_slot"]) == (1, 3)] == pytest.approx(
        [0.0995], abs=1e-4
    )
    centroids[0, 2] = centroids[0, 0]
    assert (
        "most alike 0 and 2 with 1.00, 1 pair of 6"
        in centroid_similarity(small_trace(centroids=centroids), [0]).caption
    )


def test_gate_and_momentum_are_those_of_the_trace():
    view = gate_and_momentum(small_trace())
    assert [cell for row in view.rows for cell in row] == pytest.approx([0, 0.1, 0.9, 0.1, 1, 0.4, 0.8, 0.2])
    assert "from 0.100 (block 0) to 0.400 (block 1), mean 0.250" in view.caption
    assert "1 − m of the momentum m, goes from 0.100 (block 0) to 0.200 (block 1)." in view.caption


def test_momenta_that_differ_little_are_told_apart():
    view = gate_and_momentum(small_trace(momentum=np.array([0.99240, 0.99236])))
    assert "goes from 0.0076 (block 0) to 0.0076" not in view.caption
    assert "goes from 0.00760 (block 0) to 0.00764 (block 1)" in view.caption
    assert telling_digits(np.array([0.5])) == 8 and telling_digits(np.array([1e-5, 0.5])) == 5


@pytest.mark.parametrize(("momentum", "scale"), [([0.99, 0.8], "log"), ([0.99, 0.98], "linear")])
def test_far_momenta_have_a_log_axis(momentum, scale):
    view = gate_and_momentum(small_trace(momentum=np.array(momentum)))
    assert view.draw is not None and view.draw().axes[1].get_yscale() == scale


def test_edge_entropy_by_hand():
    transition = small_trace().transition.copy()
    transition[1] = np.roll(np.eye(4), 1, axis=1)  # each slot reaches one other
    view = edge_entropy(small_trace(transition=transition))
    equal, one = table(view)
    for key in ("least", "median", "most", "mean"):
        assert equal[key] == pytest.approx(math.log(3), abs=1e-5) and one[key] == pytest.approx(0, abs=1e-5)
    assert equal["mean_reachable"] == pytest.approx(3, abs=1e-4) and one["mean_reachable"] == pytest.approx(1, abs=1e-4)
    assert "is 0.55 of at most 1.10 (log 3)" in view.caption
    assert "from 1.0 (block 1) to 3.0 (block 0), of 3" in view.caption


@pytest.mark.parametrize("make", [small_trace, one_token])
def test_they_draw(make, tmp_path):
    trace = make()
    check_drawing(edge_matrices(trace, list(range(trace.blocks))), tmp_path)
    check_drawing(centroid_similarity(trace, [0]), tmp_path)
    check_drawing(gate_and_momentum(trace), tmp_path)
    check_drawing(edge_entropy(trace), tmp_path)


def test_six_blocks_stand_in_two_rows():
    trace, _ = random_trace(blocks=6, count=20, slots=16)
    view = edge_matrices(trace, list(range(6)))
    assert view.draw is not None
    assert [axis.get_title(loc="left") for axis in view.draw().axes[:6]] == [f"block {n}" for n in range(6)]
