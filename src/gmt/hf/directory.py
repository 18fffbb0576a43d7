"""Finding a model on the disk: a model directory, or the checkpoints of a run, each of which is one."""

import hashlib
import json
from pathlib import Path

MANIFEST = "MANIFEST.json"  # the hash of every file of a checkpoint
FORMAT = 1


def all_checkpoints(root: Path) -> list[Path]:
    """Newest first."""
    return sorted((p for p in root.glob("step-*") if p.is_dir()), reverse=True) if root.is_dir() else []


def find_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and why newer ones were passed over."""
    for old in (run / "checkpoints").glob(".step-*.old"):  # killed between two renames: the old one is still good
        target = old.with_name(old.name[1 : -len(".old")])
        if not target.exists():
            old.rename(target)
    passed = []
    for path in all_checkpoints(run / "checkpoints"):
        reason = broken(path)
        if reason is None:
            return path, passed
        passed.append(f"{path.name}: {reason}")
    return None, passed


def broken(path: Path) -> str | None:
    """Why a checkpoint cannot be used, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"is of format {manifest['format']}; this version reads format {FORMAT}"
        expected = manifest["sha256"].items()
    except OSError:
        return f"has no {MANIFEST}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} cannot be read"
    for name, wanted in expected:
        try:
            with (path / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return f"{name} is missing"
        if found != wanted:
            return f"{name} is damaged: its hash is not the manifest's"
    return None


def best_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The whole checkpoint with the lowest validation loss, else the newest, and why others were passed over."""
    newest, passed = find_checkpoint(run)
    if newest is None:
        return None, passed
    best = json.loads((newest / "progress.json").read_text(encoding="utf-8")).get("best")
    path = run / "checkpoints" / f"step-{best['step']:08d}" if best else newest
    if path == newest or not path.is_dir():
        return newest, passed
    reason = broken(path)
    return (newest, [*passed, f"{path.name}: {reason}"]) if reason else (path, passed)
