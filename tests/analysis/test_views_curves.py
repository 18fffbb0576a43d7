import json

import pytest

from gmt.analysis.views import training_curves
from gmt.analysis.views.curves import numeric_series, thinned, wants_log
from tests.analysis.conftest import check_drawing

LINES = [
    {"step": 1, "task": 5.0, "resets": 0, "learning_rate": 1e-6, "note": "text", "done": True},
    {"step": 2, "task": 4.0, "resets": 1, "learning_rate": 1e-3, "spike": float("nan")},
    {"step": 2, "val_loss": 4.5, "mode": "frozen"},
    {"step": 3, "task": 3.0, "resets": 0, "learning_rate": 1e-4, "list": [1, 2]},
    {"step": 3, "val_loss": 4.25, "mode": "frozen"},
    {"step": 4, "val_loss": 4.75, "mode": "frozen"},
]


def test_every_number_is_a_series_and_nothing_else():
    found = numeric_series(LINES)
    assert list(found) == ["task", "resets", "learning_rate", "val_loss"]
    assert found["task"] == [(1, 5.0), (2, 4.0), (3, 3.0)]


def test_modes_of_validation_are_not_mixed():
    found = numeric_series(
        [{"step": 1, "val_loss": 1.0, "mode": "frozen"}, {"step": 1, "val_loss": 2.0, "mode": "carry"}]
    )
    assert found == {"val_loss (frozen)": [(1, 1.0)], "val_loss (carry)": [(1, 2.0)]}


def test_long_series_are_thinned_by_means():
    assert thinned([(1, 1.0), (2, 3.0), (3, 5.0), (4, 7.0)], 2) == [(2, 2.0), (4, 6.0)]
    assert thinned([(1, 1.0)], 2) == [(1, 1.0)]


@pytest.mark.parametrize(("values", "log"), [([1, 101], True), ([1, 99], False), ([0, 1000], False), ([-1, 1], False)])
def test_log_axis_for_more_than_two_orders(values, log):
    assert wants_log(values) is log


def test_curves_of_a_run(tmp_path):
    run = tmp_path / "run 1"
    run.mkdir()
    assert training_curves(run) is None
    text = "".join(json.dumps(line) + "\n" for line in LINES) + '{"step": 4, "ta'  # killed while writing
    (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    view = training_curves(run)
    assert view is not None and view.name == "training-curves-run-1"
    assert "4 series of run 1, steps 1 to 4." in view.caption and "from 5.000 to 3.000" in view.caption
    assert "lowest validation loss is 4.250 at step 3, the last 4.750" in view.caption
    assert ["learning_rate", 2, 0.001] in [list(row) for row in view.rows] and len(view.rows) == 12
    check_drawing(view, tmp_path)
    assert view.draw is not None
    axes = view.draw().axes
    assert [axis.get_title(loc="left") for axis in axes] == ["task", "resets", "learning_rate", "val_loss"]
    assert [axis.get_yscale() for axis in axes] == ["linear", "linear", "log", "linear"]


def test_an_empty_record_has_no_curves(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("", encoding="utf-8")
    assert training_curves(tmp_path) is None
