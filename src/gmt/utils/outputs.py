"""Folders and files that commands write. A command replaces and removes only what it wrote."""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from gmt.errors import GMTError
from gmt.utils.io import partial_of, write_json

LIST = ".gmt-files.json"
PARTIAL_LIST = partial_of(PurePosixPath(LIST)).name
FORMAT = 1
MOST_READ = 1 << 20  # bytes in which `has_mark` searches


class Owned(NamedTuple):
    """What one command made in a folder, as paths relative to it."""

    files: set[str]
    folders: set[str]


class OutputFolder:
    """The files of one command in one folder.

    `.gmt-files.json` lists the files and folders that each command made there. A file is listed before it is created,
    so a killed command leaves no file that is not listed. All other files are foreign: they are never replaced or
    removed. A listed file that was edited since still belongs to the command.

    Args:
        path: The folder. It may be missing; `reserve` creates it.
        command: The command as typed after `gmt`.
        force: Accept a folder that contains files but no list of this command.
        earlier: Whether a version that kept no list wrote this file. It may then be replaced, but it is not removed.
    """

    def __init__(
        self, path: Path, command: str, *, force: bool = False, earlier: Callable[[str], bool] = lambda name: False
    ) -> None:
        self.path, self.command, self.earlier = path, command, earlier
        self.written: set[str] = set()
        with _as_gmt_error(path):
            self.lists = _read(path)
            if command not in self.lists and not force and (name := _first_entry(path)) is not None:
                raise GMTError(
                    f"{path} contains {name}, and `gmt {command}` has no list of its own files there ({LIST}): use "
                    "another folder, or --force to add files without replacing foreign ones"
                )
        self.own = self.lists.setdefault(command, Owned(set(), set()))

    def reserve(self, *names: str) -> None:
        """List files and create their folders, before the files are written.

        The names of unfinished files (`partial_of`) are listed too. A foreign file at one of the names is an error.
        """
        if wrong := [name for name in names if not _is_inside(name)]:
            raise GMTError(f"{wrong[0]!r} is not the name of a file inside {self.path}")
        files = {one for name in names for one in (name, partial_of(PurePosixPath(name)).as_posix())}
        parents = {str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."}
        with _as_gmt_error(self.path):
            for name in sorted(files):
                self._check(name)
            folders = {name for name in parents if not (self.path / name).exists()}
            if not (files <= self.own.files and folders <= self.own.folders):
                self.own.files.update(files)
                self.own.folders.update(folders)
                self._save()
            for name in sorted(parents):
                (self.path / name).mkdir(exist_ok=True)
        self.written.update(names)

    def file(self, name: str) -> Path:
        """The path of a reserved file."""
        self.reserve(name)
        return self.path / name

    def finish(self) -> None:
        """Remove own files that were not reserved this time, then own folders that are empty."""
        with _as_gmt_error(self.path):
            # two names can be one file where case does not matter
            kept = {_identity(self.path / name) for name in self.written}
            for name in self.own.files - self.written:
                if _is_file(self.path, name) and _identity(self.path / name) not in kept:
                    (self.path / name).unlink()
            for name in sorted(self.own.folders, reverse=True):
                if _obstacle(self.path, name) is None:
                    with suppress(OSError):  # not empty
                        (self.path / name).rmdir()
            self.own.files.intersection_update([name for name in self.own.files if _is_file(self.path, name)])
            self.own.folders.intersection_update([name for name in self.own.folders if (self.path / name).is_dir()])
            self._save()

    def _check(self, name: str) -> None:
        if (above := _obstacle(self.path, name)) is not None:
            kind = "symbolic link" if above.is_symlink() else "file"
            raise GMTError(f"{above} is a {kind}, and a folder is needed there: move it, or use another folder")
        if os.path.lexists(self.path / name) and not (
            _is_file(self.path, name) and (name in self.own.files or self.earlier(name))
        ):
            raise GMTError(
                f"{self.path / name} was not written by `gmt {self.command}` and would be replaced: move it, or use "
                "another folder"
            )

    def _save(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if (partial := self.path / PARTIAL_LIST).is_symlink():
            raise GMTError(f"{partial} is a symbolic link: remove it, or use another folder")
        commands = {
            command: {"files": sorted(owned.files), "folders": sorted(owned.folders)}
            for command, owned in self.lists.items()
        }
        write_json(self.path / LIST, {"format": FORMAT, "commands": commands})


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove the named files, then their folders that are empty. Links are not followed.

    Names that lead out of `folder` are ignored: they may come from a file that anybody can edit.
    """
    inside = [name for name in names if _is_inside(name)]
    for name in inside:
        if _is_file(folder, name):
            (folder / name).unlink()
    for parent in sorted({str(parent) for name in inside for parent in PurePosixPath(name).parents}, reverse=True):
        if parent != "." and _obstacle(folder, parent) is None:
            with suppress(OSError):  # not empty
                (folder / parent).rmdir()


def check_file(path: Path, command: str, is_own: Callable[[Path], bool]) -> None:
    """Refuse to replace a file that `gmt COMMAND` did not write. `is_own` recognises its files by their content."""
    if os.path.lexists(path) and not (path.is_file() and is_own(path)):
        raise GMTError(f"{path} was not written by `gmt {command}` and would be replaced: use another name")


def has_mark(path: Path, mark: str) -> bool:
    """Return whether a file contains a text by which the files of a command are recognised."""
    with suppress(OSError), path.open("rb") as file:
        return mark.encode() in file.read(MOST_READ)
    return False


def _is_inside(name: str) -> bool:
    """Return whether a name is relative, normalised and not above the folder."""
    path = PurePosixPath(name)
    plain = name == str(path) != "." and not path.is_absolute() and ".." not in path.parts
    # on Windows a backslash separates folders, and a colon follows a drive
    return plain and not set(name) & set("\\:\0") and name not in (LIST, PARTIAL_LIST)


def _read(folder: Path) -> dict[str, Owned]:
    """Read and check the list of each command. Anybody can edit the file."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise GMTError(f"{folder} is a file: use a folder")
    path = folder / LIST
    if not os.path.lexists(path):
        return {}
    damaged = GMTError(f"{path} is damaged: delete it, or use another folder")
    if not _mode(path, stat.S_ISREG):
        raise damaged
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["format"] != FORMAT:
            raise GMTError(f"{path} is of format {tree['format']}; this version reads format {FORMAT}")
        lists = {
            command: Owned(_names(one["files"]), _names(one["folders"])) for command, one in tree["commands"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged from None
    return lists


def _names(names: Any) -> set[str]:
    if not (isinstance(names, list) and all(isinstance(name, str) and _is_inside(name) for name in names)):
        raise ValueError
    return set(names)


def _is_file(folder: Path, name: str) -> bool:
    """Return whether a regular file inside the folder has this name. Commands write no links: a link is foreign."""
    return _obstacle(folder, name) is None and _mode(folder / name, stat.S_ISREG)


def _obstacle(folder: Path, name: str) -> Path | None:
    """Return what is in the place of a parent folder: a link, which may lead out of the folder, or a file."""
    parents = [folder / parent for parent in PurePosixPath(name).parents if str(parent) != "."]
    return next((one for one in parents if os.path.lexists(one) and not _mode(one, stat.S_ISDIR)), None)


def _first_entry(folder: Path) -> str | None:
    """Return a name for an error message, preferably of a file."""
    if not folder.is_dir():
        return None
    # a command that was killed during its first write leaves only these
    entries = [entry for entry in os.scandir(folder) if entry.name not in (LIST, PARTIAL_LIST)]
    return min(entries, key=lambda entry: (entry.is_dir(), entry.name)).name if entries else None


def _mode(path: Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        return is_kind(path.lstat().st_mode)
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _as_gmt_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GMTError(f"cannot write to {error.filename or folder}: {error.strerror or error}") from None
