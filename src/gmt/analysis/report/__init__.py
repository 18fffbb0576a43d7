"""`gmt report`: texts through a model, and one page that shows what its memory did with them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gmt import plot
from gmt.analysis.interventions.run import default_windows
from gmt.analysis.pos import word_classes
from gmt.analysis.report.compare import compare_sections
from gmt.analysis.report.earlier import earlier_report
from gmt.analysis.report.page import write_page
from gmt.analysis.report.sections import Reading, Section, by_depth, sections
from gmt.analysis.texts import default_texts
from gmt.analysis.trace import trace
from gmt.errors import GMTError
from gmt.evaluate.run import validation_loss
from gmt.hf.load import Loaded, open_model
from gmt.model.device import pick_device
from gmt.utils.io import partial_of
from gmt.utils.outputs import OutputFolder

Listener = Callable[[str, int, int], None]  # part, done, total


@dataclass(frozen=True)
class ReportOptions:
    texts: tuple[str, ...] = ()  # NAME=FILE; by default validation text of the model and a general text
    compare: str | None = None
    blocks: str = "4"  # how many, or which, with commas
    tau: float | None = None
    device: str = "auto"
    data: Path | None = None  # by default the folder that the run was trained on
    force: bool = False  # add the report to a folder that contains other files
    introduction: str = ""  # preformatted text above the first section


def report(model: str, out: Path, options: ReportOptions, tell: Listener = lambda *_: None) -> Path:
    """Write index.html, figures/, tables/ and traces/ into `out` and return the page."""
    if not plot.available():
        raise GMTError("a report needs matplotlib: pip install 'graph-memory-transformer[report]'")
    given = read_texts(options.texts)
    output = OutputFolder(out, "report", force=options.force, earlier=earlier_report(out))
    device = pick_device(options.device)
    loaded = open_model(model, device, options.tau)
    second = None if options.compare is None else open_model(options.compare, device, options.tau)
    chosen = choose_blocks(len(loaded.lm.blocks), options.blocks)
    output.reserve("index.html")  # so that a foreign page is an error before the texts are read
    data = options.data or loaded.data_folder()
    windows = default_windows(loaded)
    texts = given or default_texts(loaded, data, windows)
    validation = None if data is None else validation_loss(loaded, data, windows, tell)
    reading = replace(read(loaded, texts, output, tell), validation=validation)
    found = sections(reading, chosen, run_of(loaded))
    if second is not None:
        found += compare_sections(reading, read(second, texts, output, tell, "traces/compared"))
    page = write_page(output, reading, _with_views(found), tell, options.introduction)
    output.finish()
    return page


def choose_blocks(total: int, wanted: str) -> list[int]:
    """So many blocks, spread over the depth; or those that are named."""
    parts = [part.strip() for part in wanted.split(",")]
    if not all(part.isdigit() for part in parts) or parts == ["0"]:
        raise GMTError(f"--blocks takes a number of blocks, or the blocks themselves with commas, not {wanted!r}")
    if len(parts) == 1:
        return by_depth(total, int(parts[0]))
    if wrong := [part for part in parts if int(part) >= total]:
        raise GMTError(f"there is no block {wrong[0]}; there are 0 to {total - 1}")
    return sorted({int(part) for part in parts})


def _with_views(found: list[Section]) -> list[Section]:
    return [section for section in found if any(group.views for group in section.groups)]


def read_texts(given: tuple[str, ...]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for item in given:
        name, equals, path = item.partition("=")
        if not equals or not name or not path:
            raise GMTError(f"--text takes NAME=FILE, not {item!r}")
        if not all(c.isascii() and (c.isalnum() or c == "-") for c in name):
            raise GMTError(f"the name {name!r} of a text may have letters, digits and '-'")
        if name.lower() in (other.lower() for other in texts):
            raise GMTError(f"there are two texts called {name!r}")
        try:
            with Path(path).open(encoding="utf-8-sig", newline="") as file:  # as it stands, line ends and all
                texts[name] = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise GMTError(f"the text {name!r} cannot be read from {path}: {error}") from None
        if not texts[name].strip():
            raise GMTError(f"the text {name!r} in {path} is empty: there is nothing to trace")
    return texts


def read(
    loaded: Loaded, texts: dict[str, str], output: OutputFolder | None, tell: Listener, folder: str = "traces"
) -> Reading:
    """Run the model on every text. With `output`, the traces are saved in `folder` there."""
    traces, classes = [], {}
    if output is not None:
        output.reserve(*(f"{folder}/{name}.safetensors" for name in texts))
    for done, (name, text) in enumerate(texts.items()):
        tell("reading", done, len(texts))
        found = trace(loaded, text, name)
        traces.append(found)
        classes[name] = word_classes(text, found.facts["spans"])
        if output is not None:
            path = output.path / folder / f"{name}.safetensors"
            found.save(partial_of(path))
            partial_of(path).replace(path)
    tell("reading", len(texts), len(texts))
    return Reading(loaded, traces, classes)


def run_of(loaded: Loaded) -> Path | None:
    """The run that a checkpoint belongs to, if it has kept its record."""
    for folder in (Path(loaded.name), loaded.folder.parent.parent):
        if (folder / "metrics.jsonl").is_file():
            return folder
    return None
