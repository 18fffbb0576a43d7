"""The five auxiliary terms of one block. Their weights are applied where the objective is put together."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gmt.memory.precision import EPS, wide

TERMS = ("track", "ortho", "cluster", "edge", "contrast")


def track_loss(out: Tensor, source_state: Tensor, momentum: Tensor, mask: Tensor | None) -> Tensor:
    """(1-m) MSE(sg(out), w_src C~): the source must predict the state that is written there."""
    return (1 - wide(momentum).sigmoid()) * _mean_square(wide(out.detach()) - source_state, mask)


def commit_loss(out: Tensor, source_state: Tensor, mask: Tensor | None) -> Tensor:
    """MSE(out, sg(w_src C~)): what the authors had before. It draws states to memory, and teaches memory nothing."""
    return _mean_square(wide(out) - source_state.detach(), mask)


def ortho_loss(centroids: Tensor) -> Tensor:
    """Mean squared cosine between different centroids; for [..., F, H] one for each of the leading axes."""
    return _off_diagonal_mean(_cosines(centroids).square())


def cluster_loss(mean_usage: Tensor, target: float) -> Tensor:
    """max(N_target / max(N_eff, 1) - 1, 0) for usages [..., F]."""
    return (target / effective_slots(mean_usage).clamp_min(1) - 1).clamp_min(0)


def effective_slots(mean_usage: Tensor) -> Tensor:
    """N_eff = exp of the entropy of usage."""
    share = mean_usage / (mean_usage.sum(-1, keepdim=True) + EPS)
    return entropy(share).exp()


def edge_loss(transition: Tensor, floor: float) -> Tensor:
    """Mean over rows of max(H_target - H_i, 0)."""
    return (floor - entropy(transition)).clamp_min(0).mean(-1)


def contrast_loss(transition: Tensor) -> Tensor:
    """Mean cosine between different rows of P."""
    return _off_diagonal_mean(_cosines(transition))


def entropy(p: Tensor) -> Tensor:
    """-Σ p log(p + ε) over the last axis."""
    return -(p * (p + EPS).log()).sum(-1)


def _mean_square(error: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return error.square().mean()
    return (error.square() * mask[..., None]).sum() / (mask.sum() * error.shape[-1]).clamp_min(1)


def _cosines(rows: Tensor) -> Tensor:
    unit = F.normalize(wide(rows), dim=-1, eps=EPS)
    with torch.autocast(rows.device.type, enabled=False):
        return unit @ unit.mT


def _off_diagonal_mean(square: Tensor) -> Tensor:
    n = square.shape[-1]
    diagonal = torch.eye(n, dtype=torch.bool, device=square.device)
    return square.masked_fill(diagonal, 0).sum((-2, -1)) / (n * (n - 1))
