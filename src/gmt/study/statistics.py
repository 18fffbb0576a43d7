"""What differs beyond noise: arms at their own best rate, compared seed by seed."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gmt.study.result import Result
from gmt.utils.stats import SIGNIFICANCE_LEVEL, Interval, error_of_mean, holm, p_text, p_value, t_interval, t_test

BEYOND = SIGNIFICANCE_LEVEL  # a Holm-adjusted p below this is beyond noise


class Spread(NamedTuple):
    mean: float
    deviation: float | None  # over seeds; one seed has none
    seeds: int


@dataclass(frozen=True)
class Comparison:
    """An arm less the reference, over the seeds that both were run with: below zero, the arm ends lower."""

    arm: str
    reference: str
    differences: dict[int, float]  # by seed
    mean: float  # NaN where no seed is common
    interval: Interval | None  # Student's; None where nothing can be claimed: one seed, or a loss that is not finite
    p: float | None  # two-sided, of this comparison alone
    adjusted: float | None = None  # after Holm, over all comparisons of the study

    @property
    def seeds(self) -> int:
        return len(self.differences)

    @property
    def decimals(self) -> int:
        return decimals(self.interval.high - self.mean if self.interval else None)

    @property
    def beyond_noise(self) -> bool:
        return self.seeds >= 2 and self.adjusted is not None and self.adjusted < BEYOND


def spread(values: Sequence[float]) -> Spread:
    known = len(values) > 1 and all(map(math.isfinite, values))
    return Spread(statistics.fmean(values), statistics.stdev(values) if known else None, len(values))


def decimals(*widths: float | None) -> int:
    """How many a number deserves that is known to within the least of these: two digits of it."""
    known = [width for width in widths if width is not None and 1e-6 < width < math.inf]
    return min(5, max(2, 1 - math.floor(math.log10(min(known))))) if known else 3


def mean_by_block(rows: Iterable[Sequence[float]]) -> list[float]:
    """Over seeds; a row that is empty says nothing."""
    return [statistics.fmean(block) for block in zip(*(row for row in rows if row), strict=True)]


def by_arm(results: Iterable[Result]) -> dict[str, list[Result]]:
    """In the order in which the arms first come."""
    arms: dict[str, list[Result]] = {}
    for result in results:
        arms.setdefault(result.arm, []).append(result)
    return arms


def losses_by_rate(results: Iterable[Result]) -> dict[float, dict[int, float]]:
    """Of one arm: rate -> seed -> loss, from the lowest rate up."""
    rates: dict[float, dict[int, float]] = {}
    for result in sorted(results, key=lambda r: (r.rate, r.seed)):
        rates.setdefault(result.rate, {})[result.seed] = result.loss
    return rates


def rates_compared(results: Iterable[Result]) -> tuple[dict[float, float], list[int]]:
    """Of one arm: each rate's mean loss over the seeds that all its rates were tried with, and these seeds.

    Where no seed is common to all, each rate's mean is over its own, and there are no such seeds.
    """
    rates = losses_by_rate(results)
    common = sorted(set.intersection(*(set(losses) for losses in rates.values())))
    means = {rate: statistics.fmean(losses[seed] for seed in common or losses) for rate, losses in rates.items()}
    return means, common


def best_rates(results: Iterable[Result]) -> dict[str, float]:
    """Each arm's rate with the lowest mean loss; a tie goes to the lower rate, a loss that is not finite goes last."""
    best: dict[str, float] = {}
    for arm, mine in by_arm(results).items():
        means, _ = rates_compared(mine)
        best[arm] = min(means, key=lambda rate: (means[rate] if math.isfinite(means[rate]) else math.inf, rate))
    return best


def at_best_rate(results: Sequence[Result]) -> list[Result]:
    best = best_rates(results)
    return [result for result in results if result.rate == best[result.arm]]


def compare(results: Iterable[Result], arm: str, reference: str) -> Comparison:
    """Paired by seed. Takes results at one rate an arm: `at_best_rate` first."""
    arms = by_arm(results)
    one, other = _by_seed(arms.get(arm, [])), _by_seed(arms.get(reference, []))
    differences = {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}
    values = list(differences.values())
    mean = statistics.fmean(values) if values else math.nan
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return Comparison(arm, reference, differences, mean, None, None)
    error = error_of_mean(values)
    return Comparison(arm, reference, differences, mean, t_interval(mean, error), t_test(mean, error))


