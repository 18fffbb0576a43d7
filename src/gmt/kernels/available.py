"""Whether the fused kernels can run, and in one sentence why not."""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.memory.precision import compute_type

MOST_SLOTS, MOST_HIDDEN = 256, 1024  # what was run on a GPU; the kernels themselves know no bound but the chip's
MOST_WIDE_SLOTS = 128  # in float32 a matrix of 256 by 256 does not fit a multiprocessor
HAS_TRITON = find_spec("triton") is not None  # looked up once: a compiled graph cannot


def machine_lacks(device: torch.device, interpreter: bool = False) -> str | None:
    """`interpreter` lets Triton's count, which runs kernels on a CPU, slowly: for tests."""
    if device.type != "cuda" and not (interpreter and os.environ.get("TRITON_INTERPRET") == "1"):
        return "needs a CUDA device"
    return None if HAS_TRITON else "Triton is missing"


def shape_lacks(cfg: GMTConfig, dtype: torch.dtype = torch.bfloat16) -> str | None:
    most = MOST_WIDE_SLOTS if dtype == torch.float32 else MOST_SLOTS
    if cfg.memory.slots > most:
        return f"{cfg.memory.slots} slots are more than {most}" + (" in float32" if most < MOST_SLOTS else "")
    if cfg.model.hidden > MOST_HIDDEN:
        return f"a hidden size of {cfg.model.hidden} is more than {MOST_HIDDEN}"
    if cfg.memory.assignment != "hard":
        return f"the assignment {cfg.memory.assignment!r} is not the hard one"
    if cfg.losses.track_form != "track":
        return "they know the tracking term alone, and losses.track_form is commit"
    return None


def use_fused(cfg: GMTConfig, z: Tensor) -> bool:
    """By the setting `memory.kernels` and by shape. `fused` says why it cannot be; `auto` falls back."""
    if cfg.memory.kernels == "plain" or (cfg.memory.kernels == "auto" and z.device.type == "cpu"):
        return False
    dtype = compute_type(z)
    lacks = machine_lacks(z.device, interpreter=cfg.memory.kernels == "fused") or shape_lacks(cfg, dtype)
    if lacks is None and dtype not in (torch.float32, torch.bfloat16):
        lacks = f"{dtype} is neither float32 nor bfloat16"
    if lacks is not None and cfg.memory.kernels == "fused":
        raise GMTError(f"memory.kernels is fused, but the fused kernels cannot run: {lacks}")
    return lacks is None
