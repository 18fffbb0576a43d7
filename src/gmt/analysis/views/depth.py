"""The same numbers block after block, one line a text."""

from itertools import combinations
from typing import Any

import numpy as np

from gmt import plot
from gmt.analysis.diagnostics import block_diagnostics, source_overlap
from gmt.analysis.trace import Array, Trace
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.analysis.views.drawing import each, over_blocks, percent, plural

DIVERSITY = (
    "coverage", "target_coverage", "n_eff_hard", "n_eff", "gini_hard", "gini", "target_n_eff_hard", "target_gini_hard",
    "largest_source", "largest_target",
)  # fmt: skip
ROUTING = ("source_entropy", "target_entropy", "n_eff_hard", "n_eff", "shift_norm")
NORMS = ("update_norm", "attention_norm", "update_to_attention")
Lines = tuple[str, dict[str, Array]]  # a text's name, and each diagnostic by block
Panel = tuple[str, list[tuple[str, str, str]]]  # its title; diagnostic, dash and name of each line of a text
HARD, SOFT = "by likeliest slot", "by mean probability"
EFFECTIVE: Panel = ("effective source slots N_eff", [("n_eff_hard", "-", HARD), ("n_eff", "--", SOFT)])


def by_depth(trace: Trace) -> dict[str, Array]:
    """Each diagnostic as a line over blocks."""
    rows = block_diagnostics(trace)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _rows(found: list[Lines], names: list[str]) -> list[list[Any]]:
    """A row a text and block; empty where a model has no such number."""
    return [
        [text, block, *(float(values[name][block]) if name in values else "" for name in names)]
        for text, values in found
        for block in range(len(values["update_norm"]))
    ]


def coverage_and_diversity(traces: list[Trace]) -> View:
    """How many slots each text uses, and how evenly. All traces are of a model with memory."""
    found = [(trace.name, by_depth(trace)) for trace in traces]
    names = [f"{trace.name}, {plural(len(trace.tokens), 'token')}" for trace in traces]
    mean = {key: np.mean([values[key] for _, values in found], axis=0) for key in DIVERSITY}  # [L] each
    sources = [percent(values["coverage"].mean()) for _, values in found]
    caption = (
        f"Of {traces[0].slots} slots a block has in the mean {each(names, sources)} as a likeliest source and "
        f"{percent(mean['target_coverage'].mean())} as a target. By likeliest slot, as the paper's probes count, N_eff "
        f"of the sources {over_blocks(mean['n_eff_hard'], 1)} and their Gini index is {mean['gini_hard'].mean():.2f}; "
        f"by mean probability, as in training, N_eff {over_blocks(mean['n_eff'], 1)} and the index is "
        f"{mean['gini'].mean():.2f}. The busiest source slot has {percent(mean['largest_source'].mean())} of the "
        f"tokens, the busiest target {percent(mean['largest_target'].mean())}{over_texts(traces)}."
    )
    return View(
        "coverage-and-diversity",
        "Coverage and diversity by depth",
        caption,
        ["text", "block", *DIVERSITY],
        _rows(found, list(DIVERSITY)),
        lambda: _draw_diversity(found),
    )


def over_texts(traces: list[Trace]) -> str:
    return f", means over {len(traces)} texts" if len(traces) > 1 else ""


def _draw_diversity(found: list[Lines]) -> Any:
    panels: list[Panel] = [
        ("coverage (share of slots)", [("coverage", "-", "source"), ("target_coverage", "--", "target")]),
        ("tokens in the busiest slot (share)", [("largest_source", "-", "source"), ("largest_target", "--", "target")]),
        EFFECTIVE,
        ("Gini index of source use", [("gini_hard", "-", HARD), ("gini", "--", SOFT)]),
    ]
    figure, axes = _draw_lines(found, panels, "Coverage and diversity by depth")
    for axis in (axes[0], axes[1], axes[3]):
        axis.set_ylim(-0.03, 1.2)  # above 1 stands the legend
        axis.set_yticks(np.linspace(0, 1, 6))
    axes[2].set_ylim(
        0, 1.25 * max(float(max(values["n_eff_hard"].max(), values["n_eff"].max())) for _, values in found)
    )
    return figure


def _draw_lines(found: list[Lines], panels: list[Panel], heading: str) -> tuple[Any, list[Any]]:
    rows = len(panels) // 2
    figure, axes = plot.subplots(rows, 2, 9.6, 2.7 * rows + 0.8)
    drawing.heading(figure, heading)
    for axis, (text, lines) in zip(axes.flat, panels, strict=True):
        for index, (_, values) in enumerate(found):
            for name, dash, _ in lines:
                if name in values:
                    axis.plot(values[name], linestyle=dash, **drawing.line_look(index))
        drawing.title(axis, text)
        drawing.depth_axis(axis, len(found[0][1]["update_norm"]))
        if len(lines) > 1:  # what a dash means; what a colour means stands below
            handles = [axis.plot([], [], linestyle=dash, color="#555555")[0] for _, dash, _ in lines]
            low, high = axis.get_ylim()
            axis.set_ylim(low, high + 0.18 * (high - low))
            axis.legend(handles, [kind for _, _, kind in lines], frameon=False, fontsize=8, ncols=2, loc="upper right")
    handles = [axes.flat[0].plot([], [], **drawing.line_look(index))[0] for index in range(len(found))]
    drawing.legend_below(figure, handles, [name for name, _ in found], columns=6)
    return figure, list(axes.flat)


