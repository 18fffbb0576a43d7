"""What the controls say: a table, a figure, and one plain sentence."""

from collections.abc import Sequence
from typing import Any

from gmt import plot
from gmt.analysis.interventions.controls import Record
from gmt.analysis.view import View
from gmt.evaluate.interval import Interval
from gmt.evaluate.markdown import markdown_table

OFF = "α = 0"
# exchanged centroids take their keys along: the same slots under other names, and only the edges join others
REPLACED = ("identity", "uniform", "shuffled", "random", "centroids shuffled")
CENTROIDS = ("centroids random",)
SMALL = 0.1  # of what the whole memory does: less is said to carry little


def table(records: Sequence[Record], ranked: bool = False) -> View:
    """Every condition: its loss, the change against the unedited model, and how sure that is."""
    baseline = records[0]
    tasks = sorted({(task, metric) for record in records for task, found in record.tasks.items() for metric in found})
    header = ["what", "blocks", "loss", "change", "from", "to", "tokens met"]
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
    """Whether the graph, the centroids or neither carries the behaviour, beyond the noise of these windows."""
    baseline = records[0]
    whole = {r.name: r.change(baseline) for r in records if r.block is None}
    said = _never(records)
    if OFF not in whole or not any(name in whole for name in REPLACED):
        return f"{len(records) - 1} interventions, measured against {baseline.loss:.4f}." + said
    off = whole[OFF]
    told = f"Without what memory adds the loss changes by {_signed(off)}. "
    told += _carries("the learned graph", off, [whole[name] for name in REPLACED if name in whole])
    if centroids := [whole[name] for name in CENTROIDS if name in whole]:
        told += " " + _carries("where the centroids lie", off, centroids)
    if off.excludes_zero and off.mean < 0:
        told += " The model is better off without what its memory adds."
    return told + f" ({len(baseline.losses)} windows.)" + said


def _carries(what: str, off: Interval, changes: list[Interval]) -> str:
    """Of the ways to put it aside, that which changes most beyond its interval; each has its share of the doubt."""
    sure = [change for change in changes if change.excludes_zero]
    if not sure:
        widest = max(changes, key=lambda change: change.high - change.low)
        return f"Putting {what} aside changes it by nothing that these windows can tell (at most {_signed(widest)})."
    most = max(sure, key=lambda change: abs(change.mean))
    told = f"Putting {what} aside changes it by {_signed(most)}"
    if not off.excludes_zero:
        return f"{told}, though taking the whole memory away changes nothing for sure."
    share = abs(most.mean / off.mean)
    if share > 1:
        return f"{told}, more than taking the whole memory away."
    return (
        f"{told}, {share:.0%} of what taking the whole memory away does."
        if share >= SMALL
        else (f"{told}, only {share:.1%} of what taking the whole memory away does.")
    )


def _signed(change: Interval) -> str:
    return f"{change.mean:+.4f} ({change.low:+.4f} to {change.high:+.4f})"


def _never(records: Sequence[Record]) -> str:
    """An edit that met no token is said, not passed over."""
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
    axes[0, 0].set_title("edges or centroids put aside, all blocks")
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
