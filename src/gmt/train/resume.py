"""Where a run starts: rank 0 decides, and every rank checks that its own run folder agrees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gmt.checkpoint.format import identity, verify
from gmt.checkpoint.store import FOLDER, list_checkpoints, newest_usable, repair
from gmt.errors import GMTError
from gmt.train.lock import Lock
from gmt.train.metrics import RECORD, has_record, last_step
from gmt.train.parallel import Parallel


class Start(NamedTuple):
    """The checkpoint to continue from; without a name, the run starts at step 1."""

    step: int = 0
    name: str = ""
    manifest: str = ""


def agree_on_start(
    parallel: Parallel, out: Path, lock: Lock, resume: bool, tell: Callable[[str, dict[str, Any]], None]
) -> Path | None:
    """The checkpoint that all ranks continue from, or None. Ranks that disagree all raise the same error."""
    start, problem = Start(), ""
    if parallel.main:
        try:
            start = _decide(out, lock, resume, tell)
        except (GMTError, OSError) as error:
            problem = str(error)
    start, problem = parallel.broadcast((start, problem))
    if problem:
        raise GMTError(problem)
    if not parallel.main:
        try:
            problem = _disagreement(out, start)
        except OSError as error:
            problem = str(error)
    parallel.raise_together(problem, "the ranks cannot start together: ")
    return out / FOLDER / start.name if start.name else None


def _decide(out: Path, lock: Lock, resume: bool, tell: Callable[[str, dict[str, Any]], None]) -> Start:
    if not list_checkpoints(out):
        if has_record(out):
            recorded = last_step(out / RECORD)
            steps = f"the record of {recorded} steps" if recorded else "a record"
            raise GMTError(
                f"{out} has {steps} in {RECORD} but no checkpoint to resume from; restore a checkpoint, delete the "
                "folder to start at step 1, or choose another --out"
            )
        if resume:
            tell("fresh", {"path": str(out)})
        return Start()
    if not resume:
        raise GMTError(f"{out} already contains a run; add --resume to continue it, or choose another --out")
    lock.take()  # before the choice: another process may be about to write the newest checkpoint
    usable, damaged = newest_usable(out)
    if usable is None:
        raise GMTError(
            f"{out} cannot be resumed: no checkpoint is usable, and nothing was changed\n  "
            + "\n  ".join(map(str, damaged))
        )
    if damaged:
        tell("damaged", {"reasons": [str(one) for one in damaged], "step": usable.step})
    manifest = identity(usable.path)
    repair(out)  # an old checkpoint gets its name back
    name = next(c.path.name for c in list_checkpoints(out) if c.step == usable.step)
    return Start(usable.step, name, manifest)


def _disagreement(out: Path, start: Start) -> str:
    """How this rank's run folder differs from the decision of rank 0; empty if it does not."""
    if not start.name:
        mine = list_checkpoints(out)
        return f"{out} has a checkpoint of step {mine[0].step}, the folder of rank 0 has none" if mine else ""
    path = out / FOLDER / start.name
    if not path.is_dir():
        return f"{path} does not exist; rank 0 resumes from it"
    if identity(path) != start.manifest:
        return f"{path} differs from the checkpoint of rank 0 (another {FOLDER} folder?)"
    reason = verify(path)
    return f"{path}: {reason}" if reason else ""
