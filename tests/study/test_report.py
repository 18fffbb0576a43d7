"""A report holds the numbers that scipy finds, claims no more than they bear, and its figures can be read."""

import csv
import math
import random
from pathlib import Path

import pytest
from scipy import stats

from gmt import plot
from gmt.study.figures import curves, depth, differences, running_mean
from gmt.study.report import write_report
from gmt.study.result import DIAGNOSTICS, Result
from gmt.study.statistics import at_best_rate, compare_all
from gmt.utils.outputs import LIST
from gmt.utils.tables import markdown_table

LOSSES = {"v7": [5.672, 5.690, 5.655], "attention-only": [5.455, 5.489, 5.431], "frozen edges": [5.668, 5.702, 5.649]}
NAMES = ["v7", "attention-only", "dense-205", "dense-1050", "gate -4", "no write-back", "uniform edges", "log τ"]
NAMES += ["all auxiliary terms off, momentum 0.95, memory.temperature=constant"]


def result(arm: str, seed: int, loss: float, rate: float = 6e-4) -> Result:
    draw = random.Random(f"{arm} {seed}")
    steps = [(n * 65_536, loss + 5 * math.exp(-n / 10) + draw.gauss(0, 0.02)) for n in range(1, 101)]
    has = arm != "attention-only"
    return Result(
        arm=arm,
        rate=rate,
        seed=seed,
        loss=loss,
        validation=tuple((n * 655_360, loss + 5 * math.exp(-n)) for n in range(1, 11)),
        training=tuple(steps),
        parameters=82_200_000 if has else 77_200_000,
        flops=493.2e6,
        tokens_per_second=412_345.6,
        diagnostics={key: 10.0 * n + seed for n, key in enumerate(DIAGNOSTICS, 1)} if has else {},
        attention_share=(0.5, 0.3, 0.2, 0.1),
        second_share=(0.02, 0.04, 0.9 + seed, 0.08) if has else (),
    )


def results(table: dict[str, list[float]]) -> list[Result]:
    return [result(arm, seed, loss) for arm, losses in table.items() for seed, loss in enumerate(losses)]


def many(arms: int, seeds: int = 3) -> list[Result]:
    draw = random.Random(arms)
    return results({name: [5.5 + draw.gauss(0, 0.1) for _ in range(seeds)] for name in NAMES[:arms]})


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("study") / "report"
    write_report("controls", "Does the memory pay?", results(LOSSES), "v7", out)
    return out


