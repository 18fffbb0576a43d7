"""The record of a run: metrics.jsonl first, other loggers beside it."""

import contextlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.utils.io import read_json_lines, write_atomic

RECORD, WANDB_ID = "metrics.jsonl", "wandb_id.txt"
LONGEST_LINE = 16384  # bytes, of a validation of many blocks


class Logger(Protocol):
    def log(self, step: int, values: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class Loggers:
    """metrics.jsonl, which must be written, and other loggers, which may fail: one warning, then they are left out."""

    def __init__(self, out: Path, warn: Callable[[str], None]) -> None:
        self.out, self.warn = out, warn
        self.record: JsonLines | None = None
        self.others: dict[str, Logger] = {}

    def open(self, cfg: GMTConfig, resumed: int) -> None:
        self.record = JsonLines(self.out / RECORD, resumed)
        if cfg.save.tensorboard:
            self.others["TensorBoard"] = TensorBoard(self.out / "tensorboard", resumed)
        if cfg.save.wandb:
            self.others["Weights & Biases"] = WeightsAndBiases(cfg.save.wandb, self.out, cfg, resumed)

    def log(self, step: int, values: dict[str, Any]) -> None:
        if self.record is None:  # only rank 0 records
            return
        try:
            self.record.log(step, values)
        except OSError as error:
            why = error.strerror or error
            raise GMTError(f"cannot write {self.record.path}: {why}; earlier checkpoints are complete") from None
        for name in list(self.others):
            try:
                self.others[name].log(step, values)
            except Exception as error:  # whatever a logger raises, training continues
                del self.others[name]
                self.warn(f"{name} failed and is switched off ({type(error).__name__}: {error}); {RECORD} is complete")

    def close(self) -> None:
        if self.record is not None:
            with contextlib.suppress(OSError):
                self.record.close()
        for name, logger in self.others.items():
            try:
                logger.close()
            except Exception as error:
                self.warn(f"{name} could not be closed: {type(error).__name__}: {error}")


class JsonLines:
    """One line per step and per validation. A resumed run cuts it back to its step."""

    def __init__(self, path: Path, resumed: int) -> None:
        self.path = path
        kept = [line for line in read_json_lines(path) if line["step"] <= resumed] if resumed else []
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept))
        self.file = path.open("a", encoding="utf-8")

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()

    def close(self) -> None:
        os.fsync(self.file.fileno())
        self.file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    return read_json_lines(path)


class RecordTail:
    """The lines of a record that were completed since the last call; for a reader that looks often."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self.offset:  # a resumed run cut the record back
                    self.offset = 0
                file.seek(self.offset)
                complete = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        if not complete:
            return []
        self.offset += len(complete) + 1
        return [json.loads(line) for line in complete.splitlines()]


def has_record(run: Path) -> bool:
    """Whether the run recorded anything, readable or not."""
    path = run / RECORD
    return path.is_file() and path.stat().st_size > 0


def last_step(path: Path) -> int:
    """From the end of the record, which is looked at often and may be long; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
        whole = file.read().rpartition(b"\n")[0]
        return json.loads(whole.rpartition(b"\n")[2])["step"]
    return 0


class TensorBoard:
    """Events after the step that is resumed are purged."""

    def __init__(self, folder: Path, resumed: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise GMTError("save.tensorboard needs tensorboard: pip install 'graph-memory-transformer[log]'") from None
        self.writer = SummaryWriter(str(folder), purge_step=resumed + 1 if resumed else None)

    def log(self, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A resumed run continues the W&B run whose id is in wandb_id.txt."""

    def __init__(self, project: str, out: Path, cfg: GMTConfig, resumed: int) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise GMTError("save.wandb needs wandb: pip install 'graph-memory-transformer[log]'") from None
        path = out / WANDB_ID
        if not (resumed and path.exists()):
            write_atomic(path, secrets.token_hex(6))
        settings = {"id": path.read_text(encoding="utf-8").strip(), "resume": "allow"}
        self.run = wandb.init(project=project, name=out.name, config=cfg.to_dict(), **settings)

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()
