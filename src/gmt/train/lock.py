"""One process a run folder: two that write the same checkpoints would leave neither whole."""

import fcntl
from pathlib import Path
from typing import IO

from gmt.errors import GMTError


class Lock:
    """Held from `take` to `release`, or to the end of the process, whatever ends it."""

    def __init__(self, folder: Path) -> None:
        self.path, self.file = folder / ".lock", None

    def take(self) -> None:
        """Does nothing where this object holds the lock already."""
        if self.file is not None:
            return
        file: IO[str] = self.path.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise GMTError(f"another process is training in {self.path.parent}") from None
        self.file = file

    def release(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
