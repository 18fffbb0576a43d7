"""One block: attention, then the second sublayer, which is memory, dense or not there at all."""

import math
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from gmt.config import GMTConfig
from gmt.config.sections import SPREAD
from gmt.kernels.cell import BlockSeen, BlockTables, fused_block
from gmt.memory.cell import MemoryCell, Route, Seen
from gmt.model.attention import Cache, CausalSelfAttention


class BlockOutput(NamedTuple):
    out: Tensor  # [B, T, H]
    route: Route | None
    seen: Seen | BlockSeen | None  # the second of a fused cell


class Dense(nn.Module):
    """W2 GELU(W1 z): the layer that the memory cell replaces."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(z)))


class Block(nn.Module):
    def __init__(self, cfg: GMTConfig, index: int) -> None:
        super().__init__()
        model = cfg.model
        self.index = index
        self.residual_std = SPREAD / math.sqrt(2 * model.blocks) if model.residual_init == "scaled" else None
        self.norm1 = nn.LayerNorm(model.hidden)
        self.attention = CausalSelfAttention(model.hidden, model.heads, model.dropout, model.attention == "auto")
        self.memory = MemoryCell(cfg) if model.sublayer == "memory" else None
        self.dense = Dense(model.hidden, model.dense_width) if model.sublayer == "dense" else None
        # the attention-only control leaves the second sublayer out together with its norm
        self.norm2 = nn.LayerNorm(model.hidden) if model.sublayer != "none" else None

    def reset_residual(self) -> None:
        """What projects into the residual stream as it is before training, where it is not like any other layer."""
        if self.residual_std is not None:
            for layer in (self.attention.output, self.dense.down if self.dense is not None else None):
                if layer is not None:
                    nn.init.normal_(layer.weight, std=self.residual_std)

    def forward(
        self,
        x: Tensor,
        tau: Tensor | float,
        mask: Tensor | None,
        attend: Tensor | None,
        cache: Cache | None,
        observe: bool,
        reseed: Tensor | None,
        want_route: bool = True,
        fused: bool = False,
        tables: BlockTables | None = None,
    ) -> BlockOutput:
        update = self.attention(self.norm1(x), attend, cache, self.index)
        if fused and self.memory is not None and self.norm2 is not None:
            out, seen = fused_block(
                self.memory, self.norm2, x, update, tau, mask, observe=observe, reseed=reseed, tables=tables
            )
            return BlockOutput(out, None, seen)
        h = x + update
        if self.norm2 is None:
            return BlockOutput(h, None, None)
        z = self.norm2(h)
        if self.memory is not None:
            return BlockOutput(*self.memory(h, z, tau, mask, observe=observe, reseed=reseed, want_route=want_route))
        assert self.dense is not None
        return BlockOutput(h + self.dense(z), None, None)
