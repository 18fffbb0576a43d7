"""The record of a run: metrics.jsonl first, other loggers beside it."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Protocol

from gmt.config import GMTConfig
from gmt.errors import GMTError

LONGEST_LINE = 16384  # bytes, of a validation of many blocks


class Logger(Protocol):
    def log(self, step: int, values: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One line per step and per validation. On a restart it is cut back to the step that is resumed."""

    def __init__(self, path: Path, resumed: int) -> None:
        kept = [line for line in _lines(path) if line["step"] <= resumed] if resumed else []
        aside = path.with_suffix(".tmp")
        aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        aside.replace(path)
        self.file = path.open("a", encoding="utf-8")

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()

    def close(self) -> None:
        os.fsync(self.file.fileno())
        self.file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    return _lines(path)


def last_step(path: Path) -> int:
    """From the end of the record, which is looked at often and may be long; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
        whole = file.read().rpartition(b"\n")[0]
        return json.loads(whole.rpartition(b"\n")[2])["step"]
    return 0


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: a killed run may have left half of one."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise GMTError("save.tensorboard needs tensorboard: pip install 'graph-memory-transformer[log]'") from None
        self.writer = SummaryWriter(str(folder))

    def log(self, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    def __init__(self, project: str, name: str, cfg: GMTConfig) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise GMTError("save.wandb needs wandb: pip install 'graph-memory-transformer[log]'") from None
        self.run = wandb.init(project=project, name=name, config=cfg.to_dict(), resume="allow")

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


def open_loggers(run: Path, cfg: GMTConfig, resumed: int) -> list[Logger]:
    loggers: list[Logger] = [JsonLines(run / "metrics.jsonl", resumed)]
    if cfg.save.tensorboard:
        loggers.append(TensorBoard(run / "tensorboard"))
    if cfg.save.wandb:
        loggers.append(WeightsAndBiases(cfg.save.wandb, run.name, cfg))
    return loggers
