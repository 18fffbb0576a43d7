import math

import numpy as np
import pytest

from gmt.analysis.views import coverage_and_diversity, depth_progression, source_overlap_view
from tests.analysis.conftest import (
    check_drawing,
    counted,
    dense_trace,
    hand_trace,
    odd_trace,
    one_token,
    random_trace,
    small_trace,
    table,
)


def test_coverage_and_diversity_by_hand():
    source = np.zeros((2, 6, 4), dtype=np.float16)
    source[0, :, :2] = 0.5  # two slots alike: N_eff 2, and a Gini of (1 * 0.5 + 3 * 0.5) / 4
    source[1] = 0.25
    view = coverage_and_diversity([small_trace(source=source)])
    first, second = table(view)
    assert [first["coverage"], first["target_coverage"]] == [0.75, 1.0]  # sources 0, 1, 2; targets 0 to 3
    assert [second["coverage"], second["target_coverage"]] == [0.25, 0.25]
    assert [first["n_eff"], second["n_eff"]] == pytest.approx([2, 4], rel=1e-4)
    assert [first["gini"], second["gini"]] == pytest.approx([0.5, 0])
    assert (
        "Of 4 slots" in view.caption and "50 % (text, 6 tokens)" in view.caption and "62 % as a target" in view.caption
    )
    assert "in training, N_eff goes from 2.0 (block 0) to 4.0 (block 1) and the index is 0.25" in view.caption


def test_soft_and_hard_numbers_are_not_mixed():
    # every token's likeliest slot is 1, by a hair: by likeliest slot one is used, by mean probability nearly four
    source = np.full((1, 6, 4), 0.24, dtype=np.float16)
    source[..., 1] = 0.28
    trace = hand_trace([[1] * 6], [[0, 0, 0, 2, 2, 3]], source=source)
    row = table(coverage_and_diversity([trace]))[0]
    assert row["n_eff_hard"] == pytest.approx(1) and row["gini_hard"] == pytest.approx(0.75)
    wanted = math.exp(-(3 * 0.24 * math.log(0.24) + 0.28 * math.log(0.28)))
    assert row["n_eff"] == pytest.approx(wanted, rel=1e-3) and row["gini"] == pytest.approx(0.03, abs=1e-3)
    thirds = math.exp(-(math.log(1 / 2) / 2 + math.log(1 / 3) / 3 + math.log(1 / 6) / 6))
    assert row["target_n_eff_hard"] == pytest.approx(thirds, rel=1e-4)
    assert [row["largest_source"], row["largest_target"]] == pytest.approx([1, 0.5])
    caption = coverage_and_diversity([trace]).caption
    assert "as the paper's probes count, N_eff of the sources is 1.0 (block 0) and their Gini index is 0.75" in caption
    assert "by mean probability, as in training, N_eff is 4.0 (block 0) and the index is 0.03" in caption
    assert "busiest source slot has 100 % of the tokens, the busiest target 50 %." in caption


def test_both_kinds_of_n_eff_are_drawn():
    view = coverage_and_diversity([random_trace(blocks=3, count=40, slots=8)[0]])
    assert view.draw is not None
    lines = [
        (line.get_linestyle(), list(line.get_ydata())) for line in view.draw().axes[2].lines if len(line.get_xdata())
    ]
    assert [dash for dash, _ in lines] == ["-", "--"]
    rows = table(view)
    assert [values for _, values in lines] == [[row["n_eff_hard"] for row in rows], [row["n_eff"] for row in rows]]


def test_progression_by_hand():
    trace = small_trace(shift_norm=counted(), update_norm=np.full((2, 6), 3.0))  # attention 2
    view = depth_progression([trace])
    first, second = table(view)
    assert [first["shift_norm"], second["shift_norm"]] == [3.5, 9.5]
    assert [first["update_norm"], first["update_to_attention"]] == [3, 1.5]
    assert first["source_entropy"] == 0.5 and first["target_entropy"] == 0.25
    assert "length of a shift before LN_disp goes from 3.50 to 9.50" in view.caption
    assert "nearly the same for all tokens of a block, goes from 3.00 to 3.00; as a multiple" in view.caption
    assert view.caption.startswith("From block 0 to block 1: the") and "text" not in view.caption
    assert depth_progression([one_token()]).caption.startswith("In block 0: the source entropy is 0.50,")
    assert "means over 2 texts" in depth_progression([trace, trace]).caption
    assert "source entropy goes from 0.50 to 0.50" in view.caption


def test_a_model_without_memory_has_norms_only(tmp_path):
    view = depth_progression([dense_trace()])
    assert view.header == ["text", "block", "update_norm", "attention_norm", "update_to_attention"]
    assert "entropy" not in view.caption and "LN_disp" not in view.caption
    assert "the second sublayer adds goes from 3.50 to 9.50" in view.caption
    check_drawing(view, tmp_path)
    assert view.draw is not None and len(view.draw().axes) == 2


def test_both_kinds_stand_in_one_table(tmp_path):
    view = depth_progression([small_trace(), dense_trace()])
    rows = table(view)
    assert rows[0]["n_eff"] > 1 and rows[2]["n_eff"] == "" and rows[2]["update_norm"] == 3.5
    check_drawing(view, tmp_path)
    assert view.draw is not None and len(view.draw().axes) == 4


def test_overlap_by_hand():
    first = hand_trace([[0, 1], [0, 0]], [[1, 1]] * 2, name="first")
    second = hand_trace([[1, 2], [0, 0]], [[1, 1]] * 2, name="second")
    third = hand_trace([[3, 3], [1, 1]], [[1, 1]] * 2, name="third")
    view = source_overlap_view([first, second, third])
    assert view is not None
    found = {(row["text"], row["other_text"], row["block"]): row["jaccard"] for row in table(view)}
    assert found["first", "second", 0] == pytest.approx(1 / 3) and found["first", "second", 1] == 1
    assert [found["first", "third", 0], found["second", "third", 1]] == [0, 0]
    assert "Most alike: first and second (0.67)" in view.caption and "3 pairs" in view.caption
    assert "mean 0.22" in view.caption  # (1/3 + 1) / 6
    assert source_overlap_view([first]) is None


@pytest.mark.parametrize("make", [odd_trace, one_token])
def test_they_draw(make, tmp_path):
    traces = [make() for _ in range(2)]
    for view in (coverage_and_diversity(traces), depth_progression(traces), source_overlap_view(traces)):
        check_drawing(view, tmp_path)


def test_a_text_with_a_dollar_in_its_name_draws(tmp_path):
    traces = [small_trace(name="a $5 note"), small_trace(name="$x$")]
    for view in (coverage_and_diversity(traces), source_overlap_view(traces)):
        check_drawing(view, tmp_path)


def test_n_eff_is_that_of_the_mean_source():
    trace = small_trace()
    mean = trace.source[0].astype(np.float64).mean(0)
    wanted = math.exp(-(mean * np.log(mean)).sum())
    assert table(coverage_and_diversity([trace]))[0]["n_eff"] == pytest.approx(wanted, rel=1e-3)