def test_the_sentences_and_tables_hold_scipys_numbers(written):
    text = (written / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# controls\n\nDoes the memory pay?\n")
    # worked out apart: mean -0.214, 0.0287 to either side, p 0.00097 and twice that
    bounds = stats.ttest_rel(LOSSES["attention-only"], LOSSES["v7"])
    low, high = sorted(abs(end) for end in bounds.confidence_interval(0.95))
    assert (
        f"attention-only ends 0.214 nats lower than v7 (95 % interval {low:.3f} to {high:.3f}, 3 seeds; "
        f"Holm-adjusted p {2 * bounds.pvalue:.3f}): beyond noise." in text
    )
    ends = stats.ttest_rel(LOSSES["frozen edges"], LOSSES["v7"]).confidence_interval(0.95)
    assert f"frozen edges and v7: no difference beyond noise ({ends.low:+.3f} to {ends.high:+.3f}, 3 seeds;" in text
    line = next(line for line in text.splitlines() if line.startswith("| attention-only | 0.0006"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2:6] == ["5.458", "0.029", "3", "-0.214"] and cells[8] == "lower, beyond noise"
    assert "| attention-only | 77.2 M | 493 | 412,000 |" in text and "no benchmark" in text
    assert "| v7 | 11 | 21 | 31 | 41 | 51 | 61 |" in text  # means over seeds 0, 1, 2
    assert "| v7 | 0.02, 1.9, 0.08 | 1.9 (2) | 0.5, 0.2, 0.1 | 0.5 (0) |" in text
    assert "## Learning rates" not in text and "one rate only" in text
    assert "nan" not in text.lower() and "missing" not in text


def test_the_csv_files_hold_every_run_and_comparison(written):
    found = rows(written / "results.csv")
    assert [(r["arm"], int(r["seed"]), float(r["loss"])) for r in found] == [
        (arm, seed, loss) for arm, losses in LOSSES.items() for seed, loss in enumerate(losses)
    ]
    assert float(found[1]["n_eff_mean"]) == 11 and float(found[1]["second_share_2"]) == 1.9
    assert found[3]["n_eff_mean"] == "" and found[3]["second_share_0"] == "" and found[3]["attention_share_3"] == "0.1"
    for row in rows(written / "differences.csv"):
        wanted = stats.ttest_rel(LOSSES[row["arm"]], LOSSES["v7"])
        bounds = wanted.confidence_interval(0.95)
        assert float(row["p"]) == pytest.approx(wanted.pvalue)
        assert (float(row["low"]), float(row["high"])) == pytest.approx((bounds.low, bounds.high))
        assert float(row["seed_1"]) == pytest.approx(LOSSES[row["arm"]][1] - LOSSES["v7"][1])
        assert row["beyond_noise"] == ("1" if row["arm"] == "attention-only" else "0")


def test_the_figures_are_drawn_and_linked(written):
    text = (written / "report.md").read_text(encoding="utf-8")
    for name in ("curves", "differences", "depth"):
        assert f"({name}.svg)" in text
        drawn = (written / f"{name}.svg").read_text(encoding="utf-8")
        assert "attention-only" in drawn and drawn.count("<path") > 10
        assert (written / f"{name}.png").stat().st_size > 5000
    assert [path.name for path in written.glob(".*")] == [LIST]  # nothing half written is left


def test_missing_runs_are_said(tmp_path):
    path = write_report("s", "q", results(LOSSES), "v7", tmp_path, missing=["v7, seed 3: stopped at step 7 of 100"])
    text = path.read_text(encoding="utf-8")
    assert "1 run is missing" in text and "- v7, seed 3: stopped at step 7 of 100" in text


def test_one_seed_claims_nothing(tmp_path):
    text = write_report("s", "q", many(3, seeds=1), "v7", tmp_path).read_text(encoding="utf-8")
    assert text.count("with one seed nothing is claimed") == 2 and text.count("| nothing claimed |") == 2
    assert ": beyond noise" not in text and ", beyond noise" not in text and "nan" not in text
    assert {row["p"] for row in rows(tmp_path / "differences.csv")} == {""}


def test_a_claim_that_other_arms_spread_denies_is_doubted(tmp_path):
    close = {"plain": [5.740, 5.760, 5.750], "close": [5.611, 5.630, 5.619]}
    wide = {"wide": [5.5, 5.9, 5.6], "wider": [6.1, 5.7, 5.8]}
    doubted = write_report("s", "q", results(close | wide), "plain", tmp_path).read_text(encoding="utf-8")
    assert "close ends 0.1300 nats lower than plain" in doubted
    assert "With one spread for all arms" in doubted and "found for close: seeds that lie closer" in doubted
    steady = {"steady": [5.90, 5.93, 5.91]}
    believed = write_report("s", "q", results(close | steady), "plain", tmp_path).read_text(encoding="utf-8")
    assert "close ends 0.1300 nats lower than plain" in believed and "With one spread" not in believed


def test_rates_are_shown_and_an_edge_is_said(tmp_path):
    tried = [result("v7", s, 5.5 + s / 10, 6e-4) for s in range(3)] + [result("v7", 0, 5.9, 1.2e-3)]
    tried += [result("x", s, loss + s / 10, rate) for s in range(3) for rate, loss in ((6e-4, 5.4), (1.2e-3, 5.3))]
    tried += [result("x", 0, 5.7, 2.4e-3), result("y", 0, 5.5)]
    text = write_report("s", "q", tried, "v7", tmp_path).read_text(encoding="utf-8")
    assert "| v7 | **5.500** | 5.900 | – | 0 |" in text and "| x | 5.400 | **5.300** | 5.700 | 0 |" in text
    assert "The best rates differ: 0.0006 for v7 and y; 0.0012 for x." in text
    assert "the lowest of those tried for v7 (0.0006): a better may lie beyond" in text and "the highest of" not in text
    assert "one rate only, so that another might change its place: y." in text
    assert "x ends 0.200 nats lower than v7 (95 % interval 0.200 to 0.200, 3 seeds;" in text  # no spread but rounding
    assert [row["best_rate"] for row in rows(tmp_path / "results.csv")] == list("1110" + "010101" + "0" + "1")


def test_what_cannot_be_compared_is_said(tmp_path):
    nothing = write_report("s", "q", [], "v7", tmp_path / "a", missing=["v7: failed", "x: failed"])
    assert "No run has come to its end" in nothing.read_text() and "2 runs are missing" in nothing.read_text()
    alone = write_report("s", "q", many(2)[3:], "v7", tmp_path / "b").read_text()
    assert "No run of the reference, v7, has come to its end" in alone and "(curves.svg)" in alone
    odd = [result("v7", 0, 5.0), result("v7", 1, 5.1), result("x", 0, math.nan), result("x", 1, 5.0)]
    assert "not finite" in write_report("s", "q", odd, "v7", tmp_path / "c").read_text()
    short = [result("v7", 0, 5.0), Result("x", 6e-4, 0, 6.0, ((10, 6.0),), (), 10, 1.0, 1.0)]
    assert "do not have one budget" in write_report("s", "q", short, "v7", tmp_path / "d").read_text()


def test_without_matplotlib_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "available", lambda: False)
    text = write_report("s", "q", results(LOSSES), "v7", tmp_path).read_text(encoding="utf-8")
    assert "matplotlib is not installed" in text and ".svg" not in text and not list(tmp_path.glob("*.svg"))


@pytest.mark.parametrize("arms", [1, 4, 9])
def test_legends_cover_nothing_and_names_are_whole(arms):
    mine = many(arms)
    figures = [curves(mine), depth(mine)]
    if arms > 1:
        figures.append(differences(compare_all(mine, "v7")))
    for figure in figures:
        assert figure is not None
        figure.draw_without_rendering()
        panels = [axis.get_window_extent() for axis in figure.axes]
        for legend in figure.legends:
            assert not any(legend.get_window_extent().overlaps(panel) for panel in panels)
            said = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
            assert [name.replace(" ", "") for name in said] == [name.replace(" ", "") for name in NAMES[:arms]]
        drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= width and drawn.y1 <= height
        assert all(panel.width > 0.2 * figure.bbox.width for panel in panels)  # names leave room for what is drawn


def test_a_filled_marker_is_a_difference_beyond_noise():
    figure = differences(compare_all(results(LOSSES), "v7"))
    assert figure is not None
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "o" and line.get_markersize() == 7]
    assert [line.get_markerfacecolor() != "white" for line in marks] == [True, False]


