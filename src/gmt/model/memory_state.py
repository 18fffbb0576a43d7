"""Copies of the memory of a model, to put it back."""

import torch
from torch import Tensor

from gmt.model.language_model import GraphMemoryLM


def snapshot(lm: GraphMemoryLM) -> list[tuple[Tensor, Tensor]]:
    """Memory state, tensor and copy."""
    return [(t, t.detach().clone()) for cell in lm.cells for t in (cell.centroids, cell.usage, cell.age)]


@torch.no_grad()
def restore(lm: GraphMemoryLM, before: list[tuple[Tensor, Tensor]] | None) -> None:
    for tensor, copy in before or []:
        tensor.copy_(copy)
