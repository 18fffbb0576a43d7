"""What the controls say: a table, a figure, and one plain sentence."""

from collections.abc import Sequence
from typing import Any

from gmt import plot
from gmt.analysis.interventions.controls import Record
from gmt.analysis.view import View
from gmt.utils.stats import Interval
from gmt.utils.tables import markdown_table

OFF = "α = 0"
# exchanged centroids take their keys along: the same slots under other names, and only the edges join others
REPLACED = ("identity", "uniform", "shuffled", "random", "centroids shuffled")
CENTROIDS = ("centroids random",)


def table(records: Sequence[Record], ranked: bool = False) -> View:
    """Every condition: its loss, the change against the unedited model, and how sure that is."""
    baseline = records[0]
    tasks = sorted({(task, metric) for record in records for task, found in record.tasks.items() for metric in found})
    header = ["what", "blocks", "loss", "change", "from", "to", "tokens × blocks edited"]
    header += [f"{task} {metric}" for task, metric in tasks]
    rows = []
    for record in records:
        change = record.change(baseline)
        row = [record.name, "all" if record.block is None else str(record.block), record.loss, *change]
        row.append(sum(record.fired) if record.fired else "–")
        row += [record.tasks.get(task, {}).get(metric, float("nan")) for task, metric in tasks]
        rows.append(row)
    if ranked:
        rows = [rows[0], *sorted(rows[1:], key=lambda row: -abs(row[3]))]
    return View("controls", "Interventions", sentence(records), header, rows, lambda: draw(records))


def sentence(records: Sequence[Record]) -> str:
    """What the memory, its edges and its centroids contribute to the loss of these windows."""
    baseline = records[0]
    whole = {r.name: r.change(baseline) for r in records if r.block is None}
    silent = _never(records)
    if OFF not in whole or not any(name in whole for name in REPLACED):
        return f"{len(records) - 1} interventions, compared with a loss of {baseline.loss:.4f}." + silent
    off = whole[OFF]
    parts = [f"Removing the memory {off.effect()}."]
    parts.append(_compared("Replacing the edges", off, {name: whole[name] for name in REPLACED if name in whole}))
    if centroids := {name: whole[name] for name in CENTROIDS if name in whole}:
        parts.append(_compared("Replacing the centroids", off, centroids))
    return " ".join(parts) + f" (Nats per token, {len(baseline.losses)} windows, 95 % intervals.)" + silent


def _compared(what: str, off: Interval, changes: dict[str, Interval]) -> str:
    """The largest change whose interval excludes zero, and its share of the effect of removing the memory."""
    measurable = {name: change for name, change in changes.items() if change.excludes_zero}
    if not measurable:
        widest = max(changes.values(), key=lambda change: change.high - change.low)
        return f"{what} {widest.effect()}."
    name = max(measurable, key=lambda name: abs(measurable[name].mean))
    which = f" (the largest of {len(changes)}: {name})" if len(changes) > 1 else ""
    share = (
        f", {abs(changes[name].mean / off.mean):.1%} of the effect of removing the memory" if off.excludes_zero else ""
    )
    return f"{what}{which} {changes[name].effect()}{share}."


def _never(records: Sequence[Record]) -> str:
    """Edits that no token was affected by are named."""
    silent = [record.name for record in records if record.fired and not any(record.fired)]
    if not silent:
        return ""
    some = ", ".join(silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
    return f" No token has more than a thousandth of itself where these edit: {some}."


def markdown(view: View) -> str:
    def text(cell: Any) -> str:
        return f"{cell:.4f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell

    return "\n".join(
        [markdown_table(view.header, [[text(cell) for cell in row] for row in view.rows]), "", view.caption]
    )


def draw(records: Sequence[Record]) -> Any:
    """Forms of P, the curve over alpha, and both block by block, where they were measured; else a ranking."""
    if not any(record.group == "alpha" for record in records):
        return _ranking(records)
    baseline = records[0]
    figure, axes = plot.subplots(2, 2, 10, 6.5)
    forms = [r for r in records[1:] if r.group in ("edges", "centroids") and r.block is None]
    _bars(axes[0, 0], [r.name for r in forms], [r.change(baseline) for r in forms])
    axes[0, 0].set_title("edges or centroids replaced, all blocks")
    axes[0, 0].tick_params(axis="x", rotation=20)
    alphas = [(float(r.name[4:]), r.change(baseline)) for r in records if r.group == "alpha" and r.block is None]
    alphas.sort()
    axes[0, 1].plot([a for a, _ in alphas], [c.mean for _, c in alphas], marker="o", ms=4, color=plot.OKABE_ITO[0])
    axes[0, 1].fill_between(
        [a for a, _ in alphas],
        [c.low for _, c in alphas],
        [c.high for _, c in alphas],
        alpha=0.25,
        color=plot.OKABE_ITO[0],
    )
    axes[0, 1].set_title("displacement times α, all blocks")
    axes[0, 1].set_xlabel("α")
    for axis, group, names in ((axes[1, 0], "edges", None), (axes[1, 1], "alpha", (OFF, "α = 0.5", "α = 2"))):
        _by_block(axis, [r for r in records if r.group == group and r.block is not None], baseline, names)
    for axis in axes.flat:
        axis.axhline(0, color="#888888", lw=0.8)
        axis.set_ylabel("change of the loss")
    return figure


def _by_block(chart: Any, records: list[Record], baseline: Record, names: tuple[str, ...] | None) -> None:
    shown = [name for name in dict.fromkeys(r.name for r in records) if names is None or name in names]
    for number, name in enumerate(shown):
        mine = sorted((r.block or 0, r.change(baseline).mean) for r in records if r.name == name)
        chart.plot(*zip(*mine, strict=True), marker="o", ms=3, label=name, color=plot.OKABE_ITO[number % 8])
    chart.set_xlabel("block edited alone")
    chart.xaxis.get_major_locator().set_params(integer=True)
    if records:
        chart.legend()


def _bars(chart: Any, names: list[str], changes: list[Interval]) -> None:
    means = [c.mean for c in changes]
    reach = [
        [m - c.low for m, c in zip(means, changes, strict=True)],
        [c.high - m for m, c in zip(means, changes, strict=True)],
    ]
    chart.bar(names, means, yerr=reach, capsize=3, color=plot.OKABE_ITO[0])


def _ranking(records: Sequence[Record], count: int = 30) -> Any:
    baseline = records[0]
    ranked = sorted(records[1:], key=lambda r: -abs(r.change(baseline).mean))[:count]
    figure, axes = plot.subplots(1, 1, 9, 4.5)
    _bars(axes[0, 0], [r.name for r in ranked], [r.change(baseline) for r in ranked])
    axes[0, 0].tick_params(axis="x", rotation=90)
    axes[0, 0].axhline(0, color="#888888", lw=0.8)
    axes[0, 0].set_ylabel("change of the loss")
    return figure
