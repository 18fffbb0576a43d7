"""`OUT.partial`: the files of a preparation that is not complete, and the note of what has been done.

The names of all files are fixed. Nothing else is replaced or removed.
"""

import json
import os
import stat
from dataclasses import dataclass, field
from math import floor
from pathlib import Path
from typing import Any

from gmt.data.manifest import BY_DOCUMENTS, SPLITS
from gmt.errors import DataError
from gmt.utils.io import partial_of

NOTE = "note.json"
UNFINISHED = {partial_of(Path(name)).name for name in (NOTE, "manifest.json")}
STREAMS = {f"{split}.{kind}" for split in SPLITS for kind in ("bin", "new")}
FILES = {NOTE, "manifest.json", "tokenizer.json", "tokenizer.tmp"} | STREAMS | UNFINISHED


@dataclass
class Note:
    """Where a run stands: all that has reached the disk."""

    fingerprint: Any = None
    found: int = -1  # documents in all sources; -1 while not counted
    encoder: list[str] = field(default_factory=list)
    next_document: int = 0
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    text_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    skipped: list[str] = field(default_factory=list)
    split: str = BY_DOCUMENTS

    @property
    def train_documents(self) -> int:
        """Documents that are encoded into train.bin. A single document goes there whole and is split by tokens."""
        return self.found if self.found < 2 else floor(0.95 * self.found)


def load_note(folder: Path) -> Note:
    """Read the note of a folder. It is empty if there is none, or if another version wrote it."""
    try:
        return Note(**json.loads((folder / NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Note()


def check_partial(folder: Path) -> None:
    """Refuse a folder that contains anything but the files of a preparation."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise DataError(f"{folder} is a file, and a folder is needed there: move it, or use another --out")
    names = {path.name for path in folder.iterdir()}
    # a run writes no links: one may lead to any file
    foreign = {name for name in names if name not in FILES or not stat.S_ISREG((folder / name).lstat().st_mode)}
    if not _is_note(folder / NOTE) and "manifest.json" not in names:
        foreign |= names - UNFINISHED
    if foreign:
        raise DataError(
            f"{folder} contains {min(foreign)}, which `gmt prepare` did not write: move it, or use another --out"
        )


def has_tokens(folder: Path) -> bool:
    return any((folder / name).exists() and (folder / name).stat().st_size for name in STREAMS)


def clear_partial(folder: Path) -> None:
    """Remove a folder that `check_partial` accepts."""
    if folder.is_dir():
        for name in [*sorted(FILES - {NOTE}), NOTE]:  # the note last: it shows whose files the others are
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _is_note(path: Path) -> bool:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(tree, dict) and {"fingerprint", "found", "next_document"} <= tree.keys()
