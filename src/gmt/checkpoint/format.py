"""A checkpoint on disk: a directory with a manifest of hashes, complete or absent.

The directory is also a Hugging Face model directory. No file in it is a pickle.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gmt.errors import GMTError
from gmt.utils.io import sha256_of, sync_folder, write_synced

MANIFEST, PROGRESS = "MANIFEST.json", "progress.json"
FORMAT = 1


@dataclass
class Progress:
    """The state of a run beside its tensors."""

    step: int  # completed optimizer steps
    config: dict[str, Any]
    data: str  # hash of the data set
    best: dict[str, Any] | None = None  # step and loss of the lowest validation loss
    validation_pending: bool = False  # the validation due at this step was interrupted
    memory: str = ""  # hash of the memory, equal on all ranks
    data_folder: str = ""  # the prepared folder, relative to the run's
    format: int = FORMAT


def read_progress(path: Path) -> Progress:
    stored = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
    unknown = stored.keys() - {field.name for field in fields(Progress)}
    if unknown:
        raise GMTError(f"{path / PROGRESS} has unknown fields ({', '.join(sorted(unknown))}): use the newer gmt")
    return Progress(**stored)


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def old_name(name: str) -> str:
    """A checkpoint that is being replaced by one of the same step, between two renames."""
    return f".{name}.old"


def partial_name(name: str) -> str:
    """A checkpoint that is being written."""
    return f".{name}.partial"


def removed_name(name: str) -> str:
    """A checkpoint that is being removed."""
    return f".{name}.removed"


def write_checkpoint(target: Path, files: Mapping[str, Callable[[], bytes]]) -> None:
    """Write all files beside `target`, then rename. At every moment the old or the new checkpoint is complete."""
    partial = target.with_name(partial_name(target.name))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    hashes = {}
    for name, content in files.items():
        data = content()
        hashes[name] = hashlib.sha256(data).hexdigest()
        write_synced(partial / name, data)
    write_synced(partial / MANIFEST, json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode())
    sync_folder(partial)
    old = target.with_name(old_name(target.name))
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    partial.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_checkpoint(path: Path) -> None:
    """Rename first: a process killed in between leaves no checkpoint with missing files."""
    removed = path.with_name(removed_name(path.name))
    remove_tree(removed)
    path.rename(removed)
    remove_tree(removed)


def remove_tree(path: Path) -> None:
    """Remove a folder, or the link to it. What cannot be removed stays: it has a name that no reader uses."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def verify(path: Path) -> str | None:
    """The reason why a checkpoint cannot be used, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"is of format {manifest['format']}; this version reads format {FORMAT}"
        expected = manifest["sha256"].items()
    except OSError:
        return f"has no {MANIFEST}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    if not expected:
        return f"{MANIFEST} lists no files"
    for name, wanted in expected:
        try:
            found = sha256_of(path / name)
        except OSError:
            return f"{name} is missing"
        if found != wanted:
            return f"{name} is damaged (its hash differs from the manifest)"
    return None


def identity(path: Path) -> str:
    """The hash of the manifest, which names the hash of every file; empty without a manifest."""
    try:
        return sha256_of(path / MANIFEST)
    except OSError:
        return ""
