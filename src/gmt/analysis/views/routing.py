"""Where the tokens of a text go: their moves on the map of slots, along learned edges, and again when they recur."""

from typing import Any, NamedTuple

import numpy as np

from gmt import plot
from gmt.analysis.diagnostics import Consistency, consistency
from gmt.analysis.layout import place_slots
from gmt.analysis.trace import Array, Trace
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.analysis.views.drawing import colour, commonest, each, file_safe, percent, plural, quoted, readable

MOST_ARROWS = 300  # more are a black heap
LABELLED, BARS = 8, 12


class Move(NamedTuple):
    source: int
    target: int
    tokens: int
    word_class: str | None  # of most of its tokens
    words: list[str]  # its different tokens, the commonest first


def moves(trace: Trace, block: int, classes: list[str] | None) -> list[Move]:
    """The observed pairs of likeliest source and target, the commonest first."""
    places: dict[tuple[int, int], list[int]] = {}
    for place, pair in enumerate(zip(trace.source_slot[block], trace.target_slot[block], strict=True)):
        places.setdefault((int(pair[0]), int(pair[1])), []).append(place)
    found = []
    for (source, target), at in places.items():
        word_class = commonest([classes[place] for place in at])[0][0] if classes else None
        words = [token for token, _ in commonest([trace.tokens[place] for place in at])]
        found.append(Move(source, target, len(at), word_class, words))
    return sorted(found, key=lambda move: (-move.tokens, move.source, move.target))


def busiest(use: Array, count: int) -> Array:
    """The slots with the most use, of equals the first, without unused ones."""
    order = np.argsort(-use, kind="stable")[:count]
    return order[use[order] > 0]


def routing_flow(trace: Trace, block: int, classes: list[str] | None) -> View:
    """Every observed move of a text in one block, on a map where slots with like states stand near."""
    found = moves(trace, block, classes)
    counts = trace.counts(block)
    leaving, entering = counts.sum(1), counts.sum(0)
    first = found[0]
    some = ", ".join(quoted(token) for token in first.words[:4])
    more = f" and {plural(len(first.words) - 4, 'other')}" if len(first.words) > 4 else ""
    caption = (
        f"In block {block} the {plural(len(trace.tokens), 'token')} of {trace.name} leave from "
        f"{plural(int((leaving > 0).sum()), 'slot')} and arrive at {int((entering > 0).sum())} of {trace.slots}, by "
        f"{plural(len(found), 'different move')}. The busiest, {first.source} to {first.target}, is taken by "
        f"{plural(first.tokens, 'token')}: {some}{more}. "
        f"{percent(float(trace.self_route[block].mean()))} of the tokens stay in their slot (rings)."
    )
    if len(found) > MOST_ARROWS:
        caption += f" The {MOST_ARROWS} commonest moves are drawn."
    name_of = f"Routing flow of {trace.name}, block {block}"
    return View(
        file_safe("routing-flow", trace.name, "block", block),
        name_of,
        caption,
        ["source", "target", "tokens", "self_route", "commonest_class", "different_tokens"],
        [
            [m.source, m.target, m.tokens, m.source == m.target, m.word_class or "", " ".join(map(readable, m.words))]
            for m in found
        ],
        lambda: _draw_flow(trace, block, found, counts, name_of),
    )


def _draw_flow(trace: Trace, block: int, found: list[Move], counts: Array, name_of: str) -> Any:
    figure, axes = plot.subplots(2, 2, 12, 7.4, width_ratios=[1.75, 1], height_ratios=[1.7, 1])
    axes[1, 0].remove()
    graph, matrix, bars = axes[0, 0], axes[0, 1], axes[1, 1]
    graph.set_subplotspec(graph.get_gridspec()[:, 0])
    drawing.heading(figure, name_of)
    _draw_map(graph, place_slots(trace.states[block]), found[:MOST_ARROWS], counts)
    present = [move.word_class for move in found if move.word_class is not None]
    drawing.class_legend(figure, graph, present, columns=17)
    _draw_counts(figure, matrix, counts)
    _draw_bars(bars, counts)
    return figure


