"""Two evaluated models compared: one difference per row of the printed tables, with p adjusted over all of them."""

import math
from collections.abc import Iterable

from gmt.evaluate.arc import NAME as STANDALONE
from gmt.evaluate.results import Difference, Results, adjust, difference
from gmt.utils.stats import SIGNIFICANCE_LEVEL, p_text

Row = tuple[str, ...]  # the table, then what identifies the row in it
HEADER = ["Δ", "95 % interval", "adjusted p", "verdict"]


def compare(a: Results, b: Results, tables: Iterable[str]) -> dict[Row, Difference]:
    """Every difference that `tables` show: val, arc, lm."""
    found: dict[Row, Difference] = {}
    for table in tables:
        if table == "val":
            for one, other in mode_pairs(a, b):
                first, second = a.validation[one], b.validation[other]
                found[table, one, other] = difference(first.loss, second.loss, first.windows == second.windows)
        else:
            for task, metric in common_metrics([a, b], standalone=table == "arc"):
                first, second = a.tasks[task], b.tasks[task]
                same = first.items_sha256 == second.items_sha256
                found[table, task, metric] = difference(first.metrics[metric], second.metrics[metric], same)
    return adjust(found)


def mode_pairs(a: Results, b: Results) -> list[tuple[str, str]]:
    """Memory modes that are compared. A model without memory has one: it is compared with each of the other's."""
    shared = [mode for mode in a.validation if mode in b.validation]
    return [(m, m) for m in shared] or [(m, n) for m in a.validation for n in b.validation]


def common_metrics(results: list[Results], *, standalone: bool) -> list[tuple[str, str]]:
    """Task and metric of each number that all results contain."""
    first = {name: task for name, task in results[0].tasks.items() if (name == STANDALONE) == standalone}
    return [
        (name, metric)
        for name, task in first.items()
        for metric in task.metrics
        if all(name in other.tasks and metric in other.tasks[name].metrics for other in results)
    ]


def cells(found: Difference) -> list[str]:
    """The cells under `HEADER`."""
    if found.interval is None or found.adjusted is None:
        return [f"{found.value:+z.4f}", "-", "-", "not known"]
    places = _decimals(found.interval.high - found.value)
    bounds = f"{found.interval.low:+z.{places}f} to {found.interval.high:+z.{places}f}"
    verdict = "significant" if found.significant else "no measurable effect"
    return [f"{found.value:+z.{places}f}", bounds, p_text(found.adjusted), verdict]


def _decimals(half: float) -> int:
    """Four, or as many as two digits of half the interval need."""
    return min(8, max(4, 1 - math.floor(math.log10(half)))) if half > 0 else 4


def explain(a: Results, b: Results, found: dict[Row, Difference]) -> list[str]:
    """How to read the differences, and what makes two numbers hard to compare."""
    tested = sum(one.p is not None for one in found.values())
    lines = [
        "Δ is the second model minus the first. Its 95 % interval is Student's, for this row alone: over batches for a "
        "loss, over items for a task. It is paired where both models read the same windows or items; otherwise it is "
        "Welch's.",
        f"p is adjusted after Holm over the {tested} differences above that have an interval. Below "
        f"{SIGNIFICANCE_LEVEL}, Δ is significant. Otherwise chance alone could explain it: no measurable effect.",
    ]
    for (table, *row), one in found.items():
        if table == "val" and one.p is not None and not one.paired:
            lines.append(f"{' / '.join(dict.fromkeys(row))}: the two read different windows; Δ is not paired")
    for name in sorted(a.tasks.keys() & b.tasks.keys()):
        one, other = a.tasks[name], b.tasks[name]
        if one.items_sha256 != other.items_sha256:
            lines.append(f"{name}: the two were scored on different items; Δ is not paired")
        if one.shots != other.shots or one.made_with.get("precision") != other.made_with.get("precision"):
            lines.append(f"{name}: the two were measured in different ways, see above")
    return lines
