import numpy as np
import pytest

from gmt.analysis.tell import shown
from gmt.analysis.trace import Trace
from gmt.analysis.views import (
    displacement_by_pos,
    displacement_map,
    displacement_norms,
    logit_share,
    pos_routing,
    pos_slots,
    slot_tokens,
    surprise,
)
from gmt.analysis.views.drawing import file_safe, label, over_blocks, percent, plural, readable, strips
from gmt.analysis.views.prediction import logit_parts
from gmt.analysis.views.word_slots import affinity, class_counts, most_specialised
from gmt.analysis.views.words import between_classes, far_apart, principal
from tests.analysis.conftest import (
    CLASSES,
    ODD,
    check_drawing,
    counted,
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


def test_tokens_can_be_read():
    assert [readable(token) for token in ("\n", " the", "  ", "\x00", "a\tb", "天¹")] == [
        "↵", "·the", "··", "\\x00", "a⇥b", "天¹",
    ]  # fmt: skip
    assert all(readable(token) == shown(token) for token in ODD)
    assert readable("x" * 20, 5) == "xxxx…"
    assert label("$x$") == r"\$x\$"
    assert file_safe("routing-flow", "My text_1!", "block", 3) == "routing-flow-my-text-1-block-3"
    assert [len(part) for part in strips(["x"] * 100, 80)] == [40, 40] and [*strips(["x"], 80)[0]] == [0]


def test_numbers_in_words():
    assert [percent(share) for share in (0, 0.001, 0.454, 1)] == ["0 %", "under 1 %", "45 %", "100 %"]
    assert [plural(count, "token") for count in (0, 1, 2)] == ["0 tokens", "1 token", "2 tokens"]
    assert over_blocks(np.array([0.5])) == "is 0.50 (block 0)"
    assert over_blocks(np.array([0.5, 0.25])) == "goes from 0.25 (block 1) to 0.50 (block 0)"


def test_a_hand_made_displacement_follows_from_its_states():
    trace = small_trace()
    shift = trace.states[0, 3] - trace.states[0, 1]  # the first token: 0.7 and 0.1 of each of the other three
    assert trace.shift_norm[0, 0] == pytest.approx(0.6 * np.linalg.norm(shift), rel=1e-3)
    even = (shift - shift.mean()) / shift.std()
    assert trace.displacement[0, 0] == pytest.approx(even, abs=5e-3)
    assert trace.update_norm[0, 0] == pytest.approx(6**0.5, rel=1e-3)  # whatever the shift


def test_principal_directions_by_hand():
    rows = np.array([[3, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]], dtype=np.float32)
    places, shares = principal(rows)
    assert shares == pytest.approx([0.9, 0.1])  # 18 and 2 of 20
    assert np.abs(places) == pytest.approx(np.array([[3, 0], [3, 0], [0, 1], [0, 1]]))
    places, shares = principal(rows[:1])
    assert places.tolist() == [[0, 0]] and shares.tolist() == [0, 0]
    assert principal(np.array([[1.0], [2.0]]))[1].tolist() == [1, 0]


def test_variance_between_classes_by_hand():
    rows = np.array([[1.0], [3.0], [-1.0], [-3.0]])  # means of classes 2 and -2: 16 of 20
    assert between_classes(rows, ["A", "A", "B", "B"]) == pytest.approx(0.8)
    assert between_classes(rows[:1], ["A"]) == 0


def test_labels_are_far_apart():
    assert sorted(far_apart(np.array([[0, 0], [10, 10], [10, 10.01], [0, 10]]), 4)) in ([0, 1, 3], [0, 2, 3])
    assert far_apart(np.zeros((5, 2)), 3) == [0]


def test_map_states_its_numbers():
    moved = np.zeros((2, 6, 6), dtype=np.float16)
    moved[0, :, 0] = [3, -3, 0, 0, 0, 0]
    view = displacement_map(small_trace(displacement=moved, shift_norm=counted()), 0, CLASSES)
    assert "hold 100 % and 0 %" in view.caption
    assert "Before LN_disp the longest, 6.00, is that of “·e”" in view.caption and table(view)[5]["shift_norm"] == 6
    # means: DET 1.5, NOUN -1.5, two tokens each, others 0: 2 * 2.25 * 2 = 9 of 18
    assert "word classes (4) account for 50 % of the variance" in view.caption
    assert abs(table(view)[0]["first"]) == pytest.approx(3) and table(view)[1]["class"] == "NOUN"


def test_norms_state_their_extremes():
    added = np.array([[1.0, 1, 1, 1, 1, 1], [3, 3, 3, 3, 3, 3]])
    view = displacement_norms(small_trace(shift_norm=counted(), update_norm=added))
    assert len(view.rows) == 12 and list(view.rows[1]) == [0, "a", 1, 7.0, 3.0]
    assert "nearly the same length for all tokens, 1.00 to 3.00: within a block it varies by 0 %" in view.caption
    assert "mean 6.50. Block 1 moves tokens most (9.50), block 0 least (3.50)" in view.caption
    assert "12.00, “·e” in block 1" in view.caption and "“a” moves least (4.00)" in view.caption
    assert "drawn" not in view.caption
    long, _ = random_trace(blocks=2, count=90, slots=8)
    view = displacement_norms(long)
    assert "The first 80 of 90 tokens are drawn" in view.caption and len(view.rows) == 180


def test_norms_by_class_by_hand():
    view = displacement_by_pos(small_trace(shift_norm=counted()), CLASSES)
    rows = {(row["class"], row["block"]): row for row in table(view)}
    assert (
        rows["DET", 0]["mean_norm"] == 2 and rows["DET", 1]["mean_norm"] == 8 and rows["DET", "all"]["mean_norm"] == 5
    )
    assert rows["NOUN", "all"] == {"class": "NOUN", "block": "all", "tokens": 2, "mean_norm": 6.5}
    assert view is not None and "by word class: none has 3 tokens; over all tokens 6.50. What is added" in view.caption
    assert [row[0] for row in view.rows[:4]] == ["PUNCT", "VERB", "NOUN", "DET"]


def test_extremes_are_of_classes_with_enough_tokens():
    nine = dense_trace(count=9)  # lengths 1..9 and 10..18, in the mean 5.5 to 13.5
    view = displacement_by_pos(nine, ["NOUN"] * 3 + ["VERB"] * 3 + ["DET", "DET", "X"])
    assert view is not None and "least for NOUN (6.50, 3 tokens)" in view.caption and "LN_disp" not in view.caption
    assert "of those with at least 3 tokens most for VERB (9.50, 3 tokens)" in view.caption
    view = displacement_by_pos(nine, ["NOUN"] * 7 + ["DET", "X"])
    assert view is not None and "only NOUN (8.50, 7 tokens) has at least 3 tokens" in view.caption


def test_classes_in_slots_by_hand():
    # classes NOUN, VERB, DET, PUNCT; sources 1 1 1 0 2 1
    assert class_counts(small_trace(), 0, CLASSES).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 2, 0, 0], [0, 1, 0, 0]]
    view = pos_slots(small_trace(), 0, CLASSES)
    assert view is not None and "slot with at least 3 tokens is 1: 2 of its 4 tokens are DET (50 %)" in view.caption
    assert "33 % of the text" in view.caption and "3 busiest source slots of block 0 hold 100 %" in view.caption
    assert table(view)[2] == {"slot": 1, "tokens": 4, "class": "DET", "tokens_of_class": 2, "share": 0.5}


