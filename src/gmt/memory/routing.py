"""Where a token is (source), where the graph would take it (traversal), where it goes (target).

Shapes: z [..., H] token states, slots F, navigation size D; distributions are [..., F].
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from gmt.memory.precision import EPS, product, wide


def direction(x: Tensor) -> Tensor:
    """x / |x| along the last axis; a zero vector stays zero."""
    return F.normalize(wide(x), dim=-1, eps=EPS)


def source_routing(z: Tensor, directions: Tensor, tau: Tensor | float, floor: float, dtype: torch.dtype) -> Tensor:
    """w_src = softmax over slots of 1 / (τ d),  d = max(1 - ẑ·ĉ, ε_grav)."""
    cosine = product(direction(z), directions.T, dtype)  # [..., F]
    distance = (1 - cosine).clamp_min(floor)
    return torch.softmax(1 / (tau * distance), dim=-1)


def transition_matrix(edges: Tensor) -> Tensor:
    """P = row softmax of E with the diagonal at -inf: a move never stays where it is."""
    diagonal = torch.eye(edges.shape[-1], dtype=torch.bool, device=edges.device)
    return torch.softmax(wide(edges).masked_fill(diagonal, -math.inf), dim=-1)


def graph_traversal(source: Tensor, transition: Tensor, dtype: torch.dtype) -> Tensor:
    """w_edge = w_src P: one step of diffusion over the graph."""
    return product(source, transition, dtype)


def context_scores(z: Tensor, query: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """a = (z W_Q) k^T / sqrt(D), where query is W_Q as [D, H] and keys are C~ W_K, [F, D]."""
    q = product(z, query.T, dtype)
    return product(q, keys.T, dtype) / math.sqrt(keys.shape[-1])


def target_selection(edge: Tensor, context: Tensor) -> Tensor:
    """w_tgt = softmax(w_edge + a): the graph's prior and the token's own need, added as logits."""
    return torch.softmax(edge + context, dim=-1)
