import numpy as np
import pytest

from gmt.analysis.views import active_edges, routing_consistency, routing_flow
from gmt.analysis.views.routing import Along, Move, along_edges, busiest, moves
from tests.analysis.conftest import (
    CLASSES,
    check_drawing,
    dense_trace,
    hand_trace,
    odd_trace,
    one_token,
    planted_trace,
    random_trace,
    small_trace,
    table,
)


def test_moves_are_counted_with_their_words_and_commonest_class():
    assert moves(small_trace(), 0, CLASSES) == [
        Move(1, 3, 3, "DET", ["a", " b"]),
        Move(0, 0, 1, "VERB", [" c"]),
        Move(1, 2, 1, "PUNCT", [" e"]),
        Move(2, 1, 1, "NOUN", [" d"]),
    ]


def test_busiest_leaves_out_what_is_not_used():
    assert busiest(np.array([2, 0, 5, 2]), 3).tolist() == [2, 0, 3]
    assert busiest(np.array([2, 0, 5, 2]), 4).tolist() == [2, 0, 3]


def test_flow_states_what_was_counted():
    view = routing_flow(small_trace(), 0, CLASSES)
    assert view.name == "routing-flow-text-block-0"
    assert "6 tokens of text leave from 3 slots and arrive at 4 of 4, by 4 different moves" in view.caption
    assert "The busiest, 1 to 3, is taken by 3 tokens: “a”, “b”." in view.caption
    assert "17 % of the tokens stay" in view.caption
    assert table(view)[0] == {
        "source": 1, "target": 3, "tokens": 3, "self_route": False, "commonest_class": "DET", "different_tokens": "a b",
    }  # fmt: skip
    assert [row["self_route"] for row in table(view)] == [False, True, False, False]


def test_planted_route_is_all_that_is_seen():
    trace = planted_trace()
    view = routing_flow(trace, 1, None)
    assert [row[:4] for row in view.rows] == [[1, 3, 6, False]]
    assert "leave from 1 slot and arrive at 1 of 4" in view.caption and "1 to 3, is taken by 6 tokens" in view.caption
    edges = table(active_edges(trace, 1))
    assert {(row["source"], row["target"]): row["tokens"] for row in edges if row["tokens"]} == {(1, 3): 6}
    assert [edges[0]["source"], edges[4]["source"]] == [1, 3]  # the used slots come first


def test_edges_taken_are_judged_by_hand():
    transition = np.zeros((2, 4, 4), dtype=np.float32)
    transition[0] = [[0, 0.5, 0.3, 0.2], [0.1, 0, 0.3, 0.6], [0.2, 0.3, 0, 0.5], [0.4, 0.3, 0.3, 0]]
    trace = small_trace(transition=transition)
    # leave: 1>3 three times (0.6, strongest), 2>1 (0.3, not), 1>2 (0.3, not); the one that stays is not asked
    assert along_edges(trace, 0) == Along(5, pytest.approx(0.6), pytest.approx((3 * 0.6 + 0.3 + 0.3) / 5))
    caption = active_edges(trace, 0).caption
    assert "5 of the 6 tokens" in caption and "60 % of these moves" in caption
    assert "is 0.480, 1.4 times the 0.333 of equal edges" in caption


def test_edges_are_those_of_the_busiest_slots():
    view = active_edges(small_trace(), 0, count=2)
    assert {row[0] for row in view.rows} == {1, 3}  # five and three tokens
    stays = hand_trace([[2, 2]], [[2, 2]])
    assert along_edges(stays, 0) is None
    assert "every token of text stays" in active_edges(stays, 0).caption


def test_consistency_by_hand():
    # "a" stands twice: same slot in block 0 and another one in block 1, where 0.7 and 0.1 overlap by 0.1 * 4
    trace = hand_trace([[1, 0, 1], [1, 0, 2]], [[0] * 3] * 2, tokens=["a", "b", "a"])
    view = routing_consistency([trace, dense_trace()])
    rows = table(view)
    assert [row["same_slot"] for row in rows] == [1, 0] and [row["pairs"] for row in rows] == [1, 1]
    assert [row["overlap"] for row in rows] == pytest.approx([1, 0.4], abs=1e-3)
    assert view is not None and "50 % (text)" in view.caption and "70 % (text)" in view.caption
    assert routing_consistency([planted_trace(["a", "b", "c", "d", "e", "f"])]) is None


@pytest.mark.parametrize("make", [odd_trace, one_token])
def test_they_draw(make, tmp_path):
    trace = make()
    for classes in (None, CLASSES[: len(trace.tokens)]):
        check_drawing(routing_flow(trace, 0, classes), tmp_path)
    check_drawing(active_edges(trace, 0), tmp_path)


def test_consistency_draws_many_texts(tmp_path):
    check_drawing(routing_consistency([small_trace(name=f"text {n}") for n in range(9)]), tmp_path)


def test_a_large_trace_is_cut_to_what_can_be_seen(tmp_path):
    trace, classes = random_trace(blocks=1, count=900)
    view = routing_flow(trace, 0, classes)
    assert len(view.rows) > 300 and "The 300 commonest moves are drawn." in view.caption
    assert view.draw is not None
    texts = view.draw().axes[0].texts
    drawn = [text for text in texts if text.arrow_patch is not None]
    assert len(drawn) == sum(row[0] != row[1] for row in view.rows[:300])  # who stays has a ring
