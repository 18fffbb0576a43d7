"""The files of a checkpoint, from a model and its optimizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from gmt.checkpoint.format import PROGRESS, Progress
from gmt.checkpoint.state import model_state, optimizer_state
from gmt.hf.configuration import GMTPretrainedConfig
from gmt.model.language_model import GraphMemoryLM


def checkpoint_files(
    lm: GraphMemoryLM, optimizer: torch.optim.Optimizer, progress: Progress, tokenizer: Path | None
) -> dict[str, Callable[[], bytes]]:
    """Copies to the host now (every rank takes part) and serialises later, in the thread that writes."""
    weights, moments = model_state(lm), optimizer_state(optimizer, lm)
    config = GMTPretrainedConfig.from_gmt(lm.cfg, facts=_facts(progress), architectures=["GMTForCausalLM"])
    files: dict[str, Callable[[], bytes]] = {
        "config.json": lambda: config.to_json_string(use_diff=False).encode(),
        "model.safetensors": lambda: save(weights, metadata={"format": "pt"}),
        "optimizer.safetensors": lambda: save(moments),
        PROGRESS: lambda: json.dumps(vars(progress), indent=1).encode(),
    }
    if tokenizer is not None:
        files["tokenizer.json"] = tokenizer.read_bytes
    return files


def _facts(progress: Progress) -> dict[str, Any]:
    facts: dict[str, Any] = {"steps": progress.step, "data": progress.data[:16]}
    if progress.best:
        facts["best validation loss"] = f"{progress.best['loss']:.4f} at step {progress.best['step']}"
    return facts
