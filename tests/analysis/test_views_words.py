import numpy as np
import pytest

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
from gmt.analysis.views.drawing import commonest, file_safe, label, readable, strips
from gmt.analysis.views.prediction import logit_parts
from gmt.analysis.views.word_slots import affinity, class_counts, most_specialised
from gmt.analysis.views.words import between_classes, far_apart, principal
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


def test_tokens_can_be_read():
    assert [readable(token) for token in ("\n", " the", "  ", "", "\x00", "a\tb")] == [
        "↵",
        "the",
        "␣␣",
        "·",
        "\ufffd",
        "a⇥b",
    ]
    assert readable("x" * 20, 5) == "xxxx…" and readable(" a", mark_space=True) == "·a"
    assert label("$x$") == r"\$x\$"
    assert file_safe("routing-flow", "My text_1!", "block", 3) == "routing-flow-my-text-1-block-3"
    assert commonest(["b", "a", "a", "c", "b"]) == [("b", 2), ("a", 2), ("c", 1)]
    assert [len(part) for part in strips(["x"] * 100, 80)] == [40, 40] and [*strips(["x"], 80)[0]] == [0]


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
    view = displacement_map(small_trace(displacement=moved), 0, CLASSES)
    assert "hold 100 % and 0 %" in view.caption and "longest, 6.00, is that of “e”" in view.caption
    # means: DET 1.5, NOUN -1.5, two tokens each, others 0: 2 * 2.25 * 2 = 9 of 18
    assert "word classes (4) account for 50 % of the variance" in view.caption
    assert abs(table(view)[0]["first"]) == pytest.approx(3) and table(view)[1]["class"] == "NOUN"


def test_norms_state_their_extremes():
    view = displacement_norms(small_trace())
    assert len(view.rows) == 12
    assert "mean 6.50. Block 1 moves tokens most (9.50), block 0 least (3.50)" in view.caption
    assert "12.00, “e” in block 1" in view.caption and "“a” moves least (4.00)" in view.caption
    assert "drawn" not in view.caption
    long, _ = random_trace(blocks=2, count=90, slots=8)
    view = displacement_norms(long)
    assert "The first 80 of 90 tokens are drawn" in view.caption and len(view.rows) == 180


def test_norms_by_class_by_hand():
    view = displacement_by_pos(small_trace(), CLASSES)
    rows = {(row["class"], row["block"]): row for row in table(view)}
    assert (
        rows["DET", 0]["mean_norm"] == 2 and rows["DET", 1]["mean_norm"] == 8 and rows["DET", "all"]["mean_norm"] == 5
    )
    assert rows["NOUN", "all"] == {"class": "NOUN", "block": "all", "tokens": 2, "mean_norm": 6.5}
    assert view is not None and "most to PUNCT (9.00, 1 token), least to DET (5.00, 2 tokens)" in view.caption
    assert [row[0] for row in view.rows[:4]] == ["PUNCT", "VERB", "NOUN", "DET"]


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
    assert "“b” in slot 0 (0.70)" in slot_tokens(trace, 0).caption


def test_routing_by_class_by_hand():
    view = pos_routing(small_trace(), CLASSES)
    rows = {(row["class"], row["block"]): row for row in table(view)}
    assert [rows[name, 0]["self_route"] for name in ("NOUN", "VERB", "DET", "PUNCT")] == [0, 1, 0, 0]
    assert all(row["source_entropy"] == 0.5 for row in rows.values())
    assert view is not None and "8 % of the tokens" in view.caption and "VERB most often (50 %)" in view.caption


def test_parts_of_the_logit_add_up():
    parts = logit_parts(small_trace())
    assert parts == {"logit": 10, "update": 6, "attention": 2, "embedding": 1, "bias": 1}
    attention = np.full((2, 6), 1, dtype=np.float32)
    attention[1, 3] = -7
    view = logit_share(small_trace(logit_attention=attention))
    assert "memory adds +6.00 (60 %)" in view.caption and "embeddings +1.00 (10 %)" in view.caption
    assert "-7.00, by attention in block 1 at “c” (place 3) to token id 103" in view.caption
    assert "the second sublayer adds +6.00" in logit_share(dense_trace()).caption
    assert len(view.rows) == 12 and view.rows[7] == [3, "c", 103, 1, 3.0, -7.0]


def test_surprise_by_hand():
    view = surprise(small_trace())  # nothing, then 1 2 3 4 5
    assert "Over 5 tokens of text the mean surprise is 3.00 nats (perplexity 20.1)" in view.caption
    assert "“e” at place 5 (5.00), least “b” at place 1 (1.00)" in view.caption
    assert view.rows[0] == [0, "a", ""] and view.rows[5] == [5, "e", 5.0]
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
    for view in (displacement_norms(dense_trace()), logit_share(dense_trace()), surprise(dense_trace())):
        check_drawing(view, tmp_path)


def test_odd_tokens_stay_themselves_in_a_figure(tmp_path):
    view = surprise(odd_trace())
    check_drawing(view, tmp_path)
    shown = words_in(tmp_path, view).split("\n")
    assert {"$x$", "$", "<b>", "日本", "↵"} <= {word.strip() for word in shown}
