"""What was learned before any text: edges, centroids, gates."""

import math
from typing import Any

import numpy as np
import torch

from gmt import plot
from gmt.analysis.trace import Array, Trace
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.analysis.views.drawing import over_blocks
from gmt.memory.losses import entropy

ALIKE = 0.9  # a cosine above it is called nearly the same


def _grid(count: int, side: float = 3.0) -> tuple[Any, list[Any]]:
    """Square panels for so many blocks, at most four side by side."""
    columns = min(count, 4)
    rows = math.ceil(count / columns)
    figure, axes = plot.subplots(rows, columns, max(side * columns + 1.2, 5), side * rows + 0.8)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def edge_matrices(trace: Trace, blocks: list[int]) -> View:
    """P of the blocks asked for, on one scale."""
    edges = trace.transition
    uniform = 1 / (trace.slots - 1)
    largest = [edges[block].max(-1).mean() for block in blocks]
    block = max(blocks, key=lambda block: edges[block].max())
    source, target = np.unravel_index(edges[block].argmax(), edges[block].shape)
    each = ", ".join(f"{value:.3f} in block {b}" for b, value in zip(blocks, largest, strict=True))
    caption = (
        f"A slot's strongest edge has a mean probability of {each}; equal edges would have {uniform:.3f}. "
        f"The strongest of all, {edges[block].max():.3f}, goes from slot {source} to {target} in block {block}."
    )
    return View(
        "edge-matrices",
        "Learned edges P",
        caption,
        ["block", "source", "target", "probability"],
        [[b, int(i), int(j), float(edges[b, i, j])] for b in blocks for i, j in np.argwhere(edges[b] > 0)],
        lambda: _draw_matrices(edges, blocks),
    )


def _draw_matrices(edges: Array, blocks: list[int]) -> Any:
    figure, axes = _grid(len(blocks))
    drawing.heading(figure, "Learned edges P, by slot")
    image = None
    for axis, block in zip(axes, blocks, strict=True):
        image = drawing.edge_heat(axis, edges[block], float(edges[blocks].max()), edges.shape[-1])
        drawing.title(axis, f"block {block}")
        drawing.axis_labels(axis, "target slot", "source slot")
        for which in "xy":
            drawing.ticks(axis, which, range(edges.shape[-1]), most=8)
    drawing.colour_bar(figure, image, axes, "probability of the edge")
    return figure


def cosines(rows: Array) -> Array:
    unit = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-8)
    return np.clip(unit @ unit.T, -1, 1)


def seriate(similar: Array) -> Array:
    """An order that puts like beside like: by the direction in which the centred similarities differ most."""
    centre = similar - similar.mean(0) - similar.mean(1)[:, None] + similar.mean()
    leading = np.linalg.eigh(centre.astype(np.float64))[1][:, -1]
    leading = leading * (np.sign(leading[np.abs(leading).argmax()]) or 1)  # a direction and its opposite are one
    return np.argsort(leading, kind="stable")


def centroid_similarity(trace: Trace, blocks: list[int]) -> View:
    """Cosines between the centroids of each block asked for, like slots beside each other."""
    found = {block: cosines(trace.centroids[block].astype(np.float64)) for block in blocks}
    upper = np.triu_indices(trace.slots, 1)
    parts = []
    for block, similar in found.items():
        pairs = similar[upper]
        most = int(pairs.argmax())
        parts.append(
            f"block {block}: mean cosine {pairs.mean():.2f}, most alike {upper[0][most]} and {upper[1][most]} with "
            f"{pairs[most]:.2f}, {drawing.plural(int((pairs > ALIKE).sum()), 'pair')} of {len(pairs)} above {ALIKE}"
        )
    return View(
        "centroid-similarity",
        "Likeness of centroids",
        f"Pairs of centroids. {'; '.join(parts)}. Slots are ordered within each block so that like stand together.",
        ["block", "slot", "other_slot", "cosine"],
        [[b, int(i), int(j), float(found[b][i, j])] for b in blocks for i, j in zip(*upper, strict=True)],
        lambda: _draw_similarity(found),
    )


def _draw_similarity(found: dict[int, Array]) -> Any:
    figure, axes = _grid(len(found))
    drawing.heading(figure, "Likeness of centroids, by slot")
    image = None
    for axis, (block, similar) in zip(axes, found.items(), strict=True):
        order = seriate(similar)
        shown = similar[np.ix_(order, order)]
        image = drawing.heat(axis, shown, cmap=plot.DIVERGING, vmin=-1, vmax=1, aspect="equal")
        drawing.title(axis, f"block {block}")
        for which in "xy":
            drawing.ticks(axis, which, order, most=8, fontsize=7.5)
    drawing.colour_bar(figure, image, axes, "cosine")
    return figure