def compare_all(results: Sequence[Result], reference: str, planned: int = 0) -> list[Comparison]:
    """Every other arm with the reference, each at its own best rate. Holm's adjustment is over all comparisons that are
    `planned`, and not those alone that can be made by now: else a claim would go when the other runs come in."""
    chosen = at_best_rate(results)
    arms = by_arm(chosen)
    if reference not in arms:
        return []
    found = [compare(chosen, arm, reference) for arm in arms if arm != reference]
    tested = [number for number, one in enumerate(found) if one.p is not None]
    adjusted = holm([p for one in found if (p := one.p) is not None], max(planned, len(tested)))
    for number, p in zip(tested, adjusted, strict=True):
        found[number] = replace(found[number], adjusted=p)
    return found


class Pooled(NamedTuple):
    """A look from the other side, with one spread for all arms: loss = arm + seed + noise, over seeds that all have."""

    deviation: float  # of the noise
    freedom: int
    adjusted: dict[str, float]  # arm -> p against the reference, after Holm


def pooled(results: Iterable[Result], reference: str, planned: int = 0) -> Pooled | None:
    """Three seeds of two arms may lie close together by luck; the other arms know better how runs vary. None where
    there are no others, or no two seeds that all arms have. Takes results at one rate an arm, as `compare` does."""
    arms = {arm: _by_seed(mine) for arm, mine in by_arm(results).items()}
    seeds = set.intersection(*map(set, arms.values())) if arms else set()
    losses = {arm: [mine[seed] for seed in sorted(seeds)] for arm, mine in arms.items()}
    finite = all(math.isfinite(y) for mine in losses.values() for y in mine)
    if reference not in arms or len(arms) < 3 or len(seeds) < 2 or not finite:
        return None
    means = {arm: statistics.fmean(mine) for arm, mine in losses.items()}
    whole = statistics.fmean(means.values())
    by_seed = [statistics.fmean(column) - whole for column in zip(*losses.values(), strict=True)]
    noise = [y - means[arm] - seed for arm, mine in losses.items() for y, seed in zip(mine, by_seed, strict=True)]
    freedom = (len(arms) - 1) * (len(seeds) - 1)
    deviation = math.sqrt(sum(e * e for e in noise) / freedom)
    if not deviation:
        return None
    error, others = deviation * math.sqrt(2 / len(seeds)), [arm for arm in arms if arm != reference]
    p_values = [p_value((means[arm] - means[reference]) / error, freedom) for arm in others]
    return Pooled(deviation, freedom, dict(zip(others, holm(p_values, planned), strict=True)))


def _by_seed(results: Sequence[Result]) -> dict[int, float]:
    losses = {result.seed: result.loss for result in results}
    if len(losses) < len(results):
        raise ValueError(f"{results[0].arm} has several results with one seed: choose its rate first")
    return losses


def sentence(one: Comparison, tested: int) -> str:
    """What one comparison, of so many that were tested, says."""
    both, places = f"{one.arm} and {one.reference}", one.decimals
    if not one.seeds:
        return f"{both} have no seed in common: nothing is compared."
    if not math.isfinite(one.mean):
        return f"{both}: a loss is not finite, so nothing is claimed."
    which = "lower" if one.mean < 0 else "higher"
    if one.interval is None or one.adjusted is None:
        ended = f"ended {abs(one.mean):.{places}f} nats {which}" if one.mean else "ended no different"
        return f"{both}: with one seed nothing is claimed; {one.arm} {ended}."
    known = f"{one.seeds} seeds; Holm-adjusted p {p_text(one.adjusted)}"
    if one.beyond_noise:
        low, high = sorted(map(abs, one.interval[1:]))
        return (
            f"{one.arm} ends {abs(one.mean):.{places}f} nats {which} than {one.reference} "
            f"(95 % interval {low:.{places}f} to {high:.{places}f}, {known}): beyond noise."
        )
    said = f"{both}: no difference beyond noise ({interval_text(one)}, {known})."
    if one.interval.excludes_zero:
        said += f" Its interval alone leaves zero out; among {tested} comparisons that is not enough."
    return said


def verdict(one: Comparison) -> str:
    if one.adjusted is None:
        return "nothing claimed"
    return ("lower" if one.mean < 0 else "higher") + ", beyond noise" if one.beyond_noise else "not beyond noise"


def interval_text(one: Comparison) -> str:
    places = one.decimals
    return f"{one.interval.low:+z.{places}f} to {one.interval.high:+z.{places}f}" if one.interval else "–"
