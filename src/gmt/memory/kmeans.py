"""Centroids from data: k-means on the unit sphere, for the initialisation that the authors began with and gave up."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gmt.memory.precision import EPS

ROUNDS = 20


@torch.no_grad()
def spherical_kmeans(states: Tensor, count: int, generator: torch.Generator, rounds: int = ROUNDS) -> Tensor:
    """`count` unit vectors [count, H] for the directions of states [N, H], N >= count, by Lloyd's rounds.

    Begins at states drawn without repetition; a cluster that loses its last member keeps its place.
    """
    unit = F.normalize(states, dim=-1, eps=EPS)
    chosen = torch.randperm(len(unit), generator=generator)[:count]
    centres = unit[chosen.to(unit.device)]
    for _ in range(rounds):
        members = F.one_hot((unit @ centres.T).argmax(-1), count).to(unit.dtype)  # [N, count]
        sums = members.T @ unit
        centres = torch.where(members.any(0)[:, None], F.normalize(sums, dim=-1, eps=EPS), centres)
    return centres
