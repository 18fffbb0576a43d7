"""A model whose edges are set by hand, so that every slot goes to the next: each view must show it."""

import pytest
import torch

pytest.importorskip("matplotlib")

from gmt.analysis import trace, views
from gmt.analysis.diagnostics import block_diagnostics
from gmt.analysis.interventions import Edges, intervene
from gmt.analysis.meaning import busiest_moves, typical_scale
from gmt.analysis.tell import destinations, displacement_examples, routing_trace
from gmt.analysis.views.meaning import edge_meaning
from gmt.hf.load import open_model
from tests.evaluate.conftest import make_model

TEXT = "the cat sat on a mat while they counted 345 stars, didn't they? The cat sat in a café."
SLOTS = 6


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """P has all its mass on one edge a slot; the token's own wish is nothing; and a token is wholly in one slot."""
    loaded = open_model(make_model(tmp_path_factory.mktemp("model") / "planted"))
    with torch.no_grad():
        for cell in loaded.lm.cells:
            cell.edges.fill_(-30)
            for slot in range(SLOTS):
                cell.edges[slot, (slot + 1) % SLOTS] = 30
            cell.query.weight.zero_()
        loaded.lm.set_temperature(0.02)
    return loaded, trace(loaded, TEXT, "planted")


def test_every_token_goes_to_the_next_slot(planted):
    _, found = planted
    assert ((found.source_slot + 1) % SLOTS == found.target_slot).all()
    assert found.transition[0].argmax(-1).tolist() == [1, 2, 3, 4, 5, 0]
    (row, *_) = block_diagnostics(found)
    assert row["largest_edge"] == pytest.approx(1) and row["edge_entropy"] == pytest.approx(0, abs=1e-5)
    assert row["self_route"] == 0


def test_the_moves_of_every_view_are_the_planted_ones(planted):
    _, found = planted
    for block in range(found.blocks):
        flow = views.routing_flow(found, block, None)
        place = {name: n for n, name in enumerate(flow.header)}
        for row in flow.rows:
            assert (int(row[place["source"]]) + 1) % SLOTS == int(row[place["target"]])
        assert all((i + 1) % SLOTS == j for i, j, _ in busiest_moves(found, block, 99))
        assert "100 %" in views.active_edges(found, block).caption, "all moves go along the strongest edge"


def test_the_words_of_every_text_view_are_the_planted_ones(planted):
    loaded, found = planted
    for row in routing_trace(found, None, [0]).rows:
        source, target = map(int, row[4].split(" → "))
        assert (source + 1) % SLOTS == target
    for row in displacement_examples(found, 0).rows:
        assert (row[0] + 1) % SLOTS == row[3] and row[4] == 1.0
    for row in destinations(found, 0, count=SLOTS).rows:
        assert (row[2] + 1) % SLOTS == row[0]
    told = edge_meaning(loaded, found, 0, typical_scale([found]))
    assert told is not None
    for move, _, share, *_ in told.rows:
        source, target = map(int, move.split(" → "))
        assert (source + 1) % SLOTS == target and share == pytest.approx(1)


def test_and_without_its_edges_it_is_gone(planted):
    loaded, _ = planted
    with intervene(loaded.lm, [Edges(form="uniform")]):
        other = trace(loaded, TEXT, "uniform")
    assert not ((other.source_slot + 1) % SLOTS == other.target_slot).all()
