"""Student's t: intervals of means and of their differences, p-values, and Holm's adjustment of several."""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

SIGNIFICANCE_LEVEL = 0.05  # an adjusted p below this is significant
MAX_TERMS = 10_000  # of a continued fraction; a million degrees of freedom need a few hundred


class Interval(NamedTuple):
    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def effect(self, what: str = "the loss") -> str:
        """The change in words. An interval that contains zero is no measurable effect."""
        if not self.excludes_zero:
            return f"has no measurable effect on {what} ({self.low:+.4f} to {self.high:+.4f})"
        form = ".4f" if abs(self.mean) >= 5e-5 else ".1e"  # a measurable change is not printed as zero
        bounds = f"({self.low:+{form}} to {self.high:+{form}})"
        return f"{'raises' if self.mean > 0 else 'lowers'} {what} by {abs(self.mean):{form}} {bounds}"


class StandardError(NamedTuple):
    """Of a mean, or of a difference of two."""

    value: float
    freedom: float  # degrees of freedom


def error_of_mean(values: Sequence[float]) -> StandardError:
    """Of two values or more."""
    return StandardError(statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1)


def welch_error(first: Sequence[float], second: Sequence[float]) -> StandardError:
    """Of the difference of the means of two independent samples whose variances may differ (Welch, Satterthwaite)."""
    (a, n), (b, m) = error_of_mean(first), error_of_mean(second)
    total = a * a + b * b
    freedom = total * total / (a**4 / n + b**4 / m) if total else n + m
    return StandardError(math.sqrt(total), freedom)


def t_interval(mean: float, error: StandardError, level: float = 0.95) -> Interval:
    half = student(error.freedom, level) * error.value
    return Interval(mean, mean - half, mean + half)


def t_test(mean: float, error: StandardError) -> float:
    """The two-sided p-value of a mean against zero."""
    if not error.value:  # without spread, t is infinite; and where nothing differs there is nothing to test
        return 0.0 if mean else 1.0
    return p_value(mean / error.value, error.freedom)


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Of the mean. One value has no spread, so its interval is infinite."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    return t_interval(mean, error_of_mean(values), level)


@cache
def student(freedom: float, level: float = 0.95) -> float:
    """The t with a share `level` of Student's distribution between -t and t."""
    low, high = 0.0, math.pi / 2  # of the angle with t = √freedom tan(angle): it is bounded, t is not
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(_t(middle, freedom), freedom) < 1 - level else (middle, high)
    return _t((low + high) / 2, freedom)


def _t(angle: float, freedom: float) -> float:
    return math.sqrt(freedom) * math.tan(angle)


def p_value(t: float, freedom: float) -> float:
    """The probability that chance alone is at least as far from zero as `t`, on either side."""
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(freedom / (freedom + t * t), t * t / (freedom + t * t), freedom / 2, 0.5)


def _incomplete_beta(x: float, y: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), with y = 1 - x, as a continued fraction.

    DLMF 8.17.22, evaluated from the front (Lentz). It converges fast for x up to about a / (a + b).
    """
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(y, x, b, a)
    if x == 0:
        return 0.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)) / a
    value, numerator, denominator = 1.0, 1.0, 0.0
    for term in range(1, MAX_TERMS):
        m = term // 2
        if term % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / (1 + step * denominator)
        numerator = 1 + step / numerator
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-15:
            break
    return front / value


def holm(p_values: Sequence[float], family: int = 0) -> list[float]:
    """Adjusted p-values, in the order given: of all claims at a level, one or more are false with at most that
    probability.

    `family` is the number of comparisons, where some have no p-value yet.
    """
    adjusted, least, family = [0.0] * len(p_values), 0.0, max(family, len(p_values))
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, (family - rank) * p_values[number])
        adjusted[number] = min(1.0, least)
    return adjusted


def p_text(p: float) -> str:
    if p < 0.001:
        return "below 0.001"
    if p < SIGNIFICANCE_LEVEL <= round(p, 3):  # must not be rounded up to the level
        return f"{math.floor(p * 1e4) / 1e4:.4f}"
    return f"{p:.3f}"
