"""Causal self-attention with an optional key-value cache."""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gmt.kernels.attention import dropout_attention, takes_kernel

# at 8,192 tokens flash took 533 µs forward and backward on an H200, cuDNN's 593; at 32,768 1,670 and 1,554
FLASH_TOKENS = 16_384
NOT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Cache(Protocol):
    """What attention needs of a cache; every cache of `transformers` offers it."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]: ...

    def get_seq_length(self) -> int | Tensor: ...


class CausalSelfAttention(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float, own_kernel: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.own_kernel = own_kernel
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, attend: Tensor | None, cache: Cache | None, index: int) -> Tensor:
        """attend [B, 1, T, S] says which keys a query sees; None is plain causal attention."""
        batch, length, hidden = x.shape
        qkv, dropout = self.qkv(x), self.dropout if self.training else 0.0
        if self.own_kernel and dropout and attend is None and cache is None and takes_kernel(qkv, self.heads):
            return self.output(dropout_attention(qkv, self.heads, dropout))
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each [B, heads, T, d]
        if cache is not None:
            k, v = cache.update(k, v, index)
        if prefers_flash(q, attend):
            with sdpa_kernel(NOT_CUDNN):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        else:
            causal = False
            if attend is None and length > 1:  # a branch: of a compiled length the comparison alone would be no bool
                causal = True
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=attend, is_causal=causal, dropout_p=dropout)
        return self.output(out.transpose(1, 2).reshape(batch, length, hidden))


def prefers_flash(q: Tensor, attend: Tensor | None) -> bool:
    """torch takes cuDNN's attention on a Hopper GPU, which is the faster one for large batches only."""
    small = q.shape[2] > 1 and q.shape[0] * q.shape[2] <= FLASH_TOKENS
    return attend is None and small and q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)


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
