"""The checkpoints of a run: search and selection without side effects, and repair by the process that trains."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gmt.checkpoint.format import (
    MANIFEST,
    PROGRESS,
    checkpoint_name,
    identity,
    old_name,
    partial_name,
    remove_checkpoint,
    remove_tree,
    removed_name,
    verify,
)
from gmt.errors import GMTError

FOLDER = "checkpoints"
ATTEMPTS, PAUSE = 40, 0.05  # of a reader that meets a checkpoint while it is being replaced
T = TypeVar("T")


class Checkpoint(NamedTuple):
    step: int
    path: Path


class Damaged(NamedTuple):
    step: int
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path.name}: {self.reason}"


def list_checkpoints(run: Path) -> list[Checkpoint]:
    """Newest first. A checkpoint that exists only under its old name is complete: its writer is between two renames."""
    root = run / FOLDER
    found: dict[int, Path] = {}
    # the names are listed twice: a rename between two listings must not hide a step
    for pattern in ("step-*", old_name("step-*"), "step-*"):
        for path in root.glob(pattern):
            digits = path.name.removeprefix(".").removeprefix("step-").removesuffix(".old")
            if digits.isdigit() and path.is_dir() and (path.name[0] != "." or int(digits) not in found):
                found[int(digits)] = path
    return [Checkpoint(step, found[step]) for step in sorted(found, reverse=True)]


def newest_usable(run: Path) -> tuple[Checkpoint | None, list[Damaged]]:
    """The newest checkpoint that is complete, and the newer ones that are not."""
    damaged = []
    for step, path in list_checkpoints(run):
        reason = verify(path)
        if reason is None:
            return Checkpoint(step, path), damaged
        damaged.append(Damaged(step, path, reason))
    return None, damaged


def select(run: Path, step: int | None = None) -> Path:
    """The checkpoint that a reading command uses: the one of `step`, else the best that is kept, else the newest.

    A damaged one is an error that names the steps that work. It is never replaced by another without a message.
    """
    found = {c.step: c.path for c in list_checkpoints(run)}
    if step is not None and step not in found:
        kept = ", ".join(map(str, sorted(found))) or "no step"
        raise GMTError(f"{run} has no checkpoint of step {step}; it has those of {kept}")
    if not found:
        raise GMTError(f"{run} has no checkpoint yet")
    if step is not None:
        return _complete(run, Checkpoint(step, found[step]))
    newest = Checkpoint(max(found), _complete(run, Checkpoint(max(found), found[max(found)])))
    progress = json.loads((newest.path / PROGRESS).read_text(encoding="utf-8"))
    best = (progress.get("best") or {}).get("step")
    if best is None or best == newest.step or best not in found:
        return newest.path
    return _complete(run, Checkpoint(best, found[best]))


def _complete(run: Path, chosen: Checkpoint) -> Path:
    reason = verify(chosen.path)
    if reason is None:
        return chosen.path
    others = [f"{run}@{c.step}" for c in list_checkpoints(run) if c.step != chosen.step and verify(c.path) is None]
    instead = f"use {' or '.join(others)}" if others else "no other checkpoint of the run is complete"
    raise GMTError(f"the checkpoint of step {chosen.step} of {run} cannot be used: {reason}; {instead}")


def read_complete(root: Path, choose: Callable[[], Path], read: Callable[[Path], T]) -> T:
    """`read(choose())` while a training process may replace or remove checkpoints.

    The manifests below `root` are compared before and after. Where they changed, what was read may be a mixture of two
    checkpoints, and an error may be due to the change: choose and read again.
    """
    for attempt in range(ATTEMPTS):
        before = _manifests(root)
        try:
            path = choose()
            chosen = _state(path)
            result = read(path)
        except (GMTError, OSError):
            if attempt + 1 == ATTEMPTS or _manifests(root) == before:
                raise
        else:
            if _state(path) == chosen:
                return result
        time.sleep(PAUSE)
    raise GMTError(f"{root} is being rewritten too fast to be read; try again")


def _manifests(root: Path) -> list[tuple[Path, Any]]:
    """What a reader of `root`, a run or a single model directory, depends on."""
    paths = [root, *(checkpoint.path for checkpoint in list_checkpoints(root))]
    return [(path, _state(path)) for path in paths]


def _state(path: Path) -> Any:
    """Changes when a checkpoint is replaced, also by one of the same content."""
    try:
        stat = (path / MANIFEST).stat()
        return identity(path), stat.st_ino, stat.st_mtime_ns
    except OSError:
        return None


# --- only for the process that trains in this folder ---


def repair(run: Path) -> None:
    """Finish what a killed process left: put an old checkpoint back, remove incomplete ones."""
    root = run / FOLDER
    for old in root.glob(old_name("step-*")):
        target = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if target.exists():
            remove_tree(old)
        else:
            old.rename(target)
    for name in (partial_name("step-*"), removed_name("step-*")):
        for path in root.glob(name):
            remove_tree(path)


def retain(run: Path, keep: int, newest: int, best: int | None) -> None:
    """Remove checkpoints that are neither among the `keep` newest nor the best.

    Those of a higher step than `newest` are damaged ones that a resume did not use: they do not count.
    """
    for step, path in [c for c in list_checkpoints(run) if c.step <= newest][keep:]:
        if step != best and path.name == checkpoint_name(step):
            remove_checkpoint(path)
