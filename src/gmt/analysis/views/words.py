"""How far and in which direction the second sublayer moves words."""

from typing import Any

import numpy as np

from gmt import plot
from gmt.analysis.trace import Array, Trace
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.analysis.views.drawing import file_safe, label, percent, plural, quoted, readable

LABELLED = 16
MOST_TOKENS = 80


def principal(rows: Array) -> tuple[Array, Array]:
    """[T, H] to [T, 2] along the two directions of most variance, and the share of variance each holds."""
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    total = (sizes**2).sum()
    places, shares = np.zeros((len(rows), 2)), np.zeros(2)
    kept = min(2, len(axes))
    axes = axes[:kept]
    axes = axes * np.where(axes[np.arange(kept), np.abs(axes).argmax(-1)] < 0, -1, 1)[:, None]  # one sign of two
    places[:, :kept] = centred @ axes.T
    if total > 1e-12:
        shares[:kept] = sizes[:kept] ** 2 / total
    return places, shares


def between_classes(rows: Array, classes: list[str]) -> float:
    """The share of the vectors' variance that the means of their classes account for."""
    rows, names = rows.astype(np.float64), np.array(classes)
    centred = rows - rows.mean(0)
    total = (centred**2).sum()
    parts = [centred[names == name] for name in set(classes)]
    return float(sum(len(part) * (part.mean(0) ** 2).sum() for part in parts) / total) if total > 1e-12 else 0.0


def far_apart(places: Array, count: int) -> list[int]:
    """Points to label: from the outermost on, each the farthest from those before, so that names do not meet."""
    spread = np.maximum(np.ptp(places, axis=0), 1e-12)
    even = (places - places.mean(0)) / spread
    chosen = [int((even**2).sum(-1).argmax())]
    nearest = ((even - even[chosen[0]]) ** 2).sum(-1)
    while len(chosen) < min(count, len(places)) and nearest.max() > 0.006:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((even - even[chosen[-1]]) ** 2).sum(-1))
    return chosen


def displacement_map(trace: Trace, block: int, classes: list[str] | None) -> View:
    """The displacement vectors of one block's tokens in the plane where they differ most."""
    moved = trace.displacement[block].astype(np.float32)
    places, shares = principal(moved)
    norms = trace.update_norm[block]
    farthest = int(norms.argmax())
    caption = (
        f"The {plural(len(moved), 'displacement')} of {trace.name} in block {block}: the two directions hold "
        f"{percent(shares[0])} and {percent(shares[1])} of their variance. The longest, {norms[farthest]:.2f}, is that "
        f"of {quoted(trace.tokens[farthest])}."
    )
    if classes:
        held = percent(between_classes(moved, classes))
        caption += f" The means of the word classes ({len(set(classes))}) account for {held} of the variance."
    name_of = f"Directions of displacement of {trace.name}, block {block}"
    return View(
        file_safe("displacement-map", trace.name, "block", block),
        name_of,
        caption,
        ["place", "token", "class", "first", "second", "norm"],
        [
            [place, readable(token), classes[place] if classes else "", *map(float, places[place]), float(norms[place])]
            for place, token in enumerate(trace.tokens)
        ],
        lambda: _draw_map(trace, places, shares, classes, name_of),
    )


def _draw_map(trace: Trace, places: Array, shares: Array, classes: list[str] | None, name_of: str) -> Any:
    figure, axes = plot.subplots(1, 1, 8.6, 6.2)
    axis = axes[0, 0]
    drawing.heading(figure, name_of)
    colours = [drawing.colour(name) for name in classes] if classes else drawing.NEUTRAL
    axis.scatter(*places.T, s=26, c=colours, alpha=0.8, edgecolors="white", linewidths=0.5)
    for place in far_apart(places, LABELLED):
        right = places[place, 0] > np.median(places[:, 0])  # a name points outward, into free space
        note = axis.annotate(
            label(trace.tokens[place]), places[place], xytext=(5 if right else -5, 4), textcoords="offset points",
            ha="left" if right else "right", fontsize=8.5,
        )  # fmt: skip
        note.set_in_layout(False)
    axis.margins(0.1)
    axis.axhline(0, color=drawing.PALE, linewidth=0.8, zorder=0)
    axis.axvline(0, color=drawing.PALE, linewidth=0.8, zorder=0)
    first, second = (percent(share) for share in shares)
    drawing.axis_labels(axis, f"first direction ({first} of variance)", f"second direction ({second})")
    drawing.class_legend(figure, axis, classes)
    return figure


