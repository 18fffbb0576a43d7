"""How sure a mean is: Student's interval, from as few values as there are."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def student(freedom: int, level: float = 0.95) -> float:
    """The quantile of Student's t that `level` of it lies within, for so many degrees of freedom.

    Exact for one and two; beyond that the expansion about the normal quantile, right to about a thousandth.
    """
    tail = 0.5 + level / 2
    if freedom == 1:
        return math.tan(math.pi * (tail - 0.5))
    if freedom == 2:
        return (2 * tail - 1) * math.sqrt(2 / (4 * tail * (1 - tail)))
    z, n = statistics.NormalDist().inv_cdf(tail), freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Of the mean. One value alone says nothing of how sure it is."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = student(len(values) - 1, level) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
