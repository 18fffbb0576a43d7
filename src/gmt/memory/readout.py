"""From two distributions over slots to a vector in hidden space."""

import torch
from torch import Tensor, nn

from gmt.memory.precision import product, wide, wide_layer_norm


def memory_state(weights: Tensor, states: Tensor, dtype: torch.dtype) -> Tensor:
    """c = w C~: a soft point of the memory, [..., H]."""
    return product(weights, states, dtype)


def displacement(
    source: Tensor, target: Tensor, states: Tensor, norm: nn.LayerNorm, gate: Tensor, dtype: torch.dtype
) -> Tensor:
    """d = σ(g) LN_disp(c_tgt - c_src).

    The distributions are subtracted before the product, not after it: the same algebra, but early in training
    the two are nearly equal, and rounding each to bfloat16 first would leave a difference made of noise,
    which LN_disp would then blow up to unit variance.
    """
    return wide(gate).sigmoid() * wide_layer_norm(norm, memory_state(target - source, states, dtype))
