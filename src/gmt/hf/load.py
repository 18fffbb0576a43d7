"""One door for every command that takes a MODEL: a model directory, a run, or a name on the hub."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from gmt.config import ValidationConfig
from gmt.data.manifest import Manifest
from gmt.data.tokenizer import find_end_of_text, load_tokenizer
from gmt.errors import DataError, GMTError, first_line
from gmt.hf.directory import MANIFEST, all_checkpoints, best_checkpoint, broken
from gmt.hf.modeling import GMTForCausalLM
from gmt.model.language_model import GraphMemoryLM

GPT2_VOCABULARY = 50257


class Loaded(NamedTuple):
    model: GMTForCausalLM
    name: str  # as the user said it
    folder: Path
    sha256: str  # of the weights
    step: int | None  # of the run that made them
    vocabulary: Tokenizer | None
    passed: list[str]  # checkpoints that were not taken, and why
    progress: dict[str, Any]  # progress.json of a checkpoint; empty for other model directories

    @property
    def lm(self) -> GraphMemoryLM:
        return self.model.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return fast_tokenizer(self.words)

    @property
    def words(self) -> Tokenizer:
        if self.vocabulary is None:
            raise GMTError(
                f"{self.folder}/tokenizer.json not found, and the vocabulary is not that of GPT-2: add the file"
            )
        return self.vocabulary

    @property
    def validation_windows(self) -> int:
        """Windows that a validation of the model's run reads; those of a default run for other models."""
        settings = self.progress.get("config", {}).get("validation", {})
        default = ValidationConfig()
        return settings.get("batch", default.batch) * settings.get("batches", default.batches)

    def data_folder(self) -> Path | None:
        """The prepared folder that the model was trained on, if the checkpoint names it and it is unchanged."""
        recorded = self.progress.get("data_folder")
        if not recorded:
            return None
        folder = Path(os.path.normpath(self.folder.parent.parent / recorded))
        try:
            same = Manifest.load(folder).digest() == self.progress["data"]
        except DataError:
            return None
        return folder if same else None


def open_model(name: str | Path, device: torch.device | str = "cpu", tau: float | None = None) -> Loaded:
    """The model in eval mode; `tau` takes the place of the temperature stored with it."""
    folder, passed = find_model(str(name))
    try:
        with no_progress_bars():
            model = GMTForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise GMTError(f"{folder} cannot be loaded as a graph memory model: {first_line(error)}") from None
    model.eval().to(device)  # pyright: ignore
    if tau is not None:
        try:
            model.model.set_temperature(tau)
        except ValueError as error:
            raise GMTError(str(error)) from None
    progress = _progress(folder)
    step, vocabulary = progress.get("step"), _vocabulary(folder, model)
    return Loaded(model, str(name), folder, weights_hash(folder), step, vocabulary, passed, progress)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Commands show their own progress; the setting of transformers is restored for programs that use both."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


def find_model(name: str) -> tuple[Path, list[str]]:
    """The model directory that a name means (RUN@STEP is a step of a run), and checkpoints that were passed over."""
    path = Path(name)
    run, at, step = name.rpartition("@")
    if at and step.isdigit() and (Path(run) / "checkpoints").is_dir():
        path = Path(run) / "checkpoints" / f"step-{int(step):08d}"
        if not path.is_dir():
            kept = ", ".join(str(int(p.name[5:])) for p in reversed(all_checkpoints(Path(run) / "checkpoints")))
            raise GMTError(f"{run} keeps no checkpoint of step {step}; it keeps those of {kept or 'no step'}")
    if (path / "checkpoints").is_dir():
        checkpoint, passed = best_checkpoint(path)
        if checkpoint is None:
            raise GMTError(f"{name} is a run without a whole checkpoint" + "".join(f"; {reason}" for reason in passed))
        return checkpoint, passed
    if not path.exists():
        path = _from_hub(name)
    if not (path / "config.json").is_file():
        raise GMTError(f"{name} is neither a model directory (there is no config.json) nor a run (no checkpoints)")
    if (path / MANIFEST).is_file() and (reason := broken(path)) is not None:
        raise GMTError(f"{path} {reason}")
    try:
        kind = json.loads((path / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        raise GMTError(f"{path / 'config.json'} is not the configuration of a model") from None
    if kind != "gmt":
        raise GMTError(f"{name} is a model of type {kind!r}; gmt reads its own, and `gmt convert` the authors' best.pt")
    return path, []


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        wanted = ["*.json", "*.safetensors", "*.md"]
        return Path(snapshot_download(name, allow_patterns=wanted))  # pyright: ignore
    except Exception as error:  # the hub's errors are of many kinds, and all mean the same here
        raise GMTError(f"{name}: no such folder, and no such model on the hub ({first_line(error)})") from None


def weights_hash(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        if not path.name.startswith("optimizer"):
            with path.open("rb") as file:
                state.update(hashlib.file_digest(file, "sha256").digest())
    return state.hexdigest()


def fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The same vocabulary in the clothes that generation and the harness expect."""
    index = find_end_of_text(tokenizer)
    end = None if index is None else tokenizer.id_to_token(index)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=end,
        eos_token=end,
        pad_token=end,
        clean_up_tokenization_spaces=False,
    )


def _vocabulary(folder: Path, model: GMTForCausalLM) -> Tokenizer | None:
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(str(folder / "tokenizer.json"))
    # the authors' checkpoint comes without one, and is GPT-2's
    return load_tokenizer("gpt2") if model.config.vocab == GPT2_VOCABULARY else None


def _progress(folder: Path) -> dict[str, Any]:
    path = folder / "progress.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
