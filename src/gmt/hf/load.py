"""Load what a MODEL argument names: a model directory, a run, a step of a run (RUN@STEP) or a name on the hub."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from gmt.checkpoint.format import MANIFEST, PROGRESS, verify
from gmt.checkpoint.store import FOLDER, read_complete, select
from gmt.config import ValidationConfig
from gmt.config.migrate import translate
from gmt.config.parse import flatten
from gmt.data.manifest import Manifest
from gmt.data.tokenizer import find_end_of_text, load_tokenizer
from gmt.errors import ConfigError, DataError, GMTError, first_line
from gmt.hf.modeling import GMTForCausalLM
from gmt.model.language_model import GraphMemoryLM

GPT2_VOCABULARY = 50257


class Loaded(NamedTuple):
    model: GMTForCausalLM
    name: str  # as the user typed it
    folder: Path
    sha256: str  # of the weights
    step: int | None  # of the run that made them
    vocabulary: Tokenizer | None
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
        settings = translate(flatten(self.progress.get("config", {})), [])
        default = ValidationConfig()
        batch, batches = settings.get("validation.batch"), settings.get("validation.batches")
        return (batch or default.batch) * (batches or default.batches)

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
    """The model in eval mode; `tau` replaces the temperature stored with it."""
    run, _ = _run_and_step(str(name))
    loaded = read_complete(run or Path(name), lambda: find_model(str(name)), lambda folder: _load(str(name), folder))
    loaded.model.to(device)  # pyright: ignore
    if tau is not None:
        try:
            loaded.lm.set_temperature(tau)
        except ValueError as error:
            raise GMTError(str(error)) from None
    return loaded


def _load(name: str, folder: Path) -> Loaded:
    try:
        with no_progress_bars():
            model = GMTForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    except ConfigError as error:  # lists every problem on a line of its own
        raise GMTError(f"{folder} cannot be loaded as a graph memory model: {error}") from None
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise GMTError(f"{folder} cannot be loaded as a graph memory model: {first_line(error)}") from None
    model.eval()  # pyright: ignore
    progress = _progress(folder)
    step, vocabulary = progress.get("step"), _vocabulary(folder, model)
    return Loaded(model, name, folder, weights_hash(folder), step, vocabulary, progress)


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


def _run_and_step(name: str) -> tuple[Path | None, int | None]:
    """The run that a name means, and the step of RUN@STEP; None for other model directories."""
    run, at, step = name.rpartition("@")
    if at and step.isascii() and step.isdigit() and not Path(name).exists() and (Path(run) / FOLDER).is_dir():
        return Path(run), int(step)
    return (Path(name), None) if (Path(name) / FOLDER).is_dir() else (None, None)


def find_model(name: str) -> Path:
    """The model directory that a name means: a directory, a run, a step of a run (RUN@STEP) or a name on the hub."""
    run, step = _run_and_step(name)
    if run is not None:
        return select(run, step)
    path = Path(name)
    if not path.exists() and path.parent.name == FOLDER:
        step = path.name.removeprefix("step-")
        if not step.isdigit():
            raise GMTError(f"there is no checkpoint {name}")
        return select(path.parent.parent, int(step))  # it may be between two renames
    if not path.exists():
        path = _from_hub(name)
    if not (path / "config.json").is_file():
        runs = sorted(str(folder.parent) for folder in path.glob(f"*/{FOLDER}"))
        instead = f"; runs in it: {', '.join(runs)}" if runs else ""
        raise GMTError(f"{name} is neither a model directory (no config.json) nor a run (no {FOLDER} folder){instead}")
    if (path / MANIFEST).is_file() and (reason := verify(path)) is not None:
        raise GMTError(f"{path} cannot be used: {reason}")
    try:
        kind = json.loads((path / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        raise GMTError(f"{path / 'config.json'} is not the configuration of a model") from None
    if kind != "gmt":
        raise GMTError(f"{name} is a model of type {kind!r}; gmt reads its own, and `gmt convert` the authors' best.pt")
    return path


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
    """The vocabulary as the tokenizer class that generation and the harness expect."""
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
    path = folder / PROGRESS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
