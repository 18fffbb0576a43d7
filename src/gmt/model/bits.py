"""Tensors compared by a hash: equal where every bit is."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from gmt.model.language_model import GraphMemoryLM


def hash_of(tensors: Iterable[Tensor]) -> str:
    """sha256 of what they hold, one after the other, in whatever type it is: numpy knows no bfloat16, but its bytes."""
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def memory_hash(lm: GraphMemoryLM) -> str:
    return hash_of(tensor for cell in lm.cells for tensor in (cell.centroids, cell.usage, cell.age))
