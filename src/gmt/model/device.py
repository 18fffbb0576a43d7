"""Where a model runs, and in which precision."""

from typing import Any

import torch

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.kernels.available import MOST_SLOTS as PLAIN_SLOTS


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


def auto_precision(device: torch.device) -> str:
    """What `--precision auto` means."""
    return "bf16" if device.type == "cuda" else "fp32"


def compile_whole(module: Any, cfg: GMTConfig) -> Any:
    """torch.compile without a graph break."""
    return torch.compile(module, fullgraph=True, options=compile_options(cfg) or None)


def compile_blocks(lm: Any, cfg: GMTConfig) -> None:
    """torch.compile each block's forward for training, without a graph break. Hooks on blocks stay outside.

    Validation, traces and hooks inside a block take the eager forward, as they do where the whole model is compiled.
    """
    options = compile_options(cfg) or None

    def forward_of(block: Any) -> Any:
        eager = block.forward
        compiled = torch.compile(eager, fullgraph=True, options=options)
        return lambda *args, **kwargs: (compiled if block.training else eager)(*args, **kwargs)

    for block in lm.blocks:
        block.forward = forward_of(block)


def compile_options(cfg: GMTConfig) -> dict[str, Any]:
    from torch._inductor import config as inductor  # a second to import, for those who compile

    # Else torch chooses by a look at the clock in how many parts a sum is made, and two compilations of one model give
    # other bits. An option, since the mode of a process ends with the forward: torch leaves it before a backward.
    options: dict[str, Any] = {"deterministic": True} if cfg.train.deterministic else {}
    # Over 256 slots the plain cell is compiled; on CUDA torch 2.11 cannot, with reductions along two axes in a kernel:
    # it names a variable there that it has not defined.
    if cfg.memory.slots > PLAIN_SLOTS and hasattr(inductor.triton, "mix_order_reduction"):
        options["triton.mix_order_reduction"] = False
    # A GPU wants multiples of 8. Whether padding pays torch finds out by a look at the clock, not always rightly, or by
    # rule says no: a step of dense-1050 takes a fifth longer without.
    if cfg.model.sublayer == "dense" and cfg.model.dense_width % 8:
        options["force_shape_pad"] = True
    return options


def autocast(device: torch.device, precision: str) -> Any:
    """bf16 lets torch choose bfloat16 where it is safe; anything else changes nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
