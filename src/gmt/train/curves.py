"""curves.png: the loss and the memory of a run as it goes."""

from pathlib import Path
from typing import Any

from gmt import plot
from gmt.train.metrics import read_metrics

PANELS = [
    ("loss", [("task", "training"), ("val_loss", "validation")]),
    ("slots in use", [("n_eff_mean", "mean N_eff"), ("n_eff_min", "least N_eff")]),
    ("auxiliary terms", [(t, t) for t in ("track", "ortho", "cluster", "edge", "contrast")]),
    ("norm of the gradient", [("grad_norm", "before clipping")]),
]


def draw_curves(run: Path, others: dict[str, Path] | None = None) -> Path | None:
    """The run's curves, or those of several runs over each other; None where matplotlib is not installed."""
    if not plot.available():
        return None
    with plot.style():
        return _draw(run, others or {"": run})


def _draw(run: Path, others: dict[str, Path]) -> Path:
    runs = {name: read_metrics(path / "metrics.jsonl") for name, path in others.items()}
    figure, axes = plot.subplots(2, 2, 10, 6.4)
    for axis, (title, series) in zip(axes.flat, PANELS, strict=True):
        for name, lines in runs.items():
            for key, label in series:
                _plot(axis, lines, key, f"{name} {label}".strip())
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    path, aside = run / "curves.png", run / ".curves.tmp.png"
    figure.savefig(aside, dpi=130)
    aside.replace(path)
    return path


def _plot(axis: Any, lines: list[dict[str, Any]], key: str, label: str) -> None:
    points = [(line["step"], line[key]) for line in lines if key in line]
    if points:
        few = len(points) < 60
        axis.plot(*zip(*points, strict=True), label=label, lw=1.2, marker="o" if few else None, ms=2.5)
