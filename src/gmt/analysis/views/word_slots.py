"""Which words stand in which slots, and how word classes are routed."""

from typing import Any

import numpy as np

from gmt import plot
from gmt.analysis.diagnostics import LEAST
from gmt.analysis.trace import Array, Trace
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.analysis.views.drawing import enough, file_safe, label, percent, plural, quoted, readable
from gmt.analysis.views.routing import busiest

COLUMNS = 24  # slots side by side
ROWS, STRONGEST = 16, 12  # slots and token types of the affinity view
BLANK = 0.05  # a token type with less does not stand in a slot, and its cell is left empty


def class_counts(trace: Trace, block: int, classes: list[str]) -> Array:
    """[classes present, F] tokens by word class and likeliest source."""
    names = drawing.present(classes)
    found = np.zeros((len(names), trace.slots), dtype=np.int64)
    np.add.at(found, ([names.index(name) for name in classes], trace.source_slot[block]), 1)
    return found


def most_specialised(counts: Array, least: int = LEAST) -> tuple[int, int] | None:
    """The class and slot with the largest share of one class; of equals the slot with more tokens."""
    total = counts.sum(0)
    fit = [slot for slot in range(len(total)) if total[slot] >= least]
    if not fit:
        return None
    slot = max(fit, key=lambda slot: (counts[:, slot].max() / total[slot], total[slot]))
    return int(counts[:, slot].argmax()), slot


def pos_slots(trace: Trace, block: int, classes: list[str] | None) -> View | None:
    """What word classes stand in a block's busiest slots; None without word classes."""
    if not classes:
        return None
    names, counts = drawing.present(classes), class_counts(trace, block, classes)
    slots = busiest(counts.sum(0), COLUMNS)
    total = counts.sum(0)
    special = most_specialised(counts)
    if special is None:
        says = f"No slot is the source of {LEAST} tokens."
    else:
        kind, slot = special
        says = (
            f"The most specialised slot with at least {LEAST} tokens is {slot}: {counts[kind, slot]} of its "
            f"{total[slot]} tokens are {names[kind]} ({percent(counts[kind, slot] / total[slot])}), a class "
            f"with {percent(counts[kind].sum() / len(classes))} of the text."
        )
    name_of = f"Word classes in slots, {trace.name}, block {block}"
    held = f"{'hold' if len(slots) > 1 else 'holds'} {percent(total[slots].sum() / len(classes))}"
    return View(
        file_safe("pos-slots", trace.name, "block", block),
        name_of,
        f"The {plural(len(slots), 'busiest source slot')} of block {block} {held} of the tokens. {says}",
        ["slot", "tokens", "class", "tokens_of_class", "share"],
        [
            [int(slot), int(total[slot]), name, int(counts[row, slot]), float(counts[row, slot] / total[slot])]
            for slot in slots
            for row, name in enumerate(names)
        ],
        lambda: _draw_pos_slots(counts[:, slots], slots, names, name_of),
    )


def _draw_pos_slots(counts: Array, slots: Array, names: list[str], name_of: str) -> Any:
    width, height = 2.6 + 0.36 * max(len(slots), 8), 1.7 + 0.27 * max(len(names), 4)
    figure, axes = plot.subplots(2, 1, width, height + 1.2, sharex=True, height_ratios=[1.1, height - 1])
    drawing.heading(figure, name_of)
    bars, grid = axes[:, 0]
    bars.bar(range(len(slots)), counts.sum(0), 0.7, color=drawing.NEUTRAL)
    bars.set_ylabel("tokens", fontsize=9)
    bars.tick_params(axis="x", length=0)
    image = drawing.heat(grid, counts / counts.sum(0), vmin=0, vmax=1)
    drawing.ticks(grid, "x", slots, rotation=90 if len(slots) > 16 else 0)
    drawing.ticks(grid, "y", names)
    drawing.axis_labels(grid, "source slot, busiest first", "")
    drawing.colour_bar(figure, image, grid, "share of the slot's tokens")
    return figure


def class_routing(trace: Trace, classes: list[str]) -> tuple[Array, Array]:
    """[classes present, L] share of self-routes, and mean source entropy."""
    labels = np.array(classes)
    stays, spread = [], []
    for name in drawing.present(classes):
        stays.append(trace.self_route[:, labels == name].mean(-1))
        spread.append(trace.source_entropy[:, labels == name].mean(-1))
    return np.array(stays), np.array(spread)


def pos_routing(trace: Trace, classes: list[str] | None) -> View | None:
    """How often each word class stays where it is, and how sharply it is placed, by depth; None without classes."""
    if not classes:
        return None
    names = drawing.present(classes)
    stays, spread = class_routing(trace, classes)
    counts = [classes.count(name) for name in names]
    caption = (
        f"Over all blocks {percent(trace.self_route.mean())} of the tokens of {trace.name} stay in their slot. "
        + _extremes(dict(zip(names, counts, strict=True)), stays.mean(-1), spread.mean(-1))
    )
    name_of = f"Routing by word class, {trace.name}"
    return View(
        file_safe("pos-routing", trace.name),
        name_of,
        caption,
        ["class", "block", "tokens", "self_route", "source_entropy"],
        [
            [name, block, counts[row], float(stays[row, block]), float(spread[row, block])]
            for row, name in enumerate(names)
            for block in range(trace.blocks)
        ],
        lambda: _draw_pos_routing(names, counts, stays, spread, name_of),
    )


