"""Quantiles, p-values and intervals agree with scipy; Holm's adjustment with examples worked by hand."""

import math

import pytest
from scipy import stats

from gmt.utils.stats import (
    Interval,
    holm,
    interval,
    p_text,
    p_value,
    student,
    t_interval,
    t_test,
    welch_error,
)

FREEDOM = [*range(1, 61), 99, 100, 1001, 5000, 1.01, 1.5, 2.718, 7.3, 61.9, 10_041.5]


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99, 0.9999])
def test_quantiles_agree_with_scipy(level):
    for freedom in FREEDOM:
        assert student(freedom, level) == pytest.approx(stats.t.ppf(0.5 + level / 2, freedom), rel=1e-9)


def test_p_values_agree_with_scipy():
    for freedom in FREEDOM:
        for t in (0.0, 1e-6, 0.3, 1.0, 2.5, -2.5, 12.0, 300.0):
            assert p_value(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12, rel=1e-6)
        assert p_value(math.inf, freedom) == 0 == p_value(-math.inf, freedom)


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 4.0], [5.31, 5.29, 5.33, 5.30, 5.28]])
def test_an_interval_is_scipys(values):
    found = interval(values)
    wanted = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-9)


def test_values_without_spread_have_an_interval_without_width():
    assert interval([2.5, 2.5, 2.5]) == (2.5, 2.5, 2.5)


SAMPLES = [
    ([5.31, 5.29, 5.33, 5.30, 5.28], [5.40, 5.20, 5.35]),
    ([1.0, 2.0], [4.0, 4.5, 9.0, 2.0]),
    ([1.0, 0.0, 1.0, 1.0, 0.0] * 9, [0.0, 0.0, 1.0] * 20),
]


@pytest.mark.parametrize(("first", "second"), SAMPLES)
def test_welchs_test_is_scipys(first, second):
    wanted = stats.ttest_ind(second, first, equal_var=False)
    bounds, mean = wanted.confidence_interval(0.95), sum(second) / len(second) - sum(first) / len(first)
    error = welch_error(first, second)
    assert error.freedom == pytest.approx(wanted.df, rel=1e-12)
    assert t_test(mean, error) == pytest.approx(wanted.pvalue, rel=1e-9)
    assert t_interval(mean, error) == pytest.approx((mean, bounds.low, bounds.high), rel=1e-9)


def test_welchs_test_without_spread():
    error = welch_error([2.0, 2.0], [3.0, 3.0, 3.0])
    assert error == (0.0, 3)
    assert t_test(1.0, error) == 0.0 and t_test(0.0, error) == 1.0


def test_holm_by_hand():
    # sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, then 0.04 x 1 which may not be below the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.7]) == [0.7] and holm([]) == []


def test_holm_is_over_all_that_is_planned():
    """By hand: 0.01, 0.04 of five comparisons: 5 * 0.01 and 4 * 0.04; the three without a p count all the same."""
    assert holm([0.04, 0.01], 5) == pytest.approx([0.16, 0.05])
    assert holm([0.04, 0.01]) == pytest.approx([0.04, 0.02])


def test_a_p_below_the_level_is_not_shown_as_the_level():
    shown = {0.0001: "below 0.001", 0.0496: "0.0496", 0.04996: "0.0499", 0.05: "0.050", 0.0504: "0.050", 0.3: "0.300"}
    assert {p: p_text(p) for p in shown} == shown


def test_an_effect_in_words():
    assert Interval(0.1, -0.01, 0.2).effect() == "has no measurable effect on the loss (-0.0100 to +0.2000)"
    assert Interval(-0.1, -0.2, -0.01).effect() == "lowers the loss by 0.1000 (-0.2000 to -0.0100)"
    assert Interval(2e-5, 1e-5, 3e-5).effect() == "raises the loss by 2.0e-05 (+1.0e-05 to +3.0e-05)"
