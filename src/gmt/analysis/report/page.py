"""The page: pictures inside it, tables beside it as CSV, nothing fetched from anywhere."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from gmt import __version__, plot
from gmt.analysis.report.sections import Reading, Section
from gmt.analysis.view import View
from gmt.utils.io import write_atomic
from gmt.utils.outputs import OutputFolder

# the terms of the page that are not the field's, each with its meaning
WORDS = {
    "slot": "one of the vectors of a block's memory",
    "source, target": "the slots that a token is matched to and goes to; both are distributions over slots",
    "move": "from the most likely source to the most likely target of a token",
    "displacement, update": "the vector that the memory adds to the residual stream",
    "update to attention": "length of the update divided by the length of what attention adds, mean over tokens",
    "shift norm": "length of target minus source before the normalisation and the gate",
    "N_eff": "effective number of slots: exp of the entropy of the mean source distribution",
    "hard N_eff": "the same with each token counted in its most likely slot",
    "coverage": "share of slots that are the most likely source (or target) of some token",
    "dead slots": "slots whose running usage is below the threshold of maintenance",
    "edge entropy": "entropy of a row of the transition matrix, mean over rows",
    "Gini": "0 if slots are used equally, near 1 if one slot takes all tokens",
}
MOST_ROWS = 400  # of a table on the page; the rest is in its CSV


@dataclass(frozen=True)
class Shown:
    """A view as the page has it."""

    view: View
    picture: str | None  # a data address
    header: list[str]
    rows: list[list[str]]

    @property
    def left_out(self) -> int:
        return len(self.view.rows) - len(self.rows)


def write_page(
    out: OutputFolder,
    reading: Reading,
    sections: list[Section],
    tell: Callable[[str, int, int], None],
    introduction: str = "",
) -> Path:
    views = [view for section in sections for group in section.groups for view in group.views]
    assert len({view.name for view in views}) == len(views), "two views have one name"
    out.reserve("index.html", *(name for view in views for name in _files(view)))
    shown = {}
    for view in views:
        shown[view.name] = _show(view, out.path)
        tell("drawing", len(shown), len(views))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((files("gmt.analysis.report") / "page.html").read_text(encoding="utf-8"))
    title = "What the memory does" if reading.has_memory else "What the model does"
    page = template.render(
        sections=sections,
        shown=shown,
        facts=_facts(reading),
        title=title,
        version=__version__,
        introduction=introduction,
        words=WORDS if reading.has_memory else {},
    )
    path = out.path / "index.html"
    write_atomic(path, page)
    return path


def _files(view: View) -> list[str]:
    figures = [] if view.draw is None else [f"figures/{view.name}.{kind}" for kind in ("png", "svg")]
    return [f"tables/{view.name}.csv", *figures]


def _show(view: View, out: Path) -> Shown:
    view.write_table(out / "tables")
    picture = None
    if view.draw is not None:
        with plot.style():
            figure = view.draw()
        drawn, _ = plot.save(figure, out / "figures", view.name)
        picture = "data:image/png;base64," + base64.b64encode(drawn.read_bytes()).decode()
    rows = view.rows[:MOST_ROWS] if picture is None else []
    return Shown(view, picture, list(view.header), [[_cell(cell) for cell in row] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.3g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _facts(reading: Reading) -> list[tuple[str, str]]:
    loaded, lm = reading.loaded, reading.loaded.lm
    shape = lm.cfg.model
    second = {"memory": f"memory of {lm.cfg.memory.slots} slots", "dense": f"dense layer of width {shape.dense_width}"}
    found = {
        "model": loaded.name,
        "parameters": f"{sum(p.numel() for p in lm.parameters()):,}",
        "shape": f"{shape.blocks} blocks, hidden size {shape.hidden}, context {shape.context}",
        "second sublayer": second.get(shape.sublayer, "none"),
        "step": "unknown" if loaded.step is None else f"{loaded.step:,}",
        "validation loss": "not measured: add --data",
        "temperature τ": f"{float(lm.tau):.3g}",
        "weights (SHA-256)": loaded.sha256[:16],
    }
    if reading.validation is not None:
        found["validation loss"] = (
            f"{reading.validation.loss:.4f} nats (frozen memory, {reading.validation_windows} windows)"
        )
    if not reading.has_memory:
        found["note"] = "this model has no memory: the sections about memory are left out"
    return list(found.items())
