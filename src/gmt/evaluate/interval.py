"""How sure a mean is: Student's interval and p, from as few values as there are."""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple


class Interval(NamedTuple):
    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def effect(self, what: str = "the loss") -> str:
        """The change in words. An interval that contains zero is no measurable effect."""
        bounds = f"({self.low:+.4f} to {self.high:+.4f})"
        if not self.excludes_zero:
            return f"has no measurable effect on {what} {bounds}"
        return f"{'raises' if self.mean > 0 else 'lowers'} {what} by {abs(self.mean):.4f} {bounds}"


@cache
def student(freedom: int, level: float = 0.95) -> float:
    """The quantile of Student's t that `level` of it lies within, for so many degrees of freedom."""
    low, high = 0.0, math.pi / 2  # of the angle, which is bounded; t is not
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def p_value(t: float, freedom: int) -> float:
    """How often chance alone is as far from zero as `t`, on either side."""
    return max(0.0, 1 - _within(math.atan(abs(t) / math.sqrt(freedom)), freedom))


def _within(angle: float, freedom: int) -> float:
    """The share of Student's t within ±√freedom tan(angle): a finite sum for whole degrees of freedom.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    odd, cosine = freedom % 2, math.cos(angle)
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Of the mean. One value alone says nothing of how sure it is."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = student(len(values) - 1, level) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
