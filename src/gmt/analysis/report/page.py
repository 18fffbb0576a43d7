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
    out: Path, reading: Reading, sections: list[Section], tell: Callable[[str, int, int], None]
) -> Path:  # fmt: skip
    total = sum(len(group.views) for section in sections for group in section.groups)
    done, shown = 0, {}
    for section in sections:
        for group in section.groups:
            for view in group.views:
                shown[view.name] = _show(view, out)
                done += 1
                tell("drawing", done, total)
    assert len(shown) == total, "two views have one name"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((files("gmt.analysis.report") / "page.html").read_text(encoding="utf-8"))
    title = "What the memory does" if reading.has_memory else "What the model does"
    page = template.render(sections=sections, shown=shown, facts=_facts(reading), title=title, version=__version__)
    path, aside = out / "index.html", out / ".index.html"
    aside.write_text(page, encoding="utf-8")
    aside.replace(path)
    return path


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
