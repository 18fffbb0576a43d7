"""Where a model runs, and in which precision."""

from typing import Any

import torch

from gmt.errors import GMTError


def pick_device(name: str) -> torch.device:
    """`auto` takes cuda, then mps, then cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name not in available:
        raise GMTError(f"there is no device {name!r}; there are auto, cuda, mps and cpu")
    if not available[name]:
        raise GMTError(f"the device asked for is {name}, which this machine does not have")
    return torch.device(name)


def autocast(device: torch.device, precision: str) -> Any:
    """bf16 lets torch choose bfloat16 where it is safe; anything else changes nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