def _draw_map(axis: Any, places: Array, found: list[Move], counts: Array) -> None:
    use = counts.sum(0) + counts.sum(1)
    area = np.where(use > 0, 22 + 240 * use / use.max(), 7)
    largest = max(move.tokens for move in found)
    thin = min(1.0, 8 / np.sqrt(len(found)))  # where there are many, only the common ones stand out
    for move in reversed(found):  # the commonest on top
        weight = move.tokens / largest
        if move.source == move.target:
            size = (np.sqrt(area[move.source]) + 6) ** 2
            axis.scatter(
                *places[move.source], s=size, facecolors="none", edgecolors=colour(move.word_class),
                linewidths=0.6 + 2.6 * weight, zorder=4,
            )  # fmt: skip
            continue
        radii = np.sqrt(area[[move.source, move.target]]) / 2
        arrow = {
            "arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.16", "mutation_scale": 5 + 8 * weight,
            "linewidth": thin + 3 * weight, "color": colour(move.word_class), "alpha": 0.3 * thin + 0.6 * weight,
            "shrinkA": radii[0], "shrinkB": radii[1] + 1,
        }  # fmt: skip
        note = axis.annotate("", xy=places[move.target], xytext=places[move.source], arrowprops=arrow, zorder=2)
        note.set_in_layout(False)
    shades = np.where(use > 0, "#3B3B3B", drawing.PALE)
    axis.scatter(*places.T, s=area, c=shades, edgecolors="white", linewidths=0.6, zorder=3)
    for slot in busiest(use, LABELLED):
        note = axis.annotate(
            str(slot), places[slot], xytext=(0, np.sqrt(area[slot]) / 2 + 3), textcoords="offset points", ha="center",
            va="bottom", fontsize=8.5, fontweight="bold", zorder=6,
            bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
        )  # fmt: skip
        note.set_in_layout(False)
    axis.set(xlim=(-0.06, 1.06), ylim=(-0.06, 1.08), xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(visible=True, color=drawing.PALE)
    drawing.title(axis, "slots by their states (near is alike) and moves between them")


def _draw_counts(figure: Any, axis: Any, counts: Array) -> None:
    sources, targets = busiest(counts.sum(1), len(counts)), busiest(counts.sum(0), len(counts))
    shown = counts[np.ix_(sources, targets)].astype(float)
    shown[shown == 0] = np.nan
    image = drawing.heat(axis, shown, norm="log", vmin=1, vmax=max(2, counts.max()))
    drawing.ticks(axis, "x", targets, most=16, rotation=90 if len(targets) > 8 else 0)
    drawing.ticks(axis, "y", sources, most=22)
    drawing.axis_labels(axis, "target slot, busiest first", "source slot, busiest first")
    drawing.title(axis, "tokens by source and target")
    drawing.colour_bar(figure, image, axis, "tokens", format="%d", ticks=_count_ticks(int(counts.max())))


def _count_ticks(largest: int) -> list[int]:
    return [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if n <= max(2, largest)]


def _draw_bars(axis: Any, counts: Array) -> None:
    leaving, entering = counts.sum(1), counts.sum(0)
    slots = busiest(leaving + entering, BARS)
    places = np.arange(len(slots))
    axis.bar(places - 0.2, leaving[slots], 0.38, color=plot.OKABE_ITO[0], label="as source")
    axis.bar(places + 0.2, entering[slots], 0.38, color=plot.OKABE_ITO[1], label="as target")
    axis.set_xlim(-0.7, max(len(slots), 6) - 0.3)
    axis.set_ylim(0, 1.22 * max(leaving.max(), entering.max()))  # room for the legend
    drawing.ticks(axis, "x", slots)
    drawing.axis_labels(axis, "slot", "tokens")
    axis.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)
    drawing.title(axis, "busiest slots")


class Along(NamedTuple):
    """How the tokens that leave their slot go along its edges."""

    leaving: int
    strongest: float  # share whose move is the strongest edge of its source
    mean: float  # learned probability of their moves


def along_edges(trace: Trace, block: int) -> Along | None:
    """None where every token stays: staying has no edge."""
    source, target = trace.source_slot[block].astype(int), trace.target_slot[block].astype(int)
    leaves = source != target
    if not leaves.any():
        return None
    source, target, transition = source[leaves], target[leaves], trace.transition[block]
    strongest = transition[source].argmax(-1) == target
    return Along(int(leaves.sum()), float(strongest.mean()), float(transition[source, target].mean()))


