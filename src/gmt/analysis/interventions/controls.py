"""`gmt intervene`: what becomes of the validation loss when the graph, the movement or a single slot is taken away.

Every condition reads the same windows, so that a change is measured window by window. What is measured is appended to
results.jsonl, and what stands there already is not measured again.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gmt.analysis.interventions.apply import check, intervene
from gmt.analysis.interventions.edges import Edges, SetEdge
from gmt.analysis.interventions.edit import Edit
from gmt.analysis.interventions.edits import Ablate, RandomCentroids, Scale, ShuffleCentroids
from gmt.data.batches import Stream, ValidationBatches
from gmt.data.tokenizer import load_tokenizer
from gmt.errors import GMTError
from gmt.evaluate.run import EvalOptions, check_options, run_one, same_vocabulary
from gmt.evaluate.validation import validate
from gmt.hf.load import Loaded
from gmt.model.device import autocast
from gmt.utils.io import append_json_line, key_of, read_json_lines
from gmt.utils.stats import Interval, interval

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
Listener = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Condition:
    """One line of the table."""

    group: str  # edges, centroids, alpha, slot, edge, yours
    name: str
    block: int | None  # None for all blocks
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class ControlOptions:
    data: Path
    windows: int
    precision: str = "fp32"
    tasks: EvalOptions = field(default_factory=EvalOptions)


@dataclass
class Record:
    """What one condition did."""

    group: str
    name: str
    block: int | None
    key: str
    losses: list[float]  # of each window
    fired: list[int]
    tasks: dict[str, dict[str, float]]  # task -> metric -> value

    @property
    def loss(self) -> float:
        return float(np.mean(self.losses))

    def change(self, baseline: "Record") -> Interval:
        return interval([mine - theirs for mine, theirs in zip(self.losses, baseline.losses, strict=True)])


def controls(blocks: int, *, each: bool = True, alphas: Iterable[float] = ALPHAS, seed: int = 0) -> list[Condition]:
    """The paper's proposed controls: P as learned, or put aside in four ways; centroids exchanged or random; the
    displacement scaled; in all blocks, and P and the scale in each alone."""
    places: list[int | None] = [None, *(range(blocks) if each else [])]
    found = [Condition("edges", "learned", None, ())]
    for block in places:
        for form in Edges.FORMS[1:]:
            found.append(Condition("edges", form, block, (Edges(block, form=form, seed=seed),)))
    found.append(Condition("centroids", "centroids shuffled", None, (ShuffleCentroids(seed=seed),)))
    found.append(Condition("centroids", "centroids random", None, (RandomCentroids(seed=seed),)))
    for block in places:
        for alpha in alphas:
            if alpha != 1 or block is None:
                found.append(Condition("alpha", f"α = {alpha:g}", block, (Scale(block, alpha=alpha),)))
    return found


def slot_scan(block: int, slots: int, role: str = "target") -> list[Condition]:
    """Each slot of a block silenced alone."""
    return [Condition("slot", f"without {role} {s}", block, (Ablate(block, slot=s, role=role),)) for s in range(slots)]


@torch.no_grad()
def edge_scan(loaded: Loaded, block: int, count: int) -> list[Condition]:
    """The heaviest edges of a block, each cut alone."""
    transition = loaded.lm.cells[block].tables(torch.float32).transition
    most = len(transition) * (len(transition) - 1)  # a slot has no edge to itself
    heaviest = transition.fill_diagonal_(-1).flatten().argsort(descending=True)[: min(count, most)].tolist()
    pairs = [divmod(place, len(transition)) for place in heaviest]
    return [Condition("edge", f"without {i} → {j}", block, (SetEdge(block, source=i, target=j),)) for i, j in pairs]


def measure(
    loaded: Loaded, conditions: list[Condition], options: ControlOptions, out: Path, tell: Listener = lambda *_: None
) -> list[Record]:
    """Each condition's record, the unedited model's first."""
    if not loaded.lm.cells:
        raise GMTError(f"{loaded.name} has no memory, and so nothing to intervene in")
    stream = Stream(options.data, "val")
    same_vocabulary(
        loaded, load_tokenizer(str(options.data / "tokenizer.json")), stream.manifest.tokenizer["vocab"], options.data
    )
    if options.tasks.tasks:
        check_options(options.tasks)
    for condition in conditions:  # before hours of work, not after
        check(loaded.lm, condition.edits)
    batches = ValidationBatches(stream, loaded.lm.cfg.model.context, 1, options.windows)
    if len(batches) < 2:
        raise GMTError(f"{options.data} has 1 validation window; at least 2 are needed for an interval")
    known = _known(out)
    found = []
    for number, condition in enumerate([Condition("edges", "learned", None, ()), *conditions]):
        if number and condition.name == "learned":
            continue
        key = _key(loaded, options, stream.manifest.digest(), len(batches), condition)
        if key not in known:
            known[key] = _one(loaded, condition, key, batches, options)
            append_json_line(out, asdict(known[key]))
        found.append(known[key])
        tell("conditions", number + 1, len(conditions) + 1)
    return found


def _one(
    loaded: Loaded, condition: Condition, key: str, batches: ValidationBatches, options: ControlOptions
) -> Record:  # fmt: skip
    lm = loaded.lm
    # all conditions take the plain way through every block: small effects must not be differences of rounding
    with intervene(lm, condition.edits, plainly=True) as fired:
        found = validate(lm, batches, "frozen", autocast=autocast(lm.tau.device, options.precision))
        assert found is not None  # nobody interrupts it
        idle = all(edit.does_nothing() for edit in condition.edits)
        counts = [] if idle else fired.counts
        tasks: dict[str, dict[str, float]] = {}
        for task in options.tasks.tasks or ():
            for name, result in run_one(loaded, task, options.tasks).items():
                tasks[name] = {metric: value.value for metric, value in result.metrics.items()}
    return Record(condition.group, condition.name, condition.block, key, list(found.losses), counts, tasks)


def _key(loaded: Loaded, options: ControlOptions, data: str, windows: int, condition: Condition) -> str:
    """All that a record depends on."""
    tasks = options.tasks
    parts = [
        loaded.sha256, float(loaded.lm.tau), data, windows, options.precision, condition.group, condition.name,
        [edit.to_json() for edit in condition.edits], tasks.tasks, tasks.limit, tasks.shots, str(tasks.task_data),
    ]  # fmt: skip
    return key_of(*parts)


def _known(path: Path) -> dict[str, Record]:
    return {record.key: record for record in _lines(path)}


def _lines(path: Path) -> Iterator[Record]:
    for line in read_json_lines(path):
        with contextlib.suppress(TypeError):  # a line of another kind
            yield Record(**line)


def has_records(path: Path) -> bool:
    """Return whether `measure` wrote a file. A killed run may have left incomplete lines in it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return any(_lines(path)) and all(line.startswith('{"group": "'[: len(line)]) for line in lines)
    except (OSError, UnicodeDecodeError):
        return False


def read_edits(path: Path) -> list[Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GMTError(f"{path} cannot be read as a list of edits: {error}") from None
