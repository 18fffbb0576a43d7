"""Student's quantiles and p-values are scipy's, for every whole number of degrees of freedom."""

import math

import pytest
from scipy import stats

from gmt.evaluate.interval import interval, p_value, student

FREEDOM = [*range(1, 61), 99, 100, 1001, 5000]


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
