"""`gmt eval --compare`: intervals and p-values are scipy's, and chance alone is seldom called significant."""

import math
import random
import re
from dataclasses import replace

import pytest
from scipy import stats

from gmt.errors import GMTError
from gmt.evaluate.arc import NAME as STANDALONE
from gmt.evaluate.comparison import cells, compare
from gmt.evaluate.results import Difference, Metric, Results, TaskResult, ValidationResult, adjust, difference
from gmt.evaluate.tables import tables

A = [5.31, 5.29, 5.33, 5.30, 5.28, 5.40]
B = [5.30, 5.25, 5.31, 5.31, 5.25, 5.33]


def test_over_the_same_items_the_test_is_scipys_paired_one():
    found, wanted = difference(Metric.of(A), Metric.of(B), same_items=True), stats.ttest_rel(B, A)
    bounds = wanted.confidence_interval(0.95)
    assert found.paired and found.p == pytest.approx(wanted.pvalue, rel=1e-9)
    assert found.interval == pytest.approx((found.value, bounds.low, bounds.high), rel=1e-9)


@pytest.mark.parametrize(("b", "same"), [(B, False), (B[:4], False), (B[:4], True)])
def test_over_other_items_it_is_scipys_welch_test(b, same):
    found, wanted = difference(Metric.of(A), Metric.of(b), same), stats.ttest_ind(b, A, equal_var=False)
    bounds = wanted.confidence_interval(0.95)
    assert not found.paired and found.p == pytest.approx(wanted.pvalue, rel=1e-9)
    assert found.interval == pytest.approx((found.value, bounds.low, bounds.high), rel=1e-9)


def test_marks_are_compared_item_by_item():
    a, b = [1, 0, 1, 1] * 5, [1, 0, 1, 0] * 5
    found = difference(Metric.of(a), Metric.of(b), same_items=True)
    assert (found.value, found.paired) == (-0.25, True)
    assert found.p == pytest.approx(stats.ttest_rel(b, a).pvalue)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Metric(20.0, 0.3), Metric(21.0, 0.3)),  # a perplexity has no value per item
        (Metric.of([1.0]), Metric.of([0.0])),
        (Metric.of([1.0, 2.0]), Metric(math.nan, None, [math.nan, 2.0])),
        (Metric.of([0, 0, 0]), Metric.of([1, 1, 1])),  # all change alike: there is no spread
    ],
)
def test_what_cannot_be_known_is_said_so(a, b):
    for same in (True, False):
        found = adjust({"": difference(a, b, same)})[""]
        assert (found.interval, found.p, found.adjusted, found.significant) == (None, None, None, None)
        assert cells(found)[1:] == ["-", "-", "not known"]


def test_equal_models_have_no_effect():
    found = adjust({"": difference(Metric.of(A), Metric.of(A), same_items=True)})[""]
    assert (found.value, found.interval, found.p, found.significant) == (0, (0, 0, 0), 1, False)
    assert cells(found) == ["+0.0000", "+0.0000 to +0.0000", "1.000", "no measurable effect"]


def test_the_interval_is_around_the_reported_difference():
    """A validation loss is the mean over tokens; the last batch may be shorter than the others."""
    tokens = [32, 32, 32, 32, 32, 8]
    a, b = (
        replace(Metric.of(x), value=sum(n * v for n, v in zip(tokens, x, strict=True)) / sum(tokens)) for x in (A, B)
    )
    found, plain = difference(a, b, same_items=True), difference(Metric.of(A), Metric.of(B), same_items=True)
    assert found.value == b.value - a.value != plain.value
    assert found.interval.mean == found.value
    half = plain.interval.high - plain.value
    assert (found.value - found.interval.low, found.interval.high - found.value) == pytest.approx((half, half))
    # the interval excludes zero exactly where p is below 0.05
    error = stats.sem([y - x for x, y in zip(A, B, strict=True)])
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.value) / error, len(A) - 1))
    assert found.interval.excludes_zero == (found.p < 0.05)


def test_holm_by_hand():
    """0.01 of four, then 0.012 of three, 0.03 of two; the last is not below the one before it. None does not count."""
    alone = {"a": 0.03, "b": 0.01, "c": None, "d": 0.031, "e": 0.012}
    found = adjust({name: Difference(1.0, True, None, p) for name, p in alone.items()})
    adjusted = {name: one.adjusted for name, one in found.items()}
    assert adjusted == pytest.approx({"a": 0.06, "b": 0.04, "c": None, "d": 0.06, "e": 0.04})
    assert [one.significant for one in found.values()] == [False, True, None, False, True]


# --- tables ---


def results_of(name: str, tasks: dict[str, list[float]], losses: list[float] | None = None) -> Results:
    model = {"name": name, "sha256": name * 3, "step": 7, "parameters": 2_000_000, "sublayer": "memory"}
    found = {}
    for task, values in tasks.items():
        metrics = {"acc": Metric.of(values)}
        if task == STANDALONE:
            metrics["acc_norm_tokens"] = Metric.of(values[::-1])
        found[task] = TaskResult(0, len(values), "same", metrics, memory="as in the checkpoint", tau=0.1)
    validation = {}
    if losses:
        loss = Metric.of(losses)
        validation["frozen"] = ValidationResult(loss, 1.0, None, 64, len(losses), "data", "windows", "no writes")
    return Results(model, {"sha256": "t", "vocab": 3}, 16, tasks=found, validation=validation)


