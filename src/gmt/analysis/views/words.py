"""How far and in which direction the second sublayer moves words."""

from typing import Any

import numpy as np

from gmt import plot
from gmt.analysis.diagnostics import LEAST
from gmt.analysis.trace import Array, Trace
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.analysis.views.drawing import enough, file_safe, label, percent, plural, quoted, readable

LABELLED = 16
MOST_TOKENS = 80


def lengths(trace: Trace) -> Array:
    """[L, T] how far a token is moved: with memory before LN_disp, which makes all lengths nearly alike."""
    return trace.shift_norm if trace.has_memory else trace.update_norm


def length_name(trace: Trace) -> str:
    return "length of the shift before LN_disp" if trace.has_memory else "length of what the second sublayer adds"


def evened_out(trace: Trace) -> str:
    """What LN_disp leaves of the differences; nothing to say without memory."""
    if not trace.has_memory:
        return ""
    added = trace.update_norm
    before, after = (percent(_spread(values)) for values in (trace.shift_norm, added))
    return (
        f" What is added after LN_disp has nearly the same length for all tokens, {added.min():.2f} to "
        f"{added.max():.2f}: within a block it varies by {after} of its mean, before LN_disp by {before}."
    )


def _spread(values: Array) -> float:
    """Standard deviation within a block by its mean, over blocks."""
    return float((values.std(1) / np.maximum(values.mean(1), 1e-12)).mean())


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
    shift, norms = trace.shift_norm[block], trace.update_norm[block]
    farthest = int(shift.argmax())
    caption = (
        f"The {plural(len(moved), 'displacement')} of {trace.name} in block {block}: the two directions hold "
        f"{percent(shares[0])} and {percent(shares[1])} of their variance. Before LN_disp the longest, "
        f"{shift[farthest]:.2f}, is that of {quoted(trace.tokens[farthest])}."
    )
    if classes:
        held = percent(between_classes(moved, classes))
        caption += f" The means of the word classes ({len(set(classes))}) account for {held} of the variance."
    name_of = f"Directions of displacement of {trace.name}, block {block}"
    return View(
        file_safe("displacement-map", trace.name, "block", block),
        name_of,
        caption,
        ["place", "token", "class", "first", "second", "norm", "shift_norm"],
        [
            [place, readable(token), classes[place] if classes else ""]
            + [float(value) for value in (*places[place], norms[place], shift[place])]
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
    norms = lengths(trace)
    block, place = (int(n) for n in np.unravel_index(norms.argmax(), norms.shape))
    by_block, by_token = norms.mean(1), norms.mean(0)
    still = int(by_token.argmin())
    caption = (
        f"The {length_name(trace)}, mean {norms.mean():.2f}.{_most_and_least(by_block)} The longest single one is "
        f"{norms[block, place]:.2f}, {quoted(trace.tokens[place])} in block {block}; over all blocks "
        f"{quoted(trace.tokens[still])} moves least ({by_token[still]:.2f}).{evened_out(trace)}"
    )
    name_of = f"Displacement norms of {trace.name}"
    return View(
        file_safe("displacement-norms", trace.name),
        name_of,
        caption + drawing.shown_of(len(trace.tokens), MOST_TOKENS),
        ["place", "token", "block", "norm", "added_norm"],
        [
            [place, readable(token), block, float(norms[block, place]), float(trace.update_norm[block, place])]
            for place, token in enumerate(trace.tokens)
            for block in range(trace.blocks)
        ],
        lambda: _draw_norms(trace, name_of),
    )


def _most_and_least(by_block: Array) -> str:
    if len(by_block) == 1:
        return ""
    return (
        f" Block {by_block.argmax()} moves tokens most ({by_block.max():.2f}), block {by_block.argmin()} least "
        f"({by_block.min():.2f})."
    )


def _draw_norms(trace: Trace, name_of: str) -> Any:
    parts = drawing.strips(trace.tokens, MOST_TOKENS)
    width = drawing.strip_width(parts)
    figure, axes = plot.subplots(len(parts), 1, 2 + 0.21 * width, 0.5 + len(parts) * (1.2 + 0.13 * trace.blocks))
    drawing.heading(figure, name_of)
    image, norms = None, lengths(trace)[:, :MOST_TOKENS]
    lowest = 0.0 if trace.has_memory else float(norms.min())  # a dense sublayer's differ little, and that is shown
    for axis, part in zip(axes.flat, parts, strict=True):
        image = drawing.heat(axis, norms[:, part], vmin=lowest, vmax=max(float(norms.max()), lowest + 1e-6))
        drawing.token_axis(axis, trace.tokens, part, width)
        drawing.ticks(axis, "y", range(trace.blocks), most=9)
        axis.set_ylabel("block", fontsize=9)
    drawing.colour_bar(figure, image, list(axes.flat), "length before LN_disp" if trace.has_memory else "length")
    return figure


def displacement_by_pos(trace: Trace, classes: list[str] | None) -> View | None:
    """Which word classes are moved most, overall and block by block; None without word classes."""
    if not classes:
        return None
    labels, norms = np.array(classes), lengths(trace)
    counts = {name: int((labels == name).sum()) for name in drawing.present(classes)}
    means = {name: norms[:, labels == name].mean(-1) for name in counts}  # [L]
    order = sorted(means, key=lambda name: -means[name].mean())
    ranked = [(name, float(means[name].mean()), counts[name]) for name in order if name in enough(counts)]
    caption = (
        f"Mean {length_name(trace)}, for the tokens of {trace.name} by word class: {_ranking(ranked)}; over all tokens "
        f"{norms.mean():.2f}.{evened_out(trace)}"
    )
    name_of = f"Displacement by word class, {trace.name}"
    everything = [[name, "all", counts[name], float(means[name].mean())] for name in order]
    return View(
        file_safe("displacement-by-pos", trace.name),
        name_of,
        caption,
        ["class", "block", "tokens", "mean_norm"],
        everything + [[name, b, counts[name], float(means[name][b])] for name in order for b in range(trace.blocks)],
        lambda: _draw_by_pos(trace, counts, {name: means[name] for name in order}, name_of),
    )


def _ranking(ranked: list[tuple[str, float, int]]) -> str:
    """The first and the last of the classes of which there are enough tokens."""
    if not ranked:
        return f"none has {LEAST} tokens"
    said = [f"{name} ({mean:.2f}, {plural(count, 'token')})" for name, mean, count in (ranked[0], ranked[-1])]
    if len(ranked) == 1:
        return f"of the classes only {said[0]} has at least {LEAST} tokens"
    return f"of those with at least {LEAST} tokens most for {said[0]}, least for {said[1]}"


def _draw_by_pos(trace: Trace, counts: dict[str, int], means: dict[str, Array], name_of: str) -> Any:
    order, grid_values = list(means), np.array(list(means.values()))  # [classes, L]
    figure, axes = plot.subplots(1, 2, 10, 1.7 + 0.27 * max(len(order), 4), width_ratios=[1, 1.5], sharey=True)
    drawing.heading(figure, f"{name_of}: {length_name(trace)}")
    bars, grid = axes[0]
    drawn = bars.barh(range(len(order)), grid_values.mean(-1), 0.7, color=[drawing.colour(name) for name in order])
    for bar, name in zip(drawn, order, strict=True):
        bar.set_alpha(1.0 if counts[name] >= LEAST else 0.35)
    few = f"; pale: under {LEAST}" if len(enough(counts)) < len(order) else ""
    drawing.title(bars, f"mean over blocks (tokens{few})")
    drawing.axis_labels(bars, "mean length", "")
    image = drawing.heat(grid, grid_values)
    grid.tick_params(axis="y", length=0)
    drawing.title(grid, "by block")
    drawing.ticks(grid, "x", range(trace.blocks), most=16)
    drawing.ticks(bars, "y", [f"{name} ({counts[name]})" for name in order])
    bars.set_ylim(len(order) - 0.5, -0.5)
    drawing.axis_labels(grid, "block", "")
    drawing.colour_bar(figure, image, grid, "mean length")
    return figure
