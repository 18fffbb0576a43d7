"""The training objective. The model, a step of several ranks and the record all use this function."""

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

from gmt.config import LossConfig

Number = TypeVar("Number", Tensor, float)


def objective(task: Number, aux: Mapping[str, Number], weights: LossConfig, share: Number) -> Number:
    """L_task + share · Σ λ L_aux; `share` is the schedule's weight of all auxiliary terms."""
    for name, value in aux.items():
        task = task + share * getattr(weights, name) * value
    return task