def test_a_row_shows_the_difference_its_interval_and_what_it_means():
    a, b = [1] * 50 + [0] * 50, [1] * 80 + [0] * 20
    bounds = stats.ttest_rel(b, a).confidence_interval(0.95)
    table = tables([results_of("first", {"arc_easy": a}), results_of("second", {"arc_easy": b})], "lm")
    row = f"+0.3000 | {bounds.low:+.4f} to {bounds.high:+.4f} | below 0.001 | significant |"
    assert f"| ARC-Easy | acc | 0.5000 ± 0.0503 | 0.8000 ± 0.0402 | {row}" in table
    assert "| Δ | 95 % interval | adjusted p | verdict |" in table
    table = tables([results_of("first", {"piqa": [1, 0, 1, 0]}), results_of("second", {"piqa": [0, 1, 1, 0]})], "lm")
    assert "| +0.0000 | -1.2992 to +1.2992 | 1.000 | no measurable effect |" in table
    assert "0-shot" in table and "τ 0.1" in table
    with pytest.raises(GMTError, match="has no results for the table 'val'"):
        tables([results_of("first", {"piqa": [1, 0]})], "val")


def test_small_differences_keep_their_digits():
    a = [5.0 + n / 10 for n in range(20)]
    b = [x + 1e-5 + 1e-6 * (-1) ** n for n, x in enumerate(a)]
    bounds = stats.ttest_rel(b, a).confidence_interval(0.95)
    table = tables([results_of("first", {}, a), results_of("second", {}, b)])
    row = f"| frozen | +0.00001000 | {bounds.low:+.8f} to {bounds.high:+.8f} | below 0.001 | significant |"
    assert row in table


def test_p_is_adjusted_over_all_tables_that_are_printed():
    draw = random.Random(3)
    base = [draw.gauss(5, 1) for _ in range(30)]
    shifts = {"frozen": 0.05, STANDALONE: 0.0, "piqa": 0.04, "winogrande": 0.3}
    changed = {name: [x + shift + draw.gauss(0, 0.1) for x in base] for name, shift in shifts.items()}
    names = [name for name in changed if name != "frozen"]
    a = results_of("first", dict.fromkeys(names, base), base)
    b = results_of("second", {name: changed[name] for name in names}, changed["frozen"])
    found = compare(a, b, ["val", "arc", "lm"])
    alone = {row: stats.ttest_rel(changed[row[1]], base).pvalue for row in found}
    assert {row: one.p for row, one in found.items()} == pytest.approx(alone)
    least = 0.0
    for rank, row in enumerate(sorted(alone, key=alone.__getitem__)):
        least = max(least, (5 - rank) * alone[row])
        assert found[row].adjusted == pytest.approx(min(1, least)), row
    assert "after Holm over the 5 differences" in tables([a, b])
    assert "after Holm over the 2 differences" in tables([a, b], "lm")


def test_a_note_says_what_is_not_paired():
    a, b = (results_of(name, {"piqa": losses}, losses) for name, losses in (("first", A), ("second", B)))
    assert "not paired" not in tables([a, b])
    b.validation["frozen"].windows, b.tasks["piqa"].items_sha256 = "other", "other"
    text = tables([a, b])
    assert "- frozen: the two read different windows; Δ is not paired" in text
    assert "- piqa: the two were scored on different items; Δ is not paired" in text


def test_models_without_a_common_mode_are_compared_all_the_same():
    a, b = results_of("first", {}, A), results_of("second", {}, B)
    b.validation["adaptive"] = b.validation.pop("frozen")
    assert "| frozen / adaptive | -0.0267 |" in tables([a, b])


ROWS, COMPARISONS = 6, 600


def claims(table: str) -> int:
    return len(re.findall(r"\| (?:significant|yes) \|$", table, re.MULTILINE))


def test_models_that_do_not_differ_are_seldom_told_apart():
    """Six rows of 40 items each, without any true difference: one or more rows are called significant in about 5 % of
    comparisons. One standard error per row would be exceeded by a third of all rows."""
    draw, false, rows, exceed = random.Random(7), 0, 0, 0
    for _ in range(COMPARISONS):
        tasks: list[dict[str, list[float]]] = [{}, {}]
        for row in range(ROWS):
            hard = [draw.gauss(0, 1) for _ in range(40)]
            for one in tasks:
                one[f"task {row}"] = [x + draw.gauss(0, 0.5) for x in hard]
            apart = [y - x for x, y in zip(tasks[0][f"task {row}"], tasks[1][f"task {row}"], strict=True)]
            exceed += abs(sum(apart) / 40) > stats.sem(apart)
        count = claims(tables([results_of("first", tasks[0]), results_of("second", tasks[1])], "lm"))
        false, rows = false + (count > 0), rows + count
    assert exceed / (ROWS * COMPARISONS) == pytest.approx(0.32, abs=0.03)  # what the test would see without adjustment
    spread = 3 * math.sqrt(0.05 * 0.95 / COMPARISONS)
    assert false / COMPARISONS == pytest.approx(0.05, abs=spread)
    assert rows / (ROWS * COMPARISONS) < 0.02