def test_the_end_of_the_curves_can_be_read():
    mine = many(4) + results({"lost": [9.0, 9.1, 9.2]})
    figure = curves(at_best_rate(mine))
    assert figure is not None
    whole, end = figure.axes
    assert max(loss for r in mine for _, loss in r.training) > 13
    assert whole.get_ylim()[1] < 11.5 and end.get_ylim()[1] < 7  # the steep beginning; the arm that is far off
    assert "1 higher than this" in end.get_title(loc="left")
    assert end.get_ylim()[0] < min(r.loss for r in mine)


def test_a_running_mean_by_hand():
    assert running_mean([1, 2, 6, 4, 2], 0.4).tolist() == pytest.approx([1.5, 3, 4, 4, 3])
    assert running_mean([1, 2, 6], 0).tolist() == [1, 2, 6]


def test_a_bar_in_a_name_does_not_break_a_table():
    assert markdown_table(["a"], [["x|y\nz"]]) == "| a |\n|---|\n| x\\|y z |"


def test_controls_look_the_same_in_every_study():
    from gmt.study.figures import _places

    assert _places(["a", "b"]) == {"a": 0, "b": 1}
    one, other = _places(["dense-205", "mine", "v7"]), _places(["v7", "attention-only", "dense-205"])
    assert all(one[name] == other[name] for name in ("dense-205", "v7"))
    assert len(set(one.values())) == 3, "no two arms look alike"
