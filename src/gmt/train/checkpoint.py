"""Checkpoints: whole or not there at all, and each a Hugging Face model directory.

A checkpoint is written to a folder aside, with the hash of every file in MANIFEST.json, and appears by one rename.
Nothing in it is a pickle. Writing goes on in the background while training continues.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.hf.configuration import GMTPretrainedConfig
from gmt.hf.directory import FORMAT, MANIFEST, all_checkpoints
from gmt.model.language_model import GraphMemoryLM
from gmt.train.optimizer import like, load_optimizer_state, optimizer_state
from gmt.train.parallel import full


@dataclass
class Progress:
    """What a checkpoint says beside its tensors."""

    step: int  # completed optimizer steps
    config: dict[str, Any]
    data: str  # hash of the data set
    best: dict[str, Any] | None = None  # step and loss of the lowest validation loss
    validation_pending: bool = False  # the validation due at this step was interrupted
    memory: str = ""  # hash of the memory, equal on all ranks
    data_folder: str = ""  # the prepared folder, relative to the run's
    format: int = FORMAT


class CheckpointWriter:
    """Writes checkpoints of one run, one at a time, in the background."""

    def __init__(self, run: Path, keep: int, tokenizer: Path | None) -> None:
        self.root, self.keep, self.tokenizer = run / "checkpoints", keep, tokenizer
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(self, lm: GraphMemoryLM, optimizer: torch.optim.AdamW, progress: Progress, main: bool) -> None:
        """Copy everything to the host (all ranks take part), then let rank 0 write it."""
        self.wait()
        weights = {f"model.{name}": _host(full(t)) for name, t in lm.state_dict().items()}
        moments = {name: _host(t) for name, t in optimizer_state(optimizer, lm).items()}
        if not main:
            return
        config = GMTPretrainedConfig.from_gmt(lm.cfg, facts=_facts(progress), architectures=["GMTForCausalLM"])
        files = {
            "config.json": lambda: config.to_json_string(use_diff=False).encode(),
            "model.safetensors": lambda: save(weights, metadata={"format": "pt"}),
            "optimizer.safetensors": lambda: save(moments),
            "progress.json": lambda: json.dumps(vars(progress), indent=1).encode(),
        }
        if self.tokenizer is not None:
            files["tokenizer.json"] = self.tokenizer.read_bytes
        self._thread = Thread(target=self._write, args=(progress, files), daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Until the last checkpoint is on the disk; an error of its writing is raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, OSError):
                why = error.strerror or error
                raise GMTError(f"cannot write a checkpoint to {self.root}: {why}; older ones are whole") from None
            raise error

    def _write(self, progress: Progress, files: dict[str, Callable[[], bytes]]) -> None:
        try:
            write_checkpoint(self.root / f"step-{progress.step:08d}", files)
            self._retain(progress)
        except BaseException as error:
            self._error = error

    def _retain(self, progress: Progress) -> None:
        """Remove what is neither among the newest nor the best."""
        best = f"step-{progress.best['step']:08d}" if progress.best else ""
        newest = f"step-{progress.step:08d}"
        # one with a higher step is a broken one that the resume passed over: it must not push out a good one
        for path in [p for p in all_checkpoints(self.root) if p.name <= newest][self.keep :]:
            if path.name != best:
                shutil.rmtree(path)


def write_checkpoint(target: Path, files: dict[str, Callable[[], bytes]]) -> None:
    aside = target.with_name(f".{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    hashes = {}
    for name, content in files.items():
        data = content()
        hashes[name] = hashlib.sha256(data).hexdigest()
        _write_synced(aside / name, data)
    _write_synced(aside / MANIFEST, json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode())
    old = target.with_name(f".{target.name}.old")
    if target.exists():  # the same step again: the old one goes when the new one stands
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    aside.rename(target)
    _sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_progress(path: Path) -> Progress:
    return Progress(**json.loads((path / "progress.json").read_text(encoding="utf-8")))


@torch.no_grad()
def load_checkpoint(path: Path, lm: GraphMemoryLM, optimizer: torch.optim.AdamW) -> Progress:
    """Weights, memory and moments into a model, whole or in shards."""
    weights = load_file(path / "model.safetensors")
    for name, tensor in lm.state_dict().items():
        saved = weights[f"model.{name}"].to(tensor.device)
        tensor.copy_(like(tensor, saved) if tensor.dim() else saved)
    load_optimizer_state(optimizer, lm, load_file(path / "optimizer.safetensors"))
    return load_progress(path)


# what may differ between a checkpoint and the run that resumes it: where and how it runs, not what it computes
FREE = (
    "train.device", "train.compile", "train.graphs", "train.deterministic", "train.recompute", "train.parallel",
    "memory.kernels", "save.",
)  # fmt: skip

FORMER = {"model": {"attention": "torch"}}  # defaults that have changed: what a setting was before it was written down


def differences(saved: dict[str, Any], cfg: GMTConfig) -> list[str]:
    """`name: old -> new` for each setting that changes what is computed.

    A setting that did not exist yet when `saved` was written had its default.
    """
    found, defaults = [], GMTConfig().to_dict()
    for section, entries in cfg.to_dict().items():
        before = defaults[section] | FORMER.get(section, {}) | saved.get(section, {})
        found += [
            f"{section}.{name}: {before[name]} -> {value}"
            for name, value in entries.items()
            if before[name] != value and not f"{section}.{name}".startswith(FREE)
        ]
    return found


def _facts(progress: Progress) -> dict[str, Any]:
    facts: dict[str, Any] = {"steps": progress.step, "data": progress.data[:16]}
    if progress.best:
        facts["best validation loss"] = f"{progress.best['loss']:.4f} at step {progress.best['step']}"
    return facts


def _host(tensor: Tensor) -> Tensor:
    """A copy on the host that training cannot change."""
    return tensor.detach().to("cpu", copy=True).contiguous()
