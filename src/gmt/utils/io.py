"""Files that are complete or absent, and hashes of their content."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, TypeVar

AnyPath = TypeVar("AnyPath", bound=PurePath)


def partial_of(path: AnyPath) -> AnyPath:
    """Return the name under which a file is written before it is renamed to `path`."""
    return path.with_name(f".{path.name}.partial")


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace `path` in one rename. A reader sees the old content or the new content; a crash leaves one of them."""
    partial = partial_of(path)
    write_synced(partial, content.encode() if isinstance(content, str) else content)
    partial.replace(path)


def write_json(path: Path, tree: Any) -> None:
    write_atomic(path, json.dumps(tree, indent=2, ensure_ascii=False) + "\n")


def write_synced(path: Path, content: bytes) -> None:
    """Write and flush to the disk. Not atomic: for files whose folder is renamed afterwards."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush the names in a folder, so that a rename survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path, seen: Callable[[int], None] = lambda n: None) -> str:
    """The hash of a file. `seen` is called with the size of each block, for progress."""
    state = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            state.update(block)
            seen(len(block))
    return state.hexdigest()


def key_of(*parts: Any) -> str:
    """A name for everything that a result depends on: the same parts give the same key."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:32]


def read_json_lines(path: Path) -> list[Any]:
    """Complete lines only: a killed process may have left part of one. Empty where there is no file."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def append_json_line(path: Path, tree: Any) -> None:
    """A partial last line is ended first, so that it does not damage this one."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            partial = file.read(1) != b"\n"
            file.seek(0, os.SEEK_END)
            file.write(b"\n" * partial)
        file.write((json.dumps(tree) + "\n").encode())
