"""Write checkpoints of one run in the background, one at a time."""

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread

from gmt.checkpoint.format import Progress, checkpoint_name, write_checkpoint
from gmt.checkpoint.store import FOLDER, retain
from gmt.errors import GMTError


class CheckpointWriter:
    """`save` returns at once; an error of the write is raised by the next `save` or `wait`."""

    def __init__(self, run: Path, keep: int, warn: Callable[[str], None] = lambda message: None) -> None:
        self.run, self.keep, self.warn = run, keep, warn
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(self, progress: Progress, files: Mapping[str, Callable[[], bytes]]) -> None:
        self.wait()
        self._thread = Thread(target=self._write, args=(progress, files), daemon=False)
        self._thread.start()

    def join(self) -> BaseException | None:
        """Return when the thread has ended, with its error. The error is not raised again."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        return error

    def wait(self) -> None:
        """Return when the last checkpoint is on disk."""
        if (error := self.join()) is not None:
            if isinstance(error, OSError):
                raise GMTError(
                    f"cannot write a checkpoint to {self.run / FOLDER}: {error.strerror or error}; "
                    "earlier checkpoints are complete"
                ) from None
            raise error

    def _write(self, progress: Progress, files: Mapping[str, Callable[[], bytes]]) -> None:
        try:
            write_checkpoint(self.run / FOLDER / checkpoint_name(progress.step), files)
        except BaseException as error:
            self._error = error
            return
        try:
            retain(self.run, self.keep, progress.step, (progress.best or {}).get("step"))
        except OSError as error:  # the new checkpoint is complete; an old one that stays harms nothing
            self.warn(f"cannot remove an old checkpoint from {self.run / FOLDER}: {error.strerror or error}")