def gate_and_momentum(trace: Trace) -> View:
    """How much of the displacement each block adds, and how fast its centroids move."""
    gate, pace = trace.gate, 1 - trace.momentum.astype(np.float64)
    caption = (
        f"The gate {over_blocks(gate, 3)}, mean {gate.mean():.3f}. The weight of what tokens write into a centroid, "
        f"1 − m of the momentum m, {over_blocks(pace, telling_digits(pace))}."
    )
    return View(
        "gate-and-momentum",
        "Gate and momentum by depth",
        caption,
        ["block", "gate", "momentum", "one_minus_momentum"],
        [[block, *map(float, (gate[block], 1 - pace[block], pace[block]))] for block in range(trace.blocks)],
        lambda: _draw_gate(gate, pace),
    )


def telling_digits(values: Array, least: int = 3, most: int = 8) -> int:
    """As many digits after the point as it takes for the smallest and the largest to be written differently."""
    low, high = float(values.min()), float(values.max())
    fit = [n for n in range(least, most) if f"{low:.{n}f}" != f"{high:.{n}f}" and float(f"{low:.{n}f}")]
    return fit[0] if fit else most


def _draw_gate(gate: Array, pace: Array) -> Any:
    figure, axes = plot.subplots(1, 2, 9.6, 3.4)
    drawing.heading(figure, "Gate and momentum by depth")
    panels = [("gate, after the sigmoid", gate), ("1 − momentum: weight of what tokens write", pace)]
    for axis, (text, values), shade in zip(axes.flat, panels, plot.OKABE_ITO, strict=False):
        axis.bar(range(len(values)), values, 0.7, color=shade)
        drawing.title(axis, text)
        drawing.depth_axis(axis, len(values))
        axis.grid(visible=False, axis="x")
        if 0 < 10 * values.min() < values.max():
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, min(1.0, 1.15 * float(values.max())) or 1.0)
    return figure


def edge_entropy(trace: Trace) -> View:
    """How evenly each block's slots spread their edges: quantiles over rows of P, and what is in reach."""
    found = entropy(torch.from_numpy(trace.transition)).numpy().clip(min=0)  # [L, F]
    quantiles = np.quantile(found, [0, 0.25, 0.5, 0.75, 1], axis=-1)
    reach, most = np.exp(found).mean(-1), math.log(trace.slots - 1)
    caption = (
        f"The mean entropy of a slot's edges is {found.mean():.2f} of at most {most:.2f} (log {trace.slots - 1}). The "
        f"mean number of slots effectively in reach {over_blocks(reach, 1)}, of {trace.slots - 1}."
    )
    return View(
        "edge-entropy",
        "Entropy of learned edges by depth",
        caption,
        ["block", "least", "lower_quartile", "median", "upper_quartile", "most", "mean", "mean_reachable"],
        [
            [block, *map(float, quantiles[:, block]), float(found[block].mean()), float(reach[block])]
            for block in range(trace.blocks)
        ],
        lambda: _draw_entropy(quantiles, reach, most, trace.slots),
    )


def _draw_entropy(quantiles: Array, reach: Array, most: float, slots: int) -> Any:
    figure, axes = plot.subplots(1, 2, 9.6, 3.9)
    drawing.heading(figure, "How evenly slots spread their edges")
    blocks = range(len(reach))
    least, lower, median, upper, greatest = quantiles
    blue = plot.OKABE_ITO[0]
    left, right = axes[0]
    left.fill_between(blocks, least, greatest, color=blue, alpha=0.15, linewidth=0, label="all slots")
    left.fill_between(blocks, lower, upper, color=blue, alpha=0.35, linewidth=0, label="middle half")
    left.plot(blocks, median, label="median", color=blue, marker="o", markersize=3.2)
    left.axhline(most, color="black", linestyle="--", linewidth=1, label=f"most possible, log {slots - 1}")
    drawing.title(left, "entropy of a slot's edges (nats)")
    left.set_ylim(0, max(1.12 * most, 0.1))
    right.bar(blocks, reach, 0.7, color=blue)
    right.axhline(slots - 1, color="black", linestyle="--", linewidth=1)
    right.set_ylim(0, 1.12 * (slots - 1))
    drawing.title(right, "slots effectively in reach, exp(entropy), mean")
    for axis in axes.flat:
        drawing.depth_axis(axis, len(reach))
    drawing.legend_below(figure, *left.get_legend_handles_labels())
    return figure
