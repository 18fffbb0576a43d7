"""Two models, or two steps of one run, on the same texts."""

import numpy as np

from gmt import plot
from gmt.analysis.diagnostics import surprise
from gmt.analysis.report.sections import Group, Reading, Section, block_means
from gmt.analysis.view import View
from gmt.errors import GMTError

SHOWN = ("n_eff_hard", "coverage", "edge_entropy", "centroid_cosine", "shift_norm", "update_norm", "attention_norm")


def compare_sections(first: Reading, second: Reading) -> list[Section]:
    """Losses, every diagnostic by block, and where both have a memory of one shape, how far its slots have moved."""
    if any(a.ids.tolist() != b.ids.tolist() for a, b in zip(first.traces, second.traces, strict=True)):
        raise GMTError(
            f"{second.loaded.name} splits the texts into other tokens than {first.loaded.name}: not compared"
        )
    views = [_losses(first, second), _blocks(first, second)]
    a, b = first.traces[0], second.traces[0]
    if a.has_memory and b.has_memory and a.centroids.shape == b.centroids.shape:
        views.append(_moved(first, second))
    about = f"A is {_called(first)}, B is {_called(second)}; both read the same texts."
    if a.blocks != b.blocks:
        shared = min(a.blocks, b.blocks)
        about += f" A has {a.blocks} blocks and B {b.blocks}: the first {shared} of each are set side by side."
    return [Section("compare", "Side by side", about, [Group("", views)])]


def _called(reading: Reading) -> str:
    step = reading.loaded.step
    return reading.loaded.name + ("" if step is None else f" at step {step:,}")


def _losses(first: Reading, second: Reading) -> View:
    rows = []
    for a, b in zip(first.traces, second.traces, strict=True):
        mine, other = surprise(a)["loss"], surprise(b)["loss"]
        rows.append([a.name, mine, other, other - mine])
    changes = [row[3] for row in rows if row[3] == row[3]]  # one token alone has no loss
    change = round(float(np.mean(changes)), 3) if changes else 0.0
    told = f"{'worse' if change > 0 else 'better'} by {abs(change):.3f} nats a token" if change else "as good as A"
    caption = f"B is {told}, on average over the texts."
    return View("compare-losses", "Loss on each text", caption, ["text", "A", "B", "B - A"], rows, None)


def _blocks(first: Reading, second: Reading) -> View:
    mine, other = block_means(first), block_means(second)
    shared = [key for key in mine if key in other]
    rows = [
        [key, block, float(a), float(b), float(b - a)]
        for key in shared
        for block, (a, b) in enumerate(zip(mine[key], other[key], strict=False))
    ]
    shown = [key for key in SHOWN if key in shared]

    def draw() -> object:
        figure, axes = plot.subplots(2, 4, 12, 5.5)
        for axis, key in zip(axes.flat, shown, strict=False):
            axis.plot(mine[key], marker="o", ms=3, label="A", color=plot.OKABE_ITO[0])
            axis.plot(other[key], marker="s", ms=3, label="B", color=plot.OKABE_ITO[1], ls="--")
            axis.set_title(key.replace("_", " "))
            axis.set_xlabel("block")
            axis.xaxis.get_major_locator().set_params(integer=True)
        for axis in list(axes.flat)[len(shown) :]:
            axis.set_axis_off()
        axes.flat[0].legend()
        return figure

    caption = "Means over texts. " + "; ".join(
        f"{key.replace('_', ' ')} {mine[key].mean():.3g} in A, {other[key].mean():.3g} in B" for key in shown
    )
    header = ["diagnostic", "block", "A", "B", "B - A"]
    return View("compare-blocks", "Diagnostics over the depth", caption + ".", header, rows, draw)


def _moved(first: Reading, second: Reading) -> View:
    """Cosine of each slot's centroid in A with the same slot's in B."""
    a, b = first.traces[0].centroids, second.traces[0].centroids
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosines = (a * b).sum(-1) / np.maximum(lengths, 1e-12)
    rows = [[block, slot, float(value)] for block, line in enumerate(cosines) for slot, value in enumerate(line)]

    def draw() -> object:
        figure, axes = plot.subplots(1, 1, 8, 4)
        axis = axes[0, 0]
        quantiles = np.quantile(cosines, [0, 0.25, 0.5, 0.75, 1], axis=-1)
        depth = np.arange(len(cosines))
        axis.fill_between(depth, quantiles[0], quantiles[4], color=plot.OKABE_ITO[5], alpha=0.3, label="all slots")
        axis.fill_between(depth, quantiles[1], quantiles[3], color=plot.OKABE_ITO[0], alpha=0.4, label="middle half")
        axis.plot(depth, quantiles[2], color=plot.OKABE_ITO[0], marker="o", ms=3, label="median")
        axis.set_xlabel("block")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel("cosine of a slot with itself")
        axis.legend()
        return figure

    least = np.unravel_index(cosines.argmin(), cosines.shape)
    caption = (
        f"A slot's centroid in A and in B has a cosine of {np.median(cosines):.3f} in the median; slot {least[1]} of "
        f"block {least[0]} differs most, at {cosines[least]:.3f}."
    )
    return View("compare-centroids", "How far the slots have moved", caption, ["block", "slot", "cosine"], rows, draw)
