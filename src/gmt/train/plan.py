"""`gmt train --plan`: what a run would do, without doing it."""

from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from gmt.config import GMTConfig
from gmt.data.batches import Stream, TrainBatches
from gmt.model.flops import training_flops
from gmt.model.language_model import GraphMemoryLM
from gmt.train.schedule import Schedule

POINTS = 10
UTILISATION = 0.4  # what a good run reaches of a matrix product's rate


def plan(cfg: GMTConfig, data: Path | None, tokens: int | None, device: torch.device, world: int = 1) -> dict[str, Any]:
    """Steps, tokens, temperature and learning rate at ten points, parameters, memory and time wanted."""
    per_step = cfg.train.micro_batch * cfg.train.accumulation * cfg.model.context
    if data is not None:
        batches = TrainBatches(
            Stream(data, "train"), cfg.model.context, cfg.train.micro_batch, cfg.train.accumulation, cfg.train.seed
        )
        steps_per_epoch = batches.steps_per_epoch
    else:
        windows = ((tokens or 3_000_000_000) - 1) // cfg.model.context
        steps_per_epoch = windows // (cfg.train.micro_batch * cfg.train.accumulation)
    schedule = Schedule(cfg, steps_per_epoch)
    steps = schedule.steps
    size = parameters(cfg)
    at = sorted({round(k * steps / (POINTS - 1)) for k in range(POINTS)})
    flops = training_flops(cfg)
    rate = matmul_rate(device, cfg.train.precision) * UTILISATION * world
    return {
        "steps": steps,
        "steps per epoch": steps_per_epoch,
        "tokens a step": per_step,
        "tokens": steps * per_step,
        "warm-up": schedule.warmup,
        "validation every": schedule.validation_every,
        "maintenance every": cfg.maintenance.every if cfg.model.sublayer == "memory" else 0,
        "parameters": size,
        "MFLOP a token": flops / 1e6,
        "memory wanted, GB": wanted_bytes(cfg, size, world) / 1e9,
        "hours wanted": steps * per_step * flops / rate / 3600,
        "device": str(device),
        "processes": world,
        "points": [(s, schedule.temperature(s), schedule.learning_rate(s)) for s in at],
    }


def parameters(cfg: GMTConfig) -> int:
    """Of the model, without making it."""
    with torch.device("meta"):
        return sum(p.numel() for p in GraphMemoryLM(cfg).parameters())


def wanted_bytes(cfg: GMTConfig, size: int, world: int) -> float:
    """Weights, gradients and two moments in float32, activations of one micro-batch, and its logits."""
    m, half = cfg.model, 2 if cfg.train.precision == "bf16" else 4
    tokens = cfg.train.micro_batch / world * m.context
    inner = {"memory": 6 * cfg.memory.slots * 4, "dense": 2 * m.dense_width * half, "none": 0}[m.sublayer]
    per_block = m.hidden * (8 * half + 3 * 4) + inner
    blocks = 1 if cfg.train.recompute else m.blocks
    return size * 16 + tokens * (blocks * per_block + m.blocks * m.hidden * 4 + m.vocab * (half + 8))


def matmul_rate(device: torch.device, precision: str, size: int = 1024) -> float:
    """FLOP/s of a square matrix product, measured here and now."""
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}[precision]
    if device.type == "cpu" and kind == torch.bfloat16:
        kind = torch.float32  # no faster there
    size = 8192 if device.type == "cuda" else size
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    for _ in range(3):
        torch.mm(a, b)
    _wait(device)
    began, count = perf_counter(), 10
    for _ in range(count):
        torch.mm(a, b)
    _wait(device)
    return count * 2 * size**3 / (perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()