def displacement_norms(trace: Trace) -> View:
    """How far each block's second sublayer moves each token."""
    norms = trace.update_norm
    block, place = (int(n) for n in np.unravel_index(norms.argmax(), norms.shape))
    by_block, by_token = norms.mean(1), norms.mean(0)
    still = int(by_token.argmin())
    caption = (
        f"Norm of what the second sublayer adds, mean {norms.mean():.2f}. Block {by_block.argmax()} moves tokens most "
        f"({by_block.max():.2f}), block {by_block.argmin()} least ({by_block.min():.2f}). The longest single step is "
        f"{norms[block, place]:.2f}, {quoted(trace.tokens[place])} in block {block}; over all blocks "
        f"{quoted(trace.tokens[still])} moves least ({by_token[still]:.2f})."
    )
    name_of = f"Displacement norms of {trace.name}"
    return View(
        file_safe("displacement-norms", trace.name),
        name_of,
        caption + drawing.shown_of(len(trace.tokens), MOST_TOKENS),
        ["place", "token", "block", "norm"],
        [
            [place, readable(token), block, float(norms[block, place])]
            for place, token in enumerate(trace.tokens)
            for block in range(trace.blocks)
        ],
        lambda: _draw_norms(trace, name_of),
    )


def _draw_norms(trace: Trace, name_of: str) -> Any:
    parts = drawing.strips(trace.tokens, MOST_TOKENS)
    width = drawing.strip_width(parts)
    figure, axes = plot.subplots(len(parts), 1, 2 + 0.21 * width, 0.5 + len(parts) * (1.2 + 0.13 * trace.blocks))
    drawing.heading(figure, name_of)
    image, drawn = None, trace.update_norm[:, :MOST_TOKENS]
    limits = {
        "vmin": float(drawn.min()),
        "vmax": float(drawn.max()),
    }  # not from 0: norms differ little, and that is shown
    for axis, part in zip(axes.flat, parts, strict=True):
        image = drawing.heat(axis, trace.update_norm[:, part], **limits)
        drawing.token_axis(axis, trace.tokens, part, width)
        drawing.ticks(axis, "y", range(trace.blocks), most=9)
        axis.set_ylabel("block", fontsize=9)
    drawing.colour_bar(figure, image, list(axes.flat), "norm")
    return figure


def displacement_by_pos(trace: Trace, classes: list[str] | None) -> View | None:
    """Which word classes are moved most, overall and block by block; None without word classes."""
    if not classes:
        return None
    labels = np.array(classes)
    counts = {name: int((labels == name).sum()) for name in drawing.present(classes)}
    means = {name: trace.update_norm[:, labels == name].mean(-1) for name in counts}  # [L]
    order = sorted(means, key=lambda name: -means[name].mean())
    first, last = order[0], order[-1]
    caption = (
        f"Mean norm of what the second sublayer adds to the tokens of {trace.name}, by word class: most to {first} "
        f"({means[first].mean():.2f}, {plural(counts[first], 'token')}), least to {last} ({means[last].mean():.2f}, "
        f"{plural(counts[last], 'token')}); over all tokens {trace.update_norm.mean():.2f}."
    )
    name_of = f"Displacement by word class, {trace.name}"
    everything = [[name, "all", counts[name], float(means[name].mean())] for name in order]
    return View(
        file_safe("displacement-by-pos", trace.name),
        name_of,
        caption,
        ["class", "block", "tokens", "mean_norm"],
        everything + [[name, b, counts[name], float(means[name][b])] for name in order for b in range(trace.blocks)],
        lambda: _draw_by_pos(order, counts, np.array([means[name] for name in order]), name_of),
    )


def _draw_by_pos(order: list[str], counts: dict[str, int], means: Array, name_of: str) -> Any:
    figure, axes = plot.subplots(1, 2, 10, 1.6 + 0.27 * max(len(order), 4), width_ratios=[1, 1.5], sharey=True)
    drawing.heading(figure, name_of)
    bars, grid = axes[0]
    bars.barh(range(len(order)), means.mean(-1), 0.7, color=[drawing.colour(name) for name in order])
    drawing.title(bars, "mean over blocks (tokens)")
    drawing.axis_labels(bars, "mean norm", "")
    image = drawing.heat(grid, means)
    grid.tick_params(axis="y", length=0)
    drawing.title(grid, "by block")
    drawing.ticks(grid, "x", range(means.shape[1]), most=16)
    drawing.ticks(bars, "y", [f"{name} ({counts[name]})" for name in order])
    bars.set_ylim(len(order) - 0.5, -0.5)
    drawing.axis_labels(grid, "block", "")
    drawing.colour_bar(figure, image, grid, "mean norm")
    return figure
