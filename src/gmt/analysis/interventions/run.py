"""`gmt intervene`, top to bottom: which conditions, their records, the table and the figure."""

from dataclasses import dataclass, replace
from pathlib import Path

from gmt import plot
from gmt.analysis.interventions import controls, verdict
from gmt.analysis.interventions.apply import check, from_json
from gmt.analysis.interventions.controls import Condition, ControlOptions, Listener
from gmt.errors import GMTError
from gmt.evaluate.run import EvalOptions
from gmt.hf.load import Loaded, open_model
from gmt.model.device import auto_precision, pick_device
from gmt.utils.io import write_atomic
from gmt.utils.outputs import OutputFolder, has_mark

MOST_WINDOWS = 128
RESULTS = "results.jsonl"
# names, and a text by which those of version 0.1.0 are recognised: it kept no list of its files
TABLES = {"table.md": "| what | blocks | loss |", "controls.csv": "what,blocks,loss,"}
FIGURES = {"controls.png": "Matplotlib", "controls.svg": "Matplotlib"}


@dataclass(frozen=True)
class Options:
    data: Path
    windows: int | None = None  # as many as the model's run validates on, at most MOST_WINDOWS
    alphas: tuple[float, ...] = controls.ALPHAS
    each_block: bool = True
    scan: str | None = None
    block: int = 0
    count: int = 64
    edits: Path | None = None
    tasks: tuple[str, ...] = ()
    task_data: Path | None = None
    limit: int | None = None
    seed: int = 0
    tau: float | None = None
    device: str = "auto"
    force: bool = False  # add the results to a folder that contains other files


def run(model: str, out: Path, options: Options, tell: Listener = lambda *_: None) -> str:
    """Write results.jsonl, table.md, controls.csv and the figure into `out`; return the table without single blocks."""
    if options.scan is not None and options.edits is not None:
        raise GMTError("--scan and --edits cannot be combined")
    output = results_folder(out, options.force)
    device = pick_device(options.device)
    loaded = open_model(model, device, options.tau)
    conditions = _conditions(loaded, options)
    precision = auto_precision(device)
    tasks = EvalOptions(tasks=options.tasks, task_data=options.task_data, limit=options.limit, precision=precision)
    measured = ControlOptions(options.data, options.windows or default_windows(loaded), precision, tasks)
    # before the work, so that a foreign file is found at once
    output.reserve(RESULTS, *TABLES, *(FIGURES if plot.available() else ()))
    records = controls.measure(loaded, conditions, measured, out / RESULTS, tell)
    view = verdict.table(records, ranked=options.scan is not None)
    told = verdict.markdown(view)
    write_atomic(out / "table.md", told + "\n")
    view.write_table(out)
    if plot.available() and view.draw is not None:
        with plot.style():
            figure = view.draw()
        plot.save(figure, out, view.name)
    output.finish()
    if options.scan is not None or options.edits is not None:
        return told
    whole = replace(view, rows=[row for row in view.rows if row[1] == "all"])
    return f"{verdict.markdown(whole)}\n\n{out / 'table.md'} lists all {len(view.rows)} conditions, block by block."


def results_folder(out: Path, force: bool = False) -> OutputFolder:
    """Open a folder of `gmt intervene`. One of version 0.1.0 is recognised by its records."""
    before = controls.has_records(out / RESULTS)
    marks = TABLES | FIGURES

    def earlier(name: str) -> bool:
        return before and (name == RESULTS or (name in marks and has_mark(out / name, marks[name])))

    return OutputFolder(out, "intervene", force=force or before, earlier=earlier)


def default_windows(loaded: Loaded) -> int:
    """The windows of the run's own validations, so that the losses agree; capped, since every condition reads them."""
    return min(loaded.validation_windows, MOST_WINDOWS)


def _conditions(loaded: Loaded, options: Options) -> list[Condition]:
    blocks = len(loaded.lm.cells)
    if not blocks:
        raise GMTError(f"{loaded.name} has no memory, and so nothing to intervene in")
    if options.edits is not None:
        edits = from_json(controls.read_edits(options.edits))
        check(loaded.lm, edits)
        alone = [Condition("yours", _named(edit.to_json()), edit.block, (edit,)) for edit in edits]
        return [*alone, Condition("yours", "all of them", None, tuple(edits))] if len(edits) > 1 else alone
    if options.scan is None:
        return controls.controls(blocks, each=options.each_block, alphas=options.alphas, seed=options.seed)
    if options.block >= blocks:
        raise GMTError(f"there is no block {options.block}; there are 0 to {blocks - 1}")
    if options.scan == "edges":
        return controls.edge_scan(loaded, options.block, options.count)
    slots = loaded.lm.cfg.memory.slots
    return [c for role in ("source", "target") for c in controls.slot_scan(options.block, slots, role)]


def _named(edit: dict[str, object]) -> str:
    values = ", ".join(f"{key} {value}" for key, value in edit.items() if key not in ("kind", "block"))
    return f"{edit['kind']} ({values})" if values else str(edit["kind"])
