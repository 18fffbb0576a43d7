"""Three figures of a study: losses on their way, differences at the end, shares of the sublayers by depth."""

import itertools
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gmt import plot
from gmt.study.result import Result
from gmt.study.statistics import Comparison, by_arm, interval_text, mean_by_block
from gmt.utils.outputs import OutputFolder

SMOOTHING = 0.03  # of a run: the window of the running mean
STEEP = 0.1  # of a run: what comes before is cut off where it is higher than all that follows
LAST = 0.25  # of a run: the second panel shows it larger
FAR = 4.0  # times as far out as the median arm: not shown where it would flatten the others
NAME = 30  # letters of an arm's name on a line
GREY = "#888888"
# the yellow is lost on white paper; after the seventh arm the colours come again, dashed
COLOURS = tuple(colour for colour in plot.OKABE_ITO if colour != "#F0E442")
CONTROLS = ("attention-only", "dense-205", "dense-1050", "v7", "v7-stable")  # look the same in every study


def draw_figures(
    results: Sequence[Result], found: Sequence[Comparison], out: OutputFolder, smoothing: float = SMOOTHING
) -> dict[str, str]:
    """Draws what there is to draw of results at one rate an arm; gives each figure's name and caption."""
    shown = {
        "curves": (
            curves(results, smoothing),
            "Validation loss (dots, mean over seeds) and training loss (line: running mean over "
            f"{100 * smoothing:.0f} % of the run, then mean over seeds; band: from the lowest seed to the highest). "
            "The steep beginning is cut off.",
        ),
        "differences": (
            differences(found),
            "Paired difference of the last validation loss and its 95 % interval. Small dots are seeds; "
            "a filled marker is a difference beyond noise; an arrow points to what lies beyond the edge.",
        ),
        "depth": (
            depth(results),
            "What each sublayer adds, by block: its norm over that of the residual stream before it, mean over seeds.",
        ),
    }
    for name, (figure, _) in shown.items():
        if figure is not None:
            out.reserve(f"{name}.png", f"{name}.svg")
            plot.save(figure, out.path, name)
    return {name: caption for name, (figure, caption) in shown.items() if figure is not None}


def curves(results: Sequence[Result], smoothing: float = SMOOTHING) -> Any | None:
    """Loss against tokens: the whole run, and its end on a scale of its own."""
    arms = by_arm(results)
    every = [series for r in results for series in (_finite(r.training), _finite(r.validation)) if series]
    if not every:
        return None
    beside, height = _size(arms, 4.2)
    with plot.style():
        figure, axes = plot.subplots(1, 2, 8.4 + beside, height)
        last, places = max(series[-1][0] for series in every), _places(arms)
        for panel, begin, title in (
            (axes[0, 0], STEEP, "whole run"),
            (axes[0, 1], 1 - LAST, f"last {100 * LAST:.0f} %"),
        ):
            spans = [_curve(panel, mine, places[arm], begin * last, smoothing) for arm, mine in arms.items()]
            above = _limits(panel, [span for span in spans if span], far=math.inf if begin == STEEP else FAR)
            panel.set(title=title + (f" ({above} higher than this)" if above else ""), xlabel="tokens seen (millions)")
            panel.grid(alpha=0.25)
        axes[0, 0].set(xlim=(0, last / 1e6 * 1.02), ylabel="loss (nats a token)")
        axes[0, 1].set(xlim=((1 - LAST) * last / 1e6, last / 1e6 * 1.005))
        _legend(figure, axes[0, 0], arms)
    return figure


