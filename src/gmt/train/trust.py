"""Whether this process computes what it should: a kernel that came out wrong trains to a loss like any other."""

import torch

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.kernels.available import use_fused
from gmt.model.device import autocast
from gmt.model.language_model import GraphMemoryLM
from gmt.model.parity import check_cell


def check_kernels(lm: GraphMemoryLM, device: torch.device, tokens: int) -> None:
    """The fused cell against the plain one, where a run on a GPU is to take it, in the process that will use it. Of as
    many tokens over 1,024 as a pass has: full tiles and others are different kernels; and those of large passes too."""
    if device.type != "cuda" or not lm.cells:
        return
    precision = lm.cfg.train.precision
    with autocast(device, precision):
        fused = use_fused(lm.cfg, lm.cells[0].centroids)
    if fused:
        check_cell(lm.cfg, device, precision, 1024 + tokens % 1024)


def check_routing(cfg: GMTConfig, step: int, n_eff: float, coverage: float) -> None:
    """Of a process's first step, as it was compiled and recorded. Seen on a GPU: distances all alike, so that every
    slot has the same share of every token and the first is each one's nearest, while the loss falls as always
    (docs/performance.md)."""
    slots = cfg.memory.slots
    if slots >= 16 and n_eff > 0.99 * slots and coverage * slots < 1.5:
        raise GMTError(
            f"step {step}: every slot has the same share of every token, in all blocks; routing is computed wrong: "
            "set memory.kernels=plain or train.compile=false"
        )
