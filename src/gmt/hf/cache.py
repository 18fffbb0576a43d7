"""A key-value cache with room to grow: a new token is written where it belongs, and nothing is copied for it.

`transformers`' own growing cache joins all keys and values of the past anew at every token.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

LEAST_ROOM = 128  # tokens


class RoomyLayer(DynamicLayer):
    """Keys and values are the filled part of buffers that double when they are full."""

    buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and key_states.requires_grad:  # writing in place would lose gradients
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        filled = self.keys.shape[-2] if self.keys.numel() else 0
        needed = filled + key_states.shape[-2]
        if not self._is_own(self.keys, filled) or self.buffers is None or self.buffers[0].shape[-2] < needed:
            self._make_room(key_states, filled, needed)
        assert self.buffers is not None
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[..., filled:needed, :].copy_(new)
        self.keys, self.values = (buffer[..., :needed, :] for buffer in self.buffers)
        return self.keys, self.values

    def _is_own(self, keys: Tensor, filled: int) -> bool:
        """Whether the keys are still the head of the buffer: reordering beams, say, puts others in their place."""
        return filled == 0 or (self.buffers is not None and keys.data_ptr() == self.buffers[0].data_ptr())

    def _make_room(self, like: Tensor, filled: int, needed: int) -> None:
        shape = list(like.shape)
        shape[-2] = max(LEAST_ROOM, 2 * needed)
        old = (self.keys, self.values)
        self.buffers = (like.new_empty(shape), like.new_empty(shape))
        for buffer, past in zip(self.buffers, old, strict=True):
            if filled and past is not None:
                buffer[..., :filled, :].copy_(past)


class RoomyCache(Cache):
    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RoomyLayer)
