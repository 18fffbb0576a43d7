"""Whether this process computes what it should: a kernel that came out wrong trains to a loss like any other."""

import torch

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.kernels.available import use_fused
from gmt.model.device import autocast
from gmt.model.language_model import GraphMemoryLM
from gmt.model.parity import check_cell


def check_kernels(lm: GraphMemoryLM, device: torch.device) -> None:
    """The fused cell against the plain one, where a run on a GPU is to take it: these very kernels, beforehand."""
    if device.type != "cuda" or not lm.cells:
        return
    precision = lm.cfg.train.precision
    with autocast(device, precision):
        fused = use_fused(lm.cfg, lm.cells[0].centroids)
    if fused:
        check_cell(lm.cfg, device, precision)


def check_routing(cfg: GMTConfig, coverage: float) -> None:
    """Of the first step, as it was compiled and recorded. Seen on a GPU: distances all alike, all tokens on the first
    slot of every block, and a loss that fell as always (docs/performance.md)."""
    if cfg.memory.slots >= 16 and coverage * cfg.memory.slots <= 1:
        raise GMTError(
            "step 1: all tokens chose one slot in every block, which memory at its start does not do; routing is "
            "computed wrong: set memory.kernels=plain or train.compile=false"
        )
