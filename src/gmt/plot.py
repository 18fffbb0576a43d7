"""The one door to matplotlib, and one style for every figure: readable in print and by the colour-blind."""

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gmt.utils.io import partial_of

# Okabe and Ito's eight, told apart by people who see no red or no green; then their darker and lighter kin
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
POS_COLOURS = {
    "NOUN": "#0072B2", "PROPN": "#56B4E9", "VERB": "#D55E00", "AUX": "#E69F00", "ADJ": "#009E73", "ADV": "#66C2A5",
    "PRON": "#CC79A7", "DET": "#8C6BB1", "ADP": "#7F7F7F", "CCONJ": "#A6761D", "SCONJ": "#D4A76A", "PART": "#B15928",
    "NUM": "#1B7837", "INTJ": "#E7298A", "PUNCT": "#111111", "SYM": "#555555", "X": "#BBBBBB",
}  # fmt: skip
SEQUENTIAL = "cividis"  # from dark to light, for all eyes and for grey paper
DIVERGING = "PuOr"
STYLE: Any = {
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "image.cmap": SEQUENTIAL,
    "figure.facecolor": "white",
    "svg.fonttype": "none",  # words stay words
    "svg.hashsalt": "gmt",  # the same figure is the same file
}


def available() -> bool:
    return find_spec("matplotlib") is not None


def style() -> Any:
    """A context in which what is drawn has this style; other figures of the process keep theirs."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def subplots(rows: int = 1, cols: int = 1, width: float = 8.0, height: float = 5.0, **settings: Any) -> tuple[Any, Any]:
    """A figure and an array [rows, cols] of axes. No window, no global state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # a token of another script is not an event
    with style():
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, cols, squeeze=False, **settings)
    return figure, axes


def save(figure: Any, folder: Path, name: str) -> tuple[Path, Path]:
    """Write PNG and SVG. Each file appears when it is complete."""
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # shown as a box: the table has the word
        for path in paths:
            partial = partial_of(path)
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(partial, dpi=120, metadata=metadata, format=path.suffix[1:])
            partial.replace(path)
            figure.set_layout_engine("none")  # laid out once: the second file takes what the first found
    return paths