def test_the_most_specialised_slot():
    assert most_specialised(np.array([[2, 3, 0, 6], [0, 0, 2, 1]])) == (0, 1)  # slot 0 has too few
    assert most_specialised(np.array([[3, 4], [0, 0]])) == (0, 1)  # of equals the one with more
    assert most_specialised(np.array([[1, 2], [0, 0]])) is None


def test_planted_route_holds_every_class_and_token():
    view = pos_slots(planted_trace(), 0, ["NOUN"] * 6)
    assert [list(row) for row in (view.rows if view else [])] == [[1, 6, "NOUN", 6, 1.0]]
    assert view is not None and "is 1: 6 of its 6 tokens are NOUN (100 %)" in view.caption
    found = table(slot_tokens(planted_trace(), 1))
    assert {row["slot"] for row in found} == {1} and len(found) == 5  # five different tokens
    assert all(row["mean_source_probability"] == pytest.approx(0.7, abs=1e-3) for row in found)
    assert found[0]["token"] == "a" and found[0]["occurrences"] == 2


def test_affinity_is_a_mean_over_a_types_places():
    trace = hand_trace([[1, 0, 2]], [[0, 0, 0]], tokens=["a", "b", "a"])  # "a" once in slot 1, once in slot 2
    ids, first, counts, mean = affinity(trace, 0)
    assert ids.tolist() == [0, 1] and first.tolist() == [0, 1] and counts.tolist() == [2, 1]
    assert mean == pytest.approx(np.array([[0.1, 0.4, 0.4, 0.1], [0.7, 0.1, 0.1, 0.1]]), abs=1e-3)
    assert "“b” stands in it most firmly (0.70), no token more" in slot_tokens(trace, 0).caption


