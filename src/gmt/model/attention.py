"""Causal self-attention with an optional key-value cache."""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Cache(Protocol):
    """What attention needs of a cache; every cache of `transformers` offers it."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]: ...

    def get_seq_length(self) -> int | Tensor: ...


class CausalSelfAttention(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, attend: Tensor | None, cache: Cache | None, index: int) -> Tensor:
        """attend [B, 1, T, S] says which keys a query sees; None is plain causal attention."""
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each [B, heads, T, d]
        if cache is not None:
            k, v = cache.update(k, v, index)
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attend,
            is_causal=attend is None and length > 1,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(out.transpose(1, 2).reshape(batch, length, hidden))


def causal_attend(length: int, past: int, mask: Tensor | None, device: torch.device) -> Tensor | None:
    """Which of the past + length keys each of the last `length` positions sees, or None where plain causal does.

    mask [B, past + length] is False at padding. A padding token sees itself, so that no row of the softmax is
    empty: what comes of it is finite and nobody reads it.
    """
    if mask is None and (past == 0 or length == 1):
        return None
    positions = torch.arange(past + length, device=device)
    queries = positions[past:, None]
    attend = positions <= queries
    if mask is None:
        return attend
    return (attend & (mask[:, None, :] | (positions == queries)))[:, None]
