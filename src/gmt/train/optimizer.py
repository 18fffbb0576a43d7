"""AdamW, masked where a step must not happen."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gmt.config import GMTConfig


def make_optimizer(lm: nn.Module, cfg: GMTConfig) -> torch.optim.AdamW:
    """Every parameter decays, as in the paper. Fused: one kernel, which also knows how to do nothing."""
    train = cfg.train
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, p in lm.named_parameters():
        scale = train.centroid_rate if name.endswith("centroids") else 1.0
        groups.setdefault((isinstance(p, DTensor), scale), []).append(p)  # one kernel cannot take shards and wholes
    return torch.optim.AdamW(
        [{"params": group, "scale": scale} for (_, scale), group in groups.items()],
        lr=train.learning_rate,
        betas=(train.beta1, train.beta2),
        weight_decay=train.weight_decay,
        fused=True,
    )


def masked_step(optimizer: torch.optim.Optimizer, learning_rate: float, good: Tensor, on_device: bool) -> None:
    """One step, or none where `good` is 0.

    `on_device` leaves the decision to the fused kernel, so that the host need not wait for the gradient. It is only
    right where `skips_on_device` holds. Otherwise the host reads `good` before it calls the optimizer.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["scale"]
    if not on_device:
        if bool(good):
            optimizer.step()
        return
    optimizer.grad_scale = None  # pyright: ignore
    optimizer.found_inf = (good == 0).float()  # pyright: ignore
    optimizer.step()


def skips_on_device(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether the optimizer leaves weights and moments alone where `found_inf` is set: measured, on one parameter.

    PyTorch documents the flag for CUDA only; other implementations accept and ignore it. Off CUDA the host waits for
    the gradient in any case, and shards take no flag.
    """
    shards = any(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"])
    if device.type != "cuda" or shards:
        return False
    parameter = nn.Parameter(torch.ones(4, device=device))
    parameter.grad = torch.full_like(parameter, torch.nan)
    probe = type(optimizer)([{"params": [parameter], "scale": 1.0}], lr=1.0, fused=True)  # pyright: ignore
    masked_step(probe, 1.0, torch.zeros((), device=device), on_device=True)
    moments = [value for state in probe.state.values() for value in state.values()]
    return bool((parameter == 1).all()) and all(bool((value == 0).all()) for value in moments)