def test_cells_of_tokens_that_hardly_stand_in_a_slot_are_blank(tmp_path):
    source = np.array([[[0.96, 0.04], [0.02, 0.98]]], dtype=np.float16)
    view = slot_tokens(hand_trace([[0, 1]], [[0, 0]], slots=2, tokens=["one", "two"], source=source), 0)
    assert len(view.rows) == 4  # the table has all
    check_drawing(view, tmp_path)
    words = [word.strip() for word in words_in(tmp_path, view).split("\n")]
    assert words.count("one") == 1 and words.count("two") == 1


def test_routing_by_class_by_hand():
    view = pos_routing(small_trace(), CLASSES)
    rows = {(row["class"], row["block"]): row for row in table(view)}
    assert [rows[name, 0]["self_route"] for name in ("NOUN", "VERB", "DET", "PUNCT")] == [0, 1, 0, 0]
    assert all(row["source_entropy"] == 0.5 for row in rows.values())
    assert view is not None and "8 % of the tokens" in view.caption
    assert "No word class has 3 tokens." in view.caption
    same = pos_routing(small_trace(), ["VERB"] * 4 + ["NOUN"] * 2)
    assert same is not None and "at least 3 tokens VERB stays most often (12 %)" in same.caption
    none = pos_routing(planted_trace(), ["VERB"] * 3 + ["NOUN"] * 3)
    assert none is not None and "at least 3 tokens none stays." in none.caption


def test_parts_of_the_logit_add_up():
    parts = logit_parts(small_trace())
    assert parts == {"logit": 10, "update": 6, "attention": 2, "embedding": 1, "bias": 1}
    attention = np.full((2, 6), 1, dtype=np.float32)
    attention[1, 3] = -7
    view = logit_share(small_trace(logit_attention=attention))
    assert "memory +6.00, attention +0.67, embeddings +1.00" in view.caption and "%" not in view.caption
    assert "-7.00, by attention in block 1 at “·c” (place 3) for “·p3”" in view.caption
    assert "sum of its parts differ by at most 8.0e+00" in view.caption  # 3 + 3 + 1 - 7 + 2 is not 10
    assert "the second sublayer +6.00" in logit_share(dense_trace()).caption
    assert "at most 0.0e+00" in logit_share(small_trace()).caption
    assert len(view.rows) == 12 and view.rows[7] == [3, "·c", 103, "·p3", 1, 3.0, -7.0]


def test_a_prediction_without_words_has_its_id(tmp_path):
    trace = small_trace()
    bare = Trace({key: value for key, value in trace.facts.items() if key != "predicted_words"}, trace.arrays)
    assert "for token id 100." in logit_share(bare).caption and logit_share(bare).rows[0][3] == ""
    check_drawing(logit_share(bare), tmp_path)


def test_memory_and_attention_have_their_own_scales():
    view = logit_share(small_trace(logit_attention=np.full((2, 6), -0.5, dtype=np.float32)))
    assert view.draw is not None
    limits = [image.get_clim() for axis in view.draw().axes for image in axis.images]
    assert limits == [(-3, 3), (-0.5, 0.5)]


def test_surprise_by_hand():
    view = surprise(small_trace())  # nothing, then 1 2 3 4 5
    assert "Over 5 tokens of text the mean surprise is 3.00 nats (perplexity 20.1)" in view.caption
    assert "“·e” at place 5 (5.00), least “·b” at place 1 (1.00)" in view.caption
    assert view.rows[0] == [0, "a", ""] and view.rows[5] == [5, "·e", 5.0]
    assert "0 are scored" in surprise(one_token()).caption


@pytest.mark.parametrize("make", [odd_trace, one_token])
def test_they_draw(make, tmp_path):
    trace = make()
    classes = CLASSES[: len(trace.tokens)]
    views = [displacement_map(trace, 0, None), displacement_map(trace, 0, classes), displacement_norms(trace)]
    views += [displacement_by_pos(trace, classes), pos_slots(trace, 0, classes), pos_routing(trace, classes)]
    for view in [*views, slot_tokens(trace, 0), logit_share(trace), surprise(trace)]:
        check_drawing(view, tmp_path)


def test_no_classes_no_views_of_classes():
    trace = small_trace()
    assert displacement_by_pos(trace, None) is None and pos_slots(trace, 0, None) is None
    assert pos_routing(trace, None) is None


def test_a_dense_model_has_norms_logits_and_surprise(tmp_path):
    trace = dense_trace()
    for view in (displacement_norms(trace), displacement_by_pos(trace, CLASSES), logit_share(trace), surprise(trace)):
        check_drawing(view, tmp_path)


def test_odd_tokens_stay_themselves_in_a_figure(tmp_path):
    view = surprise(odd_trace())
    check_drawing(view, tmp_path)
    words = words_in(tmp_path, view).split("\n")
    assert {"$x$", "$", "<b>", "·日本", "↵", "天²"} <= {word.strip() for word in words}
