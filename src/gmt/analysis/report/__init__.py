"""`gmt report`: texts through a model, and one page that shows what its memory did with them."""

import importlib.resources
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gmt import plot
from gmt.analysis.pos import word_classes
from gmt.analysis.report.compare import compare_sections
from gmt.analysis.report.page import write_page
from gmt.analysis.report.sections import Reading, Section, sections
from gmt.analysis.trace import trace
from gmt.errors import GMTError
from gmt.hf.load import Loaded, open_model
from gmt.model.device import pick_device

Listener = Callable[[str, int, int], None]  # part, done, total
DEFAULT_TEXTS = ("narrative", "politics", "science")


@dataclass(frozen=True)
class ReportOptions:
    texts: tuple[str, ...] = ()  # NAME=FILE; none for our own
    compare: str | None = None
    blocks: int = 4
    tau: float | None = None
    device: str = "auto"


def report(model: str, out: Path, options: ReportOptions, tell: Listener = lambda *_: None) -> Path:
    """Writes index.html, figures/, tables/ and traces/ under `out`; returns the page."""
    if not plot.available():
        raise GMTError("a report needs matplotlib: pip install 'graph-memory-transformer[report]'")
    texts = read_texts(options.texts)
    device = pick_device(options.device)
    loaded = open_model(model, device, options.tau)
    for name in ("figures", "tables", "traces"):
        (out / name).mkdir(parents=True, exist_ok=True)
    reading = read(loaded, texts, out / "traces", tell)
    found = sections(reading, options.blocks, run_of(loaded))
    if options.compare is not None:
        other = read(open_model(options.compare, device, options.tau), texts, None, tell)
        found += compare_sections(reading, other)
    return write_page(out, reading, _with_views(found), tell)


def _with_views(found: list[Section]) -> list[Section]:
    return [section for section in found if any(group.views for group in section.groups)]


def read_texts(given: tuple[str, ...]) -> dict[str, str]:
    if not given:
        folder = importlib.resources.files("gmt.analysis") / "texts"
        return {name: (folder / f"{name}.txt").read_text(encoding="utf-8").strip() for name in DEFAULT_TEXTS}
    texts: dict[str, str] = {}
    for item in given:
        name, equals, path = item.partition("=")
        if not equals or not name or not path:
            raise GMTError(f"--text takes NAME=FILE, not {item!r}")
        if not all(c.isalnum() or c in "-_." for c in name):
            raise GMTError(f"the name {name!r} of a text may have letters, digits, '-', '_' and '.'")
        if name in texts:
            raise GMTError(f"there are two texts called {name!r}")
        try:
            texts[name] = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GMTError(f"the text {name!r} cannot be read from {path}: {error}") from None
        if not texts[name].strip():
            raise GMTError(f"the text {name!r} in {path} is empty: there is nothing to trace")
    return texts


def read(loaded: Loaded, texts: dict[str, str], keep: Path | None, tell: Listener) -> Reading:
    """Every text through the model; the traces kept where a folder is given."""
    traces, classes = [], {}
    for done, (name, text) in enumerate(texts.items()):
        tell("reading", done, len(texts))
        found = trace(loaded, text, name)
        traces.append(found)
        classes[name] = word_classes(text, found.facts["spans"])
        if keep is not None:
            found.save(keep / f"{name}.safetensors")
    tell("reading", len(texts), len(texts))
    return Reading(loaded, traces, classes)


def run_of(loaded: Loaded) -> Path | None:
    """The run that a checkpoint belongs to, if it has kept its record."""
    for folder in (Path(loaded.name), loaded.folder.parent.parent):
        if (folder / "metrics.jsonl").is_file():
            return folder
    return None