def active_edges(trace: Trace, block: int, count: int = 32) -> View:
    """The learned edges among the busiest slots, and which of them the text takes."""
    counts = trace.counts(block)
    use = counts.sum(0) + counts.sum(1)
    order = np.argsort(-use, kind="stable")[:count]
    along, uniform = along_edges(trace, block), 1 / (trace.slots - 1)
    if along is None:
        caption = f"In block {block} every token of {trace.name} stays in its slot, and staying has no edge."
    else:
        caption = (
            f"In block {block} {along.leaving} of the {plural(len(trace.tokens), 'token')} of {trace.name} leave their "
            f"slot; {percent(along.strongest)} of these moves go along the strongest edge of their source. The mean "
            f"learned probability of a move is {along.mean:.3f}, {along.mean / uniform:.1f} times the {uniform:.3f} of "
            f"equal edges."
        )
    name_of = f"Learned edges and observed moves of {trace.name}, block {block}"
    return View(
        file_safe("active-edges", trace.name, "block", block),
        name_of,
        caption,
        ["source", "target", "probability", "tokens"],
        [[int(i), int(j), float(trace.transition[block, i, j]), int(counts[i, j])] for i in order for j in order],
        lambda: _draw_edges(trace, block, order, counts, name_of),
    )


def _draw_edges(trace: Trace, block: int, order: Array, counts: Array, name_of: str) -> Any:
    figure, axes = plot.subplots(1, 1, 7.9, 7.5)
    axis = axes[0, 0]
    drawing.heading(figure, name_of)
    edges = trace.transition[block][np.ix_(order, order)]
    image = drawing.edge_heat(axis, edges, float(edges.max()), trace.slots)
    seen = counts[np.ix_(order, order)]
    rows, columns = np.nonzero(seen)
    room = (480 / len(order)) ** 2  # points across a cell, so that the largest dot fills most of it
    size = 0.6 * min(room, 900) * seen[rows, columns] / seen.max()
    dots = {"facecolors": plot.OKABE_ITO[1], "edgecolors": "white", "linewidths": 0.7}
    axis.scatter(columns, rows, s=np.maximum(size, 6), **dots)
    drawing.ticks(axis, "x", order, rotation=90 if len(order) > 12 else 0)
    drawing.ticks(axis, "y", order)
    drawing.axis_labels(axis, "target slot", "source slot")
    drawing.title(axis, f"the {len(order)} busiest of {trace.slots} slots, busiest first; a slot has no edge to itself")
    drawing.colour_bar(figure, image, axis, "learned transition probability P")
    most = f"observed moves, by area; the largest is {plural(int(seen.max()), 'token')}"
    drawing.legend_below(figure, [axis.scatter([], [], s=40, **dots)], [most])
    return figure


def routing_consistency(traces: list[Trace]) -> View | None:
    """How alike a token is routed at its several places, by depth; None where no text repeats a token."""
    found = [(trace.name, same) for trace in traces if trace.has_memory and (same := consistency(trace)) is not None]
    if not found:
        return None
    names, kept = [name for name, _ in found], [same for _, same in found]
    depth = np.mean([same.same_slot for same in kept], axis=0)
    caption = (
        f"Of pairs of places of the same token, {each(names, (str(same.pairs) for same in kept))}, the likeliest "
        f"source is the same in {each(names, _shares(kept, 'same_slot'))}, mean over blocks; the mean over texts goes "
        f"{drawing.least_and_most(depth)}. Their source distributions overlap by "
        f"{each(names, _shares(kept, 'overlap'))}."
    )
    return View(
        "routing-consistency",
        "Is a token routed alike wherever it stands?",
        caption,
        ["text", "block", "same_slot", "overlap", "pairs"],
        [
            [name, block, float(same.same_slot[block]), float(same.overlap[block]), same.pairs]
            for name, same in found
            for block in range(len(same.same_slot))
        ],
        lambda: _draw_consistency(found),
    )


def _shares(kept: list[Consistency], which: str) -> list[str]:
    return [percent(getattr(same, which).mean()) for same in kept]


def _draw_consistency(found: list[tuple[str, Consistency]]) -> Any:
    figure, axes = plot.subplots(1, 2, 9.6, 3.9, sharey=True)
    drawing.heading(figure, "Is a token routed alike wherever it stands?")
    panels = [("same likeliest source", "share of pairs"), ("overlap of source distributions", "1 − total variation")]
    for axis, (text, unit), which in zip(axes.flat, panels, ("same_slot", "overlap"), strict=True):
        for index, (name, same) in enumerate(found):
            values = getattr(same, which)
            axis.plot(range(len(values)), values, label=name, **drawing.line_look(index))
        drawing.title(axis, text)
        drawing.depth_axis(axis, len(found[0][1].overlap))
        axis.set_ylabel(unit, fontsize=9)
        axis.set_ylim(-0.03, 1.03)
    drawing.legend_below(figure, *axes[0, 0].get_legend_handles_labels(), columns=6)
    return figure
