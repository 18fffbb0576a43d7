"""Every number a run recorded, as it went."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from gmt import plot
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.train.metrics import read_metrics

MOST_POINTS = 500  # of a series, in the figure and its table; metrics.jsonl has all
COLUMNS = 4
Series = dict[str, list[tuple[int, float]]]


def numeric_series(lines: list[dict[str, Any]]) -> Series:
    """Every number but the step, by name; numbers of different modes of validation are different series."""
    modes = {line["mode"] for line in lines if "mode" in line}
    found: Series = {}
    for line in lines:
        kind = f" ({line['mode']})" if "mode" in line and len(modes) > 1 else ""
        for name, value in line.items():
            if name != "step" and type(value) in (int, float) and math.isfinite(value):
                found.setdefault(name + kind, []).append((line["step"], float(value)))
    return found


def thinned(points: list[tuple[int, float]], most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """At most so many points, each the mean of its stretch and at the stretch's last step."""
    if len(points) <= most:
        return points
    return [
        (int(part[-1, 0]), float(part[:, 1].mean()))
        for part in np.array_split(np.array(points, dtype=np.float64), most)
    ]


def wants_log(values: list[float]) -> bool:
    """Whether a series is positive and spans more than two orders of magnitude."""
    return min(values) > 0 and max(values) > 100 * min(values)


def training_curves(run: Path) -> View | None:
    """All numeric series of a run's metrics.jsonl as small multiples; None where it has none."""
    lines = read_metrics(run / "metrics.jsonl")
    full = numeric_series(lines)
    if not full:
        return None
    steps = [step for points in full.values() for step, _ in points]
    span = f"steps {min(steps)} to {max(steps)}" if len(set(steps)) > 1 else f"step {steps[0]}"
    said = [f"{len(full)} series of {run.name}, {span}."]
    if "task" in full:
        said.append(f"The training loss goes from {full['task'][0][1]:.3f} to {full['task'][-1][1]:.3f}.")
    if "val_loss" in full:
        step, best = min(full["val_loss"], key=lambda point: point[1])
        said.append(f"The lowest validation loss is {best:.3f} at step {step}, the last {full['val_loss'][-1][1]:.3f}.")
    series = {name: thinned(points) for name, points in full.items()}
    return View(
        drawing.file_safe("training-curves", run.name),
        f"Training curves of {run.name}",
        " ".join(said),
        ["series", "step", "value"],
        [[name, step, value] for name, points in series.items() for step, value in points],
        lambda: _draw_curves(series, f"Everything recorded of {run.name}, by step"),
    )


def _draw_curves(series: Series, name_of: str) -> Any:
    columns = min(COLUMNS, len(series))
    rows = math.ceil(len(series) / columns)
    figure, axes = plot.subplots(rows, columns, max(3.1 * columns, 5), 1.75 * rows + 0.6)
    drawing.heading(figure, name_of)
    for axis in axes.flat[len(series) :]:
        axis.remove()
    for axis, (name, points) in zip(axes.flat, series.items(), strict=False):
        steps, values = zip(*points, strict=True)
        axis.plot(steps, values, color=plot.OKABE_ITO[0], linewidth=1.1, marker="o" if len(points) < 60 else "", ms=2.5)
        drawing.title(axis, name)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=7.5)
        if wants_log(list(values)):
            axis.set_yscale("log")
        else:
            axis.ticklabel_format(axis="y", useOffset=False, style="sci", scilimits=(-3, 4))
            axis.yaxis.get_offset_text().set_fontsize(7)
        axis.xaxis.get_major_locator().set_params(nbins=5)
    return figure
