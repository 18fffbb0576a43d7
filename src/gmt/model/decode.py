"""One token at a time on a GPU: a static cache and a recorded graph, so that the host launches one thing a token."""

from typing import Any

import torch
from torch import Tensor

from gmt.model.language_model import GraphMemoryLM
from gmt.model.record import record


class StaticKeys:
    """Keys and values of a whole context, written at a position that lives on the device."""

    def __init__(self, lm: GraphMemoryLM, batch: int) -> None:
        shape = lm.cfg.model
        like: Any = lm.blocks[0].attention.qkv.weight  # pyright: ignore
        size = (batch, shape.heads, shape.context, shape.hidden // shape.heads)
        self.keys = [like.new_zeros(size) for _ in range(shape.blocks)]
        self.values = [like.new_zeros(size) for _ in range(shape.blocks)]
        self.position = torch.zeros((), dtype=torch.long, device=like.device)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        places = self.position + torch.arange(key_states.shape[2], device=key_states.device)
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys.index_copy_(2, places, key_states.to(keys.dtype))
        values.index_copy_(2, places, value_states.to(values.dtype))
        return keys, values

    def get_seq_length(self) -> Tensor:
        return self.position


class Decoder:
    """Greedy decoding with frozen memory. Memory may be written between two tokens: the graph is recorded again."""

    def __init__(self, lm: GraphMemoryLM, batch: int = 1) -> None:
        self.lm, self.cache = lm.eval(), StaticKeys(lm, batch)
        device = self.cache.position.device
        self.token = torch.zeros((batch, 1), dtype=torch.long, device=device)
        self.places = torch.arange(lm.cfg.model.context, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.versions: list[int] = []
        self.tables: list[Any] = []  # held, since a graph knows addresses and keeps nothing alive
        self.filled = 0

    @torch.no_grad()
    def prompt(self, ids: Tensor) -> Tensor:
        """Read a text from its beginning; returns the likeliest next token, [B, 1]."""
        self.cache.position.zero_()
        self.filled = 0
        return self._advance(ids)

    @torch.no_grad()
    def step(self) -> Tensor:
        """The token after the last one."""
        if self.filled >= self.lm.cfg.model.context:
            raise ValueError(f"the context of {self.filled} tokens is full")
        if self.cache.position.device.type != "cuda":
            return self._advance(self.token)
        if self.graph is None or self._changed():
            self._record()
        assert self.graph is not None
        self.graph.replay()
        self.filled += 1
        return self.token.clone()

    def _changed(self) -> bool:
        """Whether memory was written, or its tables made again, since the graph was recorded."""
        cells = self.lm.cells
        same_tables = all(cell.frozen is table for cell, table in zip(cells, self.tables, strict=True))
        return not same_tables or self._versions() != self.versions

    def _versions(self) -> list[int]:
        return [t._version for cell in self.lm.cells for t in cell.parameters()]

    def _advance(self, ids: Tensor) -> Tensor:
        self._forward(ids)
        self.filled += ids.shape[1]
        return self.token.clone()

    def _forward(self, ids: Tensor) -> None:
        rows = self.cache.position + torch.arange(ids.shape[1], device=ids.device)
        attend = (self.places[None] <= rows[:, None])[None, None]
        out = self.lm(
            ids,
            observe=False,
            cache=self.cache,
            positions=rows[None].expand(ids.shape),
            attend=attend,
            logits_to_keep=1,
        )
        self.token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))
        self.cache.position += ids.shape[1]

    def _record(self) -> None:
        """Record one token; the passes before leave the text as it was."""
        token, position = self.token.clone(), self.cache.position.clone()

        def put_back() -> None:
            self.token.copy_(token)
            self.cache.position.copy_(position)

        self._forward(self.token)  # makes the tables that the graph will read
        put_back()
        self.versions, self.tables = self._versions(), [cell.frozen for cell in self.lm.cells]
        self.graph, _ = record(lambda: self._forward(self.token), 1, put_back)
        put_back()