def depth_progression(traces: list[Trace]) -> View:
    """How routing and movement change with depth; of a model without memory only what its sublayers add."""
    found = [(trace.name, by_depth(trace)) for trace in traces]
    memory = any(trace.has_memory for trace in traces)
    second = "memory" if memory else "second sublayer"
    where = f"From block 0 to block {traces[0].blocks - 1}" if traces[0].blocks > 1 else "In block 0"
    routing = ""
    if memory:
        routing = (
            f"the source entropy {_change(found, 'source_entropy')}, the target entropy "
            f"{_change(found, 'target_entropy')}, N_eff by likeliest slot {_change(found, 'n_eff_hard')} (by mean "
            f"probability it {_change(found, 'n_eff')}), the length of a shift before LN_disp "
            f"{_change(found, 'shift_norm')}; "
        )
    after = ", after LN_disp nearly the same for all tokens of a block," if memory else ""
    caption = (
        f"{where}{over_texts(traces)}: {routing}the length of what the {second} adds{after} "
        f"{_change(found, 'update_norm')}; as a multiple of what attention adds it "
        f"{_change(found, 'update_to_attention')}."
    )
    names = [*(ROUTING if memory else ()), *NORMS]
    return View(
        "depth-progression",
        "From the first block to the last",
        caption,
        ["text", "block", *names],
        _rows(found, names),
        lambda: _draw_progression(found, memory, second),
    )


def _change(found: list[Lines], name: str) -> str:
    """From the first block to the last, of the texts that have it."""
    mean = np.mean([values[name] for _, values in found if name in values], axis=0)
    return f"goes from {mean[0]:.2f} to {mean[-1]:.2f}" if len(mean) > 1 else f"is {mean[0]:.2f}"


def _draw_progression(found: list[Lines], memory: bool, second: str) -> Any:
    added = [("update_norm", "-", second), ("attention_norm", "--", "attention")]
    panels: list[Panel] = [("length added to the residual stream", added)]
    if memory:
        entropies = [("source_entropy", "-", "source"), ("target_entropy", "--", "target")]
        shift: Panel = ("length of a token's shift, before LN_disp", [("shift_norm", "-", "")])
        panels = [("routing entropy (nats)", entropies), EFFECTIVE, shift, *panels]
    else:
        panels.append(("second sublayer's length as a multiple of attention's", [("update_to_attention", "-", "")]))
    return _draw_lines(found, panels, "From the first block to the last, means over tokens")[0]


def source_overlap_view(traces: list[Trace]) -> View | None:
    """Whether texts use the same slots: Jaccard overlap of source slots; None for one text."""
    pairs = list(combinations(traces, 2))
    if not pairs:
        return None
    names = [f"{first.name} and {second.name}" for first, second in pairs]
    found = np.array([source_overlap(first, second) for first, second in pairs])  # [pairs, L]
    means, depth = found.mean(-1), found.mean(0)
    over = (
        f"{plural(len(pairs), 'pair')} and all blocks; by depth it"
        if len(depth) > 1
        else plural(len(pairs), "pair") + ": it"
    )
    caption = (
        f"Share of the source slots of two texts that both use: mean {found.mean():.2f} over {over} "
        f"{over_blocks(depth)}. "
        f"Most alike: {names[means.argmax()]} ({means.max():.2f})."
    )
    return View(
        "source-overlap",
        "Do texts use the same slots?",
        caption,
        ["text", "other_text", "block", "jaccard"],
        [
            [first.name, second.name, block, float(value)]
            for (first, second), row in zip(pairs, found, strict=True)
            for block, value in enumerate(row)
        ],
        lambda: _draw_overlap(found, names),
    )


def _draw_overlap(found: Array, names: list[str]) -> Any:
    pairs, blocks = found.shape
    figure, axes = plot.subplots(1, 1, max(5.5, 2.6 + 0.5 * blocks), 1.5 + 0.32 * pairs)
    axis = axes[0, 0]
    drawing.heading(figure, "Do texts use the same slots? Jaccard overlap of source slots")
    image = drawing.heat(axis, found, vmin=0, vmax=1)
    if found.size <= 320:
        drawing.write_in_cells(axis, image, [[f"{value:.2f}" for value in row] for row in found], 7.5)
    drawing.ticks(axis, "y", names, most=60)
    drawing.ticks(axis, "x", range(blocks))
    drawing.axis_labels(axis, "block", "")
    drawing.colour_bar(figure, image, axis, "overlap")
    return figure