def _extremes(counts: dict[str, int], stays: Array, spread: Array) -> str:
    """Who stays most, and who is placed most and least sharply, among the classes with enough tokens."""
    names = list(counts)
    fit = [names.index(name) for name in enough(counts)]
    if not fit:
        return f"No word class has {LEAST} tokens."
    most = max(fit, key=lambda row: stays[row])
    said = f"Of the classes with at least {LEAST} tokens "
    said += f"{names[most]} stays most often ({percent(stays[most])}). " if stays[most] > 0 else "none stays. "
    sharp, vague = min(fit, key=lambda row: spread[row]), max(fit, key=lambda row: spread[row])
    if len(fit) == 1:
        return said + f"The mean source entropy of {names[sharp]} is {spread[sharp]:.2f}."
    return said + (
        f"The source is sharpest for {names[sharp]} (entropy {spread[sharp]:.2f}) and widest for {names[vague]} "
        f"({spread[vague]:.2f})."
    )


def _draw_pos_routing(names: list[str], counts: list[int], stays: Array, spread: Array, name_of: str) -> Any:
    figure, axes = plot.subplots(1, 2, 11, 1.6 + 0.27 * max(len(names), 4), sharey=True)
    drawing.heading(figure, name_of)
    panels = [("tokens that stay in their slot", stays, "share", max(float(stays.max()), 0.1))]
    panels.append(("mean source entropy (nats)", spread, "entropy", float(spread.max()) or 1.0))
    for axis, (text, values, unit, highest) in zip(axes.flat, panels, strict=True):
        image = drawing.heat(axis, values, vmin=0, vmax=highest)
        drawing.title(axis, text)
        drawing.ticks(axis, "x", range(values.shape[1]), most=16)
        drawing.axis_labels(axis, "block", "")
        drawing.colour_bar(figure, image, axis, unit)
    drawing.ticks(axes[0, 0], "y", [f"{name} ({count})" for name, count in zip(names, counts, strict=True)])
    axes[0, 1].tick_params(axis="y", length=0)
    return figure


def affinity(trace: Trace, block: int) -> tuple[Array, Array, Array, Array]:
    """Token types: their ids, first places and counts, and [types, F] their mean source probability."""
    ids, first, kind, counts = np.unique(trace.ids, return_index=True, return_inverse=True, return_counts=True)
    total = np.zeros((len(ids), trace.slots))
    np.add.at(total, kind.ravel(), trace.source[block].astype(np.float64))
    return ids, first, counts, total / counts[:, None]


def slot_tokens(trace: Trace, block: int) -> View:
    """The token types that stand most firmly in each of the busiest slots."""
    ids, first, counts, mean = affinity(trace, block)
    use = np.bincount(trace.source_slot[block], minlength=trace.slots)
    slots = busiest(use, ROWS)
    order = np.argsort(-mean[:, slots], axis=0, kind="stable")[:STRONGEST].T  # [slots, strongest]
    slot, most = int(slots[0]), order[0, 0]
    row = int(mean[order[:, 0], slots].argmax())
    kind, at = order[row, 0], int(slots[row])
    firmest = f", and of all slots shown {quoted(trace.tokens[first[kind]])} in slot {at} ({mean[kind, at]:.2f})"
    firmest = firmest if row else ", no token more firmly in any slot shown"
    caption = (
        f"Mean source probability of token types in block {block} of {trace.name}. The busiest slot, {slot}, is the "
        f"likeliest source of {plural(int(use[slot]), 'token')}; {quoted(trace.tokens[first[most]])} stands in it most "
        f"firmly ({mean[most, slot]:.2f}){firmest}. Cells under {BLANK} are left blank."
    )
    name_of = f"Slots and their tokens, {trace.name}, block {block}"
    names = [[trace.tokens[first[kind]] for kind in kinds] for kinds in order]
    return View(
        file_safe("slot-tokens", trace.name, "block", block),
        name_of,
        caption,
        ["slot", "slot_tokens", "rank", "token", "id", "occurrences", "mean_source_probability"],
        [
            [int(s), int(use[s]), rank, readable(words[rank]), int(ids[kind]), int(counts[kind]), float(mean[kind, s])]
            for s, kinds, words in zip(slots, order, names, strict=True)
            for rank, kind in enumerate(kinds)
        ],
        lambda: _draw_slot_tokens(mean[order, slots[:, None]], names, [f"{s} ({use[s]})" for s in slots], name_of),
    )


def _draw_slot_tokens(values: Array, tokens: list[list[str]], slots: list[str], name_of: str) -> Any:
    width = max(values.shape[1], 6)
    figure, axes = plot.subplots(1, 1, 1.8 + 0.72 * width, 1.5 + 0.29 * max(len(slots), 3))
    axis = axes[0, 0]
    drawing.heading(figure, name_of)
    image = drawing.heat(axis, np.where(values < BLANK, np.nan, values), vmin=0, vmax=float(values.max()))
    cells = zip(tokens, values, strict=True)
    words = [[label(token, 8) if p >= BLANK else "" for token, p in zip(*cell, strict=True)] for cell in cells]
    drawing.write_in_cells(axis, image, words)
    drawing.ticks(axis, "x", range(values.shape[1]))
    drawing.ticks(axis, "y", slots)
    drawing.axis_labels(axis, "rank of the token type in the slot (a dot before a token is its space)", "slot (tokens)")
    drawing.colour_bar(figure, image, axis, "mean source probability")
    return figure
