import numpy as np
import pytest
from matplotlib.colors import to_hex

from gmt import plot
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
    words_in,
)


def test_moves_are_counted_by_word_class():
    assert moves(small_trace(), 0, CLASSES) == [
        Move(1, 3, "DET", 2, ["a"]),
        Move(0, 0, "VERB", 1, [" c"]),
        Move(1, 2, "PUNCT", 1, [" e"]),
        Move(1, 3, "NOUN", 1, [" b"]),
        Move(2, 1, "NOUN", 1, [" d"]),
    ]
    assert moves(small_trace(), 0, None)[0] == Move(1, 3, None, 3, ["a", " b"])


def test_busiest_leaves_out_what_is_not_used():
    assert busiest(np.array([2, 0, 5, 2]), 3).tolist() == [2, 0, 3]
    assert busiest(np.array([2, 0, 5, 2]), 4).tolist() == [2, 0, 3]


def test_flow_states_what_was_counted():
    view = routing_flow(small_trace(), 0, CLASSES)
    assert view.name == "routing-flow-text-block-0"
    assert "Block 0 takes 6 tokens of text from 3 slots to 4 of 4. There are 3 different moves;" in view.caption
    assert "the busiest, 1 to 3, is taken by 3 tokens: “a”, “·b”." in view.caption
    assert "Of the tokens 17 % stay" in view.caption
    assert table(view)[0] == {"source": 1, "target": 3, "class": "DET", "tokens": 2, "examples": "a"}
    single = routing_flow(one_token(), 0, None).caption
    assert "Block 0 takes 1 token of text from 1 slot to 1 of 2. There is 1 different move;" in single


def test_each_class_has_its_own_arrow_and_they_bend_apart():
    view = routing_flow(small_trace(), 0, CLASSES)
    assert view.draw is not None
    arrows = [text.arrow_patch for text in view.draw().axes[0].texts if text.arrow_patch is not None]
    assert len(arrows) == 4  # 1>3 twice, 1>2, 2>1; who stays has a ring
    colours = sorted(to_hex(arrow.get_edgecolor()).upper() for arrow in arrows)
    assert colours == sorted(plot.POS_COLOURS[name] for name in ("DET", "NOUN", "NOUN", "PUNCT"))
    assert len({arrow.get_connectionstyle().rad for arrow in arrows}) == 2


@pytest.mark.parametrize(("states", "near"), [(np.eye(16), False), (np.eye(16)[:, :2], True)])
def test_near_is_alike_only_where_the_plane_says_so(states, near, tmp_path):
    trace = hand_trace([[0, 1]], [[1, 2]], slots=16, states=np.array([states], dtype=np.float32))
    view = routing_flow(trace, 0, None)
    share = "100 %" if near else "13 %"  # two of fifteen directions, all alike
    assert f"the two directions that hold {share} of their variance" in view.caption
    assert ("near is alike" in view.caption) is near
    check_drawing(view, tmp_path)
    assert ("near is alike" in words_in(tmp_path, view)) is near


def test_planted_route_is_all_that_is_seen():
    trace = planted_trace()
    view = routing_flow(trace, 1, None)
    assert [row[:4] for row in view.rows] == [[1, 3, "", 6]]
    assert "from 1 slot to 1 of 4" in view.caption and "1 to 3, is taken by 6 tokens" in view.caption
    edges = table(active_edges(trace, 1))
    assert {(row["source"], row["target"]): row["tokens"] for row in edges if row["tokens"]} == {(1, 3): 6}
    assert [row["source"] for row in edges] == [1, 1, 3, 3]  # slots that no token leaves or enters are left out


def test_edges_taken_are_judged_by_hand():
    transition = np.zeros((2, 4, 4), dtype=np.float32)
    transition[0] = [[0, 0.5, 0.3, 0.2], [0.1, 0, 0.3, 0.6], [0.2, 0.3, 0, 0.5], [0.4, 0.3, 0.3, 0]]
    trace = small_trace(transition=transition)
    # leave: 1>3 three times (0.6, strongest), 2>1 (0.3, not), 1>2 (0.3, not); the one that stays is not asked
    found = along_edges(trace, 0)
    assert found is not None and found == pytest.approx(Along(5, 0.6, (3 * 0.6 + 0.3 + 0.3) / 5))
    caption = active_edges(trace, 0).caption
    assert "leave their slot: 5 of 6." in caption and "Of these moves 60 %" in caption and "outside" not in caption
    assert "is 0.480, 1.4 times the 0.333 of equal edges" in caption


def test_edges_are_those_of_the_busiest_slots():
    view = active_edges(small_trace(), 0, count=2)
    assert {row[0] for row in view.rows} == {1, 3}  # five and three tokens
    assert "Shown: 2 of the 4 slots in use; 50 % of the tokens' moves lie outside of them." in view.caption
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
    assert view is not None and "same likeliest source in 50 % (text)" in view.caption and "70 % (text)" in view.caption
    assert "1 type (text)" in view.caption and "each type counted once" in view.caption
    assert routing_consistency([planted_trace(["a", "b", "c", "d", "e", "f"])]) is None


@pytest.mark.parametrize("make", [odd_trace, one_token])
def test_they_draw(make, tmp_path):
    trace = make()
    for classes in (None, CLASSES[: len(trace.tokens)]):
        check_drawing(routing_flow(trace, 0, classes), tmp_path)
    check_drawing(active_edges(trace, 0), tmp_path)


def test_consistency_is_held_against_different_tokens():
    # pairs of different tokens in block 0: a b in one slot, a c and b c in others, each a twice
    trace = hand_trace([[1, 1, 1, 2]], [[0] * 4], tokens=["a", "b", "a", "c"])
    view = routing_consistency([trace])
    assert table(view)[0]["different"] == pytest.approx(2 / 5)
    assert view is not None and "two places of different tokens in 40 % (text)" in view.caption
    assert view.draw is not None
    dashed = [line for line in view.draw().axes[0].lines if line.get_linestyle() == "--" and len(line.get_ydata())]
    assert [list(line.get_ydata()) for line in dashed] == [pytest.approx([0.4])]


def test_consistency_draws_many_texts(tmp_path):
    check_drawing(routing_consistency([small_trace(name=f"text {n}") for n in range(9)]), tmp_path)


def test_a_large_trace_is_cut_to_what_can_be_seen(tmp_path):
    trace, classes = random_trace(blocks=1, count=900)
    view = routing_flow(trace, 0, classes)
    assert len(view.rows) > 300 and "The 300 commonest of" in view.caption
    assert view.draw is not None
    texts = view.draw().axes[0].texts
    drawn = [text for text in texts if text.arrow_patch is not None]
    assert len(drawn) == sum(row[0] != row[1] for row in view.rows[:300])  # who stays has a ring
