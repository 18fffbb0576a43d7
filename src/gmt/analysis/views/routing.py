"""Where the tokens of a text go: their moves on the map of slots, along learned edges, and again when they recur."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from gmt import plot
from gmt.analysis.diagnostics import Consistency, commonest, consistency
from gmt.analysis.layout import place_slots
from gmt.analysis.meaning import busiest_moves, busiest_slots
from gmt.analysis.trace import Array, Trace
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.analysis.views.drawing import colour, each, file_safe, percent, plural, quoted, readable

MOST_ARROWS = 300  # more are a black heap
LABELLED, BARS, EXAMPLES = 8, 12, 8
TELLING = 0.3  # of the variance: with less, slots that stand near need not be alike


class Move(NamedTuple):
    """What the tokens of one word class do: staying in a slot is one of its moves."""

    source: int
    target: int
    word_class: str | None
    tokens: int
    words: list[str]  # its different tokens, the commonest first


def moves(trace: Trace, block: int, classes: list[str] | None) -> list[Move]:
    """The observed pairs of likeliest source and target, each word class on its own, the commonest first."""
    kinds: list[str | None] = [*classes] if classes else [None] * len(trace.tokens)
    slots = zip(trace.source_slot[block].tolist(), trace.target_slot[block].tolist(), kinds, strict=True)
    places: dict[tuple[int, int, str | None], list[str]] = {}
    for move, token in zip(slots, trace.tokens, strict=True):
        places.setdefault(move, []).append(token)
    found = [Move(*move, len(tokens), [word for word, _ in commonest(tokens)]) for move, tokens in places.items()]
    return sorted(found, key=lambda move: (-move.tokens, move.source, move.target, move.word_class or ""))


def busiest(use: Array, count: int) -> Array:
    """The slots with the most use, of equals the first, without unused ones."""
    order = np.argsort(-use, kind="stable")[:count]
    return order[use[order] > 0]


def routing_flow(trace: Trace, block: int, classes: list[str] | None) -> View:
    """Every observed move of a text in one block, on a map of the slots by their states."""
    found = moves(trace, block, classes)
    places, share = place_slots(trace.states[block])
    caption = f"{_flow_counts(trace, block)} Slots stand {_layout(share)}."
    if classes:
        caption += " Each arrow is one word class."
    if len(found) > MOST_ARROWS:
        caption += f" The {MOST_ARROWS} commonest of {len(found)} arrows and rings are drawn."
    name_of = f"Routing flow of {trace.name}, block {block}"
    return View(
        file_safe("routing-flow", trace.name, "block", block),
        name_of,
        caption,
        ["source", "target", "class", "tokens", "examples"],
        [[m.source, m.target, m.word_class or "", m.tokens, _examples(m.words)] for m in found],
        lambda: _draw_flow(trace, block, found, (places, share), name_of),
    )


def _flow_counts(trace: Trace, block: int) -> str:
    counts, tokens = trace.counts(block), len(trace.tokens)
    different = int((counts > 0).sum() - (np.diag(counts) > 0).sum())
    said = (
        f"Block {block} takes {plural(tokens, 'token')} of {trace.name} from {plural(_used(counts.sum(1)), 'slot')} to "
        f"{_used(counts.sum(0))} of {trace.slots}. "
    )
    stay = f"Of the tokens {percent(float(trace.self_route[block].mean()))} stay in their slot (rings)."
    if not different:
        return said + stay
    i, j, taken = busiest_moves(trace, block, 1)[0]
    here = (trace.source_slot[block] == i) & (trace.target_slot[block] == j)
    words = [word for word, _ in commonest(trace.tokens[place] for place in np.flatnonzero(here))]
    some = ", ".join(quoted(token) for token in words[:4])
    more = f" and {plural(len(words) - 4, 'other')}" if len(words) > 4 else ""
    return said + (
        f"There {'are' if different > 1 else 'is'} {plural(different, 'different move')}; the busiest, {i} to {j}, is "
        f"taken by {plural(taken, 'token')}: {some}{more}. {stay}"
    )


def _used(counts: Array) -> int:
    return int((counts > 0).sum())


def _layout(share: float) -> str:
    near = " (near is alike)" if share >= TELLING else ""
    return f"by the two directions that hold {percent(share)} of their variance{near}"


def _examples(words: list[str]) -> str:
    more = f" +{len(words) - EXAMPLES}" if len(words) > EXAMPLES else ""
    return " ".join(map(readable, words[:EXAMPLES])) + more


def _draw_flow(trace: Trace, block: int, found: list[Move], layout: tuple[Array, float], name_of: str) -> Any:
    figure, axes = plot.subplots(2, 2, 12, 7.4, width_ratios=[1.75, 1], height_ratios=[1.7, 1])
    axes[1, 0].remove()
    graph, matrix, bars = axes[0, 0], axes[0, 1], axes[1, 1]
    graph.set_subplotspec(graph.get_gridspec()[:, 0])
    drawing.heading(figure, name_of)
    counts = trace.counts(block)
    _draw_map(graph, layout[0], found[:MOST_ARROWS], counts, busiest_slots(trace, block, LABELLED))
    drawing.title(graph, f"moves between slots, {_layout(layout[1])}")
    present = [move.word_class for move in found if move.word_class is not None]
    drawing.class_legend(figure, graph, present, columns=17)
    _draw_counts(figure, matrix, counts)
    _draw_bars(bars, counts, busiest_slots(trace, block, BARS))
    return figure


def _draw_map(axis: Any, places: Array, found: list[Move], counts: Array, labelled: Array) -> None:
    use = counts.sum(0) + counts.sum(1)
    area = np.where(use > 0, 22 + 240 * use / use.max(), 7)
    largest = max(move.tokens for move in found)
    thin = min(1.0, 8 / np.sqrt(len(found)))  # where there are many, only the common ones stand out
    for move, rank in reversed(_ranked(found)):  # the commonest on top
        weight = move.tokens / largest
        look = {"color": colour(move.word_class), "alpha": 0.3 * thin + 0.6 * weight}
        if move.source == move.target:
            size = (np.sqrt(area[move.source]) + 6 + 6 * rank) ** 2
            ring = {"edgecolors": look["color"], "linewidths": 0.8 + 2.4 * weight, "facecolors": "none"}
            axis.scatter(*places[move.source], s=size, zorder=4, **ring)
            continue
        radii = np.sqrt(area[[move.source, move.target]]) / 2
        arrow = {
            "arrowstyle": "-|>", "connectionstyle": f"arc3,rad={_bend(rank):.3f}", "mutation_scale": 5 + 8 * weight,
            "linewidth": thin + 3 * weight, "shrinkA": radii[0], "shrinkB": radii[1] + 1, **look,
        }  # fmt: skip
        note = axis.annotate("", xy=places[move.target], xytext=places[move.source], arrowprops=arrow, zorder=2)
        note.set_in_layout(False)
    shades = np.where(use > 0, "#3B3B3B", drawing.PALE)
    axis.scatter(*places.T, s=area, c=shades, edgecolors="white", linewidths=0.6, zorder=3)
    for slot in labelled:
        note = axis.annotate(
            str(slot), places[slot], xytext=(0, np.sqrt(area[slot]) / 2 + 3), textcoords="offset points", ha="center",
            va="bottom", fontsize=8.5, fontweight="bold", zorder=6,
            bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
        )  # fmt: skip
        note.set_in_layout(False)
    axis.set(xlim=(-0.06, 1.06), ylim=(-0.06, 1.08), xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(visible=True, color=drawing.PALE)


def _ranked(found: list[Move]) -> list[tuple[Move, int]]:
    """Each move with its rank among those of the same slots, the commonest class 0."""
    seen = Counter[tuple[int, int]]()
    ranked = []
    for move in found:
        pair = move.source, move.target
        ranked.append((move, seen[pair]))
        seen[pair] += 1
    return ranked


def _bend(rank: int) -> float:
    """Classes on one way bend apart, less and less so that the last still stays in the picture."""
    return 0.12 + 0.4 * rank / (rank + 4)


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


def _draw_bars(axis: Any, counts: Array, slots: Array) -> None:
    leaving, entering = counts.sum(1), counts.sum(0)
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
    order = busiest_slots(trace, block, count)
    along, uniform = along_edges(trace, block), 1 / (trace.slots - 1)
    if along is None:
        caption = f"In block {block} every token of {trace.name} stays in its slot, and staying has no edge."
    else:
        caption = (
            f"In block {block} tokens of {trace.name} that leave their slot: {along.leaving} of {len(trace.tokens)}. "
            f"Of these moves {percent(along.strongest)} go along the strongest edge of their source. The mean "
            f"learned probability of a move is {along.mean:.3f}, {along.mean / uniform:.1f} times the {uniform:.3f} of "
            f"equal edges."
        )
    name_of = f"Learned edges and observed moves of {trace.name}, block {block}"
    return View(
        file_safe("active-edges", trace.name, "block", block),
        name_of,
        caption + _outside(counts, order),
        ["source", "target", "probability", "tokens"],
        [[int(i), int(j), float(trace.transition[block, i, j]), int(counts[i, j])] for i in order for j in order],
        lambda: _draw_edges(trace, block, order, counts, name_of),
    )


def _outside(counts: Array, order: Array) -> str:
    """What is not seen where only some of the used slots are shown."""
    used = _used(counts.sum(0) + counts.sum(1))
    if len(order) == used:
        return ""
    missed = percent(1 - counts[np.ix_(order, order)].sum() / counts.sum())
    return f" Shown: {len(order)} of the {used} slots in use; {missed} of the tokens' moves lie outside of them."


def _shown(counts: Array, order: Array) -> str:
    used = _used(counts.sum(0) + counts.sum(1))
    return (
        f"the {len(order)} busiest of {len(counts)} slots"
        if len(order) < used
        else f"slots in use: {used} of {len(counts)}"
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
    drawing.title(axis, f"{_shown(counts, order)}, busiest first; a slot has no edge to itself")
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
    types = (plural(same.types, "type") for same in kept)
    caption = (
        f"Two places of the same token have the same likeliest source in {each(names, _shares(kept, 'same_slot'))}, "
        f"two places of different tokens in {each(names, _shares(kept, 'different'))}: means over blocks, for the same "
        f"token also over the types that stand at least twice, each type counted once, {each(names, types)}. By depth "
        f"the share for the same token {drawing.over_blocks(depth)}. Source distributions of the same token overlap by "
        f"{each(names, _shares(kept, 'overlap'))}."
    )
    return View(
        "routing-consistency",
        "Is a token routed alike wherever it stands?",
        caption,
        ["text", "block", "same_slot", "overlap", "different", "types", "pairs"],
        [
            [name, block, *(float(row[block]) for row in same[:3]), same.types, same.pairs]
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
    panels = [
        ("same likeliest source", "share of pairs, mean over types"),
        ("overlap of source distributions", "1 − total variation"),
    ]
    for axis, (text, unit), which in zip(axes.flat, panels, ("same_slot", "overlap"), strict=True):
        for index, (name, same) in enumerate(found):
            values = getattr(same, which)
            axis.plot(range(len(values)), values, label=name, **drawing.line_look(index))
            if which == "same_slot":
                axis.plot(range(len(values)), same.different, linestyle="--", **drawing.line_look(index))
        drawing.title(axis, text)
        drawing.depth_axis(axis, len(found[0][1].overlap))
        axis.set_ylabel(unit, fontsize=9)
        axis.set_ylim(-0.03, 1.2)  # above 1 stands the legend
        axis.set_yticks(np.linspace(0, 1, 6))
    dashes = [axes[0, 0].plot([], [], linestyle=dash, color="#555555")[0] for dash in ("-", "--")]
    kinds = ["places of the same token", "of different tokens (baseline)"]
    axes[0, 0].legend(dashes, kinds, frameon=False, fontsize=8, loc="upper right")
    handles, names = axes[0, 1].get_legend_handles_labels()
    drawing.legend_below(figure, handles, names, columns=6)
    return figure
