"""What all views share: words for numbers and tokens, and axes dressed alike.

Sizes are given outright: matplotlib reads its settings when a label is made, not when its axes were.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gmt import plot
from gmt.analysis.diagnostics import LEAST
from gmt.analysis.pos import CLASSES
from gmt.analysis.tell import shown
from gmt.analysis.trace import Array

NEUTRAL = "#4C6A85"  # where there is no word class
PALE = "#D9D9D9"
LINES = tuple(colour for colour in plot.OKABE_ITO if colour != "#F0E442")  # a yellow line is not seen on white
MARKERS = "os^Dv"  # a dash tells kinds of lines apart, so that more texts than colours differ by marker
STRIP = 40  # tokens side by side whose names can be read


def file_safe(*parts: object) -> str:
    return re.sub(r"[\W_]+", "-", "-".join(str(part) for part in parts).lower()).strip("-")


def readable(token: str, most: int = 14) -> str:
    """A token on one line, as everywhere; long ones cut."""
    text = shown(token)
    return text if len(text) <= most else text[: most - 1] + "…"


def label(token: str, most: int = 14) -> str:
    """The same for a figure, where a dollar sign would begin a formula."""
    return plain(readable(token, most))


def plain(text: str) -> str:
    return text.replace("$", r"\$")


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or abs(share) >= 0.005 else "under 1 %"


def quoted(token: str) -> str:
    return f"“{readable(token)}”"


def each(names: Sequence[str], values: Iterable[str]) -> str:
    """What several texts have, in one breath."""
    return ", ".join(f"{value} ({name})" for name, value in zip(names, values, strict=True))


def over_blocks(values: Array, digits: int = 2) -> str:
    """The smallest and the largest of a line over blocks, and where; of one block what it has."""
    low, high = int(values.argmin()), int(values.argmax())
    if len(values) == 1:
        return f"is {values[0]:.{digits}f} (block 0)"
    return f"goes from {values[low]:.{digits}f} (block {low}) to {values[high]:.{digits}f} (block {high})"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def enough(counts: dict[str, int], least: int = LEAST) -> list[str]:
    """The classes with so many tokens that something can be said of them."""
    return [name for name, count in counts.items() if count >= least]


def present(classes: Sequence[str]) -> list[str]:
    """The classes that occur, in the order of the list of classes."""
    found = set(classes)
    return [name for name in CLASSES if name in found] + sorted(found - set(CLASSES))


def colour(word_class: str | None) -> str:
    return NEUTRAL if word_class is None else plot.POS_COLOURS.get(word_class, NEUTRAL)


def line_look(index: int) -> dict[str, Any]:
    """The look of the index-th text's line, the same in every view."""
    marker = MARKERS[index // len(LINES) % len(MARKERS)]
    return {"color": LINES[index % len(LINES)], "linewidth": 1.5, "marker": marker, "markersize": 3.2}


def title(axis: Any, text: str) -> None:
    axis.set_title(plain(text), loc="left", fontsize=10)


def heading(figure: Any, text: str) -> None:
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)  # inches to the edges and between panels
    figure.suptitle(plain(text), x=0.01, ha="left", fontsize=11.5)


def axis_labels(axis: Any, x: str, y: str) -> None:
    axis.set_xlabel(plain(x), fontsize=9)
    axis.set_ylabel(plain(y), fontsize=9)


def legend_below(figure: Any, handles: list[Any], names: list[str], columns: int = 9) -> None:
    """Outside of all axes, so that it hides nothing."""
    if handles:
        names = [plain(name) for name in names]
        columns = math.ceil(len(names) / math.ceil(len(names) / columns))  # full rows, no orphan
        figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def class_legend(figure: Any, axis: Any, classes: Sequence[str] | None, columns: int = 9) -> None:
    if classes:
        names = present(classes)
        handles = [axis.scatter([], [], s=28, color=colour(name)) for name in names]
        legend_below(figure, handles, names, columns)


def colour_bar(figure: Any, image: Any, axes: Any, text: str, **settings: Any) -> None:
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=25, **settings)
    bar.set_label(plain(text), fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    bar.minorticks_off()
    bar.outline.set_visible(False)


def ticks(axis: Any, which: str, names: Iterable[object], most: int = 32, **settings: Any) -> None:
    """Names at whole places along 'x' or 'y'; only each second, fifth, ... where they would touch."""
    every = [plain(str(name)) for name in names]
    step = next((n for n in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50) if len(every) <= most * n), len(every))
    places = np.arange(0, len(every), step)
    names = every[::step]
    set_ticks = axis.set_xticks if which == "x" else axis.set_yticks
    set_ticks(places, names, fontsize=settings.pop("fontsize", 8), **settings)
    axis.tick_params(axis=which, length=2)


def heat(axis: Any, values: Array, **settings: Any) -> Any:
    """A matrix as colours, first row on top; what is not a number stays pale."""
    axis.set_facecolor("#F2F2F2")
    known = np.ma.masked_invalid(np.asarray(values, dtype=np.float64))
    settings = {"cmap": plot.SEQUENTIAL, "aspect": "auto", "interpolation": "nearest", **settings}
    for spine in axis.spines.values():
        spine.set_visible(False)
    return axis.imshow(known, **settings)


def edge_heat(axis: Any, edges: Array, highest: float, slots: int) -> Any:
    """Transition probabilities: by order of magnitude, from a tenth of what equal edges would have."""
    known = np.where(np.eye(len(edges), dtype=bool) & (edges <= 0), np.nan, edges)
    lowest = 0.1 / (slots - 1)
    return heat(axis, np.maximum(known, lowest), norm="log", vmin=lowest, vmax=max(highest, 2 * lowest), aspect="equal")


def write_in_cells(axis: Any, image: Any, texts: Sequence[Sequence[str]], fontsize: float = 7) -> None:
    """Words in the cells of a heat map, dark on light colours and light on dark ones."""
    red, green, blue, _ = np.moveaxis(image.cmap(image.norm(image.get_array())), -1, 0)
    light = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
    masked = np.ma.getmaskarray(image.get_array())
    for row, words in enumerate(texts):
        for column, word in enumerate(words):
            if word:
                ink = "black" if masked[row, column] or light[row, column] else "white"
                axis.text(column, row, word, ha="center", va="center", fontsize=fontsize, color=ink)


def depth_axis(axis: Any, blocks: int) -> None:
    ticks(axis, "x", range(blocks), most=16)
    axis.set_xlim(-0.5, blocks - 0.5)
    axis.set_xlabel("block", fontsize=9)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)


def strips(tokens: Sequence[str], most: int) -> list[range]:
    """The first `most` tokens in rows that can be read."""
    count = min(len(tokens), most)
    return [range(start, min(start + STRIP, count)) for start in range(0, count, STRIP)]


def strip_width(parts: list[range]) -> int:
    return max(len(parts[0]), 12)  # a text of a few words is not blown up


def token_axis(axis: Any, tokens: Sequence[str], part: range, width: int) -> None:
    names = [label(tokens[place], 10) for place in part]
    axis.set_xticks(range(len(part)), names, rotation=90, fontsize=7.5)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.5, width - 0.5)


def shown_of(total: int, most: int) -> str:
    return f" The first {most} of {total} tokens are drawn; the table has all." if total > most else ""
