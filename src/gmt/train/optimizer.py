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


def masked_step(optimizer: torch.optim.AdamW, learning_rate: float, good: Tensor) -> None:
    """One step, or none where `good` is 0: decided on the device, so that the host need not wait to know."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["scale"]
    if any(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"]):
        if bool(good):  # the fused kernel takes no flag beside shards
            optimizer.step()
        return
    optimizer.grad_scale = None  # pyright: ignore
    optimizer.found_inf = (good == 0).float()  # pyright: ignore
    optimizer.step()