def _curve(
    panel: Any, results: Sequence[Result], number: int, begin: float, smoothing: float
) -> tuple[float, float] | None:
    """Draws one arm; gives the lowest and the highest that a panel beginning there must show."""
    look, low, high = _look(number), [], []
    tokens, losses = _stacked([r.training for r in results], smoothing)
    if len(tokens):
        panel.plot(tokens / 1e6, losses.mean(0), **look)
        if len(losses) > 1:
            panel.fill_between(tokens / 1e6, losses.min(0), losses.max(0), color=look["color"], alpha=0.15, lw=0)
        if (shown := losses[:, tokens >= begin]).size:
            low, high = [shown.min()], [np.quantile(shown.max(0), 0.95)]  # a spike may leave the panel
    tokens, losses = _stacked([r.validation for r in results])
    if len(tokens):
        # a white rim tells dots from the line of their own colour
        rim = {"ms": 4.5, "mec": "white", "mew": 0.6, "ls": "", "zorder": 3}
        panel.plot(tokens / 1e6, losses.mean(0), color=look["color"], marker=_marker(number), **rim)
        shown = losses.mean(0)[tokens >= begin].tolist()
        low, high = low + shown, high + shown
    return (float(min(low)), float(max(high))) if low else None


def _stacked(series: Sequence[Sequence[tuple[int, float]]], smoothing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that all seeds have in common, and the losses [seeds, tokens] there."""
    rows: list[dict[int, float]] = []
    for one in map(_finite, series):
        rows.append(dict(zip([t for t, _ in one], running_mean([x for _, x in one], smoothing).tolist(), strict=True)))
    common = sorted(set.intersection(*(set(row) for row in rows)))
    return np.array(common, float), np.array([[row[t] for t in common] for row in rows], float)


def _finite(series: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(tokens, loss) for tokens, loss in series if math.isfinite(loss)]


def running_mean(values: Sequence[float], share: float) -> np.ndarray:
    """Over a window of that share of them, centred; at the ends, over what there is of it."""
    half, place = int(len(values) * share / 2), np.arange(len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    begin, end = np.maximum(place - half, 0), np.minimum(place + half + 1, len(values))
    return (sums[end] - sums[begin]) / (end - begin)


def _limits(panel: Any, spans: Sequence[tuple[float, float]], far: float) -> int:
    """Sets the heights that are shown, and gives how many arms lie wholly above them.

    Linear: once the steep part is cut off, the losses lie within a factor of two or so.
    """
    lowest = min((low for low, _ in spans), default=0.0)
    middle = statistics.median([low for low, _ in spans]) - lowest if spans else 0.0
    shown = [span for span in spans if not middle or span[0] - lowest <= far * middle]
    if shown:
        highest = max(high for _, high in shown)
        room = 0.05 * (highest - lowest) or 0.05
        panel.set_ylim(lowest - room, highest + room)
    return len(spans) - len(shown)


def differences(found: Sequence[Comparison]) -> Any | None:
    """One row an arm, read from the top; what it says in numbers stands at its right."""
    found = [one for one in found if one.seeds and math.isfinite(one.mean)]
    if not found:
        return None
    names = [textwrap.fill(one.arm, NAME) for one in found]
    with plot.style():
        height = 0.9 + sum(max(0.42, 0.2 * (1 + name.count("\n"))) for name in names)
        figure, axes = plot.subplots(1, 1, 6.5 + _size([one.arm for one in found], 0)[0], height)
        panel = axes[0, 0]
        low, high = _reach(found)
        panel.axvline(0, color=GREY, lw=0.8)
        for row, one in enumerate(found):
            _row(panel, row, one, low, high)
        panel.set(xlim=(low, high), ylim=(len(found) - 0.4, -0.6), yticks=range(len(found)), yticklabels=names)
        label = f"final loss less that of “{found[0].reference}” (nats; left is better)"
        panel.set_xlabel(textwrap.fill(label, 56))
        said = panel.secondary_yaxis("right")
        said.set_yticks(range(len(found)), [_numbers(one) for one in found])
        for side in (panel, said):
            side.tick_params(axis="y", length=0, pad=8)
        said.spines["right"].set_visible(False)
    return figure


def _row(panel: Any, row: int, one: Comparison, low: float, high: float) -> None:
    colour = COLOURS[0]

    def mark(value: float, shape: str, **looks: Any) -> None:
        """What lies beyond the edge is an arrow there."""
        shape = "<" if value < low else ">" if value > high else shape
        panel.plot([min(max(value, low), high)], [row], shape, color=colour, clip_on=False, **looks)

    if one.interval is not None:
        panel.plot(one.interval[1:], [row, row], color=colour, lw=1.6)
        for end in one.interval[1:]:
            mark(end, "|", ms=7)
    panel.plot(list(one.differences.values()), [row + 0.22] * one.seeds, "o", color=GREY, ms=2.8, mew=0)
    mark(one.mean, "o", ms=7, mfc=colour if one.beyond_noise else "white", mew=1.4, zorder=3)


def _reach(found: Sequence[Comparison]) -> tuple[float, float]:
    """Zero, all seeds and intervals; but an arm far out, or the wide interval of two seeds, must not hide the rest."""
    ends = [[*one.differences.values(), *(one.interval[1:] if one.interval else ())] for one in found]
    limit = FAR * statistics.median(max(map(abs, mine)) for mine in ends) or math.inf
    every = [0.0, *(end for mine in ends for end in mine)]
    low, high = max(min(every), -limit), min(max(every), limit)
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _numbers(one: Comparison) -> str:
    said = "one seed" if one.interval is None else interval_text(one)
    return f"{one.mean:+z.{one.decimals}f} ({said})"


def depth(results: Sequence[Result]) -> Any | None:
    """The second sublayer's share and attention's, by block."""
    arms = by_arm(results)
    kinds = {"second sublayer": [r.second_share for r in results], "attention": [r.attention_share for r in results]}
    kinds = {kind: rows for kind, rows in kinds.items() if any(rows)}
    if not kinds:
        return None
    beside, height = _size(arms, 3.8)
    with plot.style():
        figure, axes = plot.subplots(1, len(kinds), 0.5 + 3.8 * len(kinds) + beside, height)
        for panel, kind in zip(axes[0], kinds, strict=True):
            seen: list[float] = []
            for name, number in _places(arms).items():
                mine = arms[name]
                shares = mean_by_block(r.second_share if kind == "second sublayer" else r.attention_share for r in mine)
                panel.plot(range(len(shares)), shares, marker=_marker(number), ms=3, **_look(number))
                seen += shares
            _scale(panel, seen)
            panel.set(title=kind, xlabel="block")
            panel.xaxis.get_major_locator().set_params(integer=True)
            panel.grid(alpha=0.25)
        axes[0, 0].set_ylabel("norm of what it adds / norm before it")
        _legend(figure, axes[0, 0], arms)
    return figure


def _scale(panel: Any, seen: Sequence[float]) -> None:
    """From zero up; logarithmic, with ticks one can read, where arms differ by orders of magnitude."""
    low, high = min(seen), max(seen)
    if low <= 0 or high < 20 * low:
        panel.set_ylim(0, 1.05 * high or 1)
        return
    panel.set_yscale("log")
    panel.minorticks_off()
    ticks = [digit * 10.0**power for power in range(-9, 9) for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low / 2 < tick < 2 * high]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.set_ylim(low / 1.3, high * 1.3)


def _places(names: Iterable[str]) -> dict[str, int]:
    """An arm's place among the looks."""
    names = list(names)
    free = (number for number in itertools.count() if not (number < len(CONTROLS) and CONTROLS[number] in names))
    return {name: CONTROLS.index(name) if name in CONTROLS else next(free) for name in names}


def _marker(number: int) -> str:
    return "o" if number < len(COLOURS) else "s"


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": "-" if number < len(COLOURS) else (0, (4, 2))}


def _size(names: Any, height: float) -> tuple[float, float]:
    """The inches that a legend of these names takes beside the panels, and a height that holds it."""
    lines = [line for name in names for line in textwrap.wrap(name, NAME)]
    return 0.6 + 0.075 * max(map(len, lines)), max(height, 0.5 + 0.19 * len(lines))


def _legend(figure: Any, panel: Any, names: Any) -> None:
    """Beside the panels, where it covers nothing."""
    for name, number in _places(names).items():
        panel.plot([], [], label=textwrap.fill(name, NAME), **_look(number))
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right upper")
