"""What a forward pass saw, and how it is written into memory afterwards.

Forward observes; the step commits. `observe_slots` only returns sums and counts, so that ranks can be added
up and activation checkpointing may run it twice; `write_back` says where a centroid goes, commit.py writes it there.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gmt.memory.precision import EPS, wide


class Writes(NamedTuple):
    """What one forward pass saw, in all blocks (L). Sums and counts, never means: ranks add up."""

    slot_sum: Tensor  # [L, F, H] block outputs of the tokens assigned to each slot; detached
    slot_count: Tensor  # [L, F] number of those tokens; detached
    usage_sum: Tensor  # [L, F] sum of w_src over tokens; attached, for the cluster term
    tokens: Tensor  # [] tokens seen, without padding
    reseed: Tensor | None  # [L, K, H] block outputs at the positions that were asked for; detached

    @property
    def mean_usage(self) -> Tensor:
        """Mean w_src over the tokens seen, [L, F]."""
        return self.usage_sum / self.tokens.clamp_min(1)


def hard_assignment(source: Tensor) -> Tensor:
    """One-hot of the nearest slot, [N, F]; ties go to the lowest index."""
    return F.one_hot(source.argmax(dim=-1), source.shape[-1]).to(source.dtype)


# other rules (soft, top-k, confidence-gated) are further entries: weights a_ti from w_src, nothing else changes
ASSIGNMENTS: dict[str, Callable[[Tensor], Tensor]] = {"hard": hard_assignment}


def observe_slots(source: Tensor, out: Tensor, assignment: str, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Per-slot sum of the block's output, [F, H], and count, [F]. Padding takes no part."""
    with torch.no_grad():
        weights = ASSIGNMENTS[assignment](source.flatten(0, -2))  # [N, F]
        if mask is not None:
            weights = weights * mask.flatten()[:, None]
        states = wide(out.flatten(0, -2)).to(weights.dtype)  # [N, H]
        # a product with the one-hot matrix: unlike a scatter-add it needs no atomics, so it repeats bit for bit
        with torch.autocast(out.device.type, enabled=False):
            return weights.T @ states, weights.sum(0)


def write_back(
    centroids: Tensor, momentum: Tensor, slot_sum: Tensor, slot_count: Tensor, keep: Tensor | None = None
) -> Tensor:
    """normalise(m C + (1-m) mean). A slot nobody came to has mean 0 and is only renormalised.

    centroids [..., F, H] and momentum [...], so that all blocks are one call. Where `keep` is false the centroids come
    back as they are: decided on the device, without a stall.
    """
    m = wide(momentum).sigmoid()[..., None, None]
    mean = slot_sum / slot_count.clamp_min(EPS)[..., None]
    new = F.normalize(m * centroids + (1 - m) * mean, dim=-1, eps=EPS)
    return new if keep is None else torch.where(keep, new, centroids)
