"""The memory cell: what stands in a block where a transformer has its feed-forward layer.

Reads top to bottom like section 3 of the paper; docs/equations.md pairs each symbol with its name here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmt.config import GMTConfig
from gmt.config.sections import SPREAD
from gmt.memory import losses, maintenance
from gmt.memory.frozen import Frozen, FrozenTables, fold, frozen_displacement, frozen_route, takes_frozen_path
from gmt.memory.precision import (
    KeepsFloat32,
    compute_type,
    product,
    rounded,
    state_type,
    unautocast,
    wide,
    wide_layer_norm,
)
from gmt.memory.readout import displacement, memory_state
from gmt.memory.routing import (
    context_scores,
    direction,
    graph_traversal,
    source_routing,
    target_selection,
    transition_matrix,
)
from gmt.memory.writeback import observe_slots

NEVER = 1 << 62  # passes


class Tables(NamedTuple):
    """All that depends on memory alone and on no token."""

    states: Tensor  # [F, H] C~, of which memory states and keys are made
    directions: Tensor  # [F, H] C~ / |C~|, for routing only
    transition: Tensor  # [F, F] P
    keys: Tensor  # [F, D] C~ W_K


class Route(NamedTuple):
    """One block's path for every token."""

    source: Tensor  # [B, T, F] w_src
    target: Tensor  # [B, T, F] w_tgt
    displacement: Tensor  # [B, T, H] exactly what is added to the residual stream


class Seen(NamedTuple):
    """What one block saw in one forward pass; or all of them, [L, ...]."""

    slot_sum: Tensor  # [F, H]
    slot_count: Tensor  # [F]
    usage_sum: Tensor  # [F]
    reseed: Tensor | None  # [K, H]
    track: Tensor
    ortho: Tensor
    edge: Tensor
    contrast: Tensor


def stack_seen(blocks: Sequence[Seen]) -> Seen:
    """Of all blocks, [L, ...]."""
    parts = zip(*blocks, strict=True)
    return Seen(*(None if part[0] is None else torch.stack(part) for part in parts))  # pyright: ignore


# cell, h, z, tau, mask, observe, reseed -> what `MemoryCell.forward` returns
Edit = Callable[
    ["MemoryCell", Tensor, Tensor, "Tensor | float", "Tensor | None", bool, "Tensor | None"],
    tuple[Tensor, Route, "Seen | None"],
]


class MemoryCell(KeepsFloat32):
    """Centroids C, edges E, and the movement of tokens among them."""

    float32_tensors = ("centroids", "usage", "age")

    def __init__(self, cfg: GMTConfig) -> None:
        super().__init__()
        hidden, slots, navigation = cfg.model.hidden, cfg.memory.slots, cfg.memory.navigation
        self.cfg = cfg
        # memory state is at least float32, whatever the default type is while the model is built
        self.centroids = nn.Parameter(torch.empty(slots, hidden, dtype=state_type()), cfg.memory.train_centroids)
        self.edges = nn.Parameter(torch.empty(slots, slots), requires_grad=cfg.memory.edges == "learned")
        self.query = nn.Linear(hidden, navigation, bias=False)
        self.key = nn.Linear(hidden, navigation, bias=False)
        self.gate = nn.Parameter(torch.empty(()))
        # the commitment teaches the momentum nothing, and ranks wait for every gradient that is promised
        self.momentum = nn.Parameter(torch.empty(()), requires_grad=cfg.losses.track_form == "track")
        self.norm_centroids = nn.LayerNorm(hidden)
        self.norm_displacement = nn.LayerNorm(hidden)
        self.usage: Tensor
        self.age: Tensor
        self.register_buffer("usage", torch.empty(slots, dtype=state_type()))
        self.register_buffer("age", torch.empty(slots, dtype=state_type()))
        self.frozen: Frozen | None = None
        self.edit: Edit | None = None  # takes the place of `forward` while somebody intervenes

    def reset_memory(self) -> None:
        """The cell's own tensors as they are before training; its norms are the model's to set."""
        nn.init.normal_(self.centroids)
        with torch.no_grad():
            self.centroids.copy_(F.normalize(self.centroids, dim=-1))
        nn.init.normal_(self.edges)
        if self.cfg.memory.edges == "uniform":  # drawn all the same: what is drawn after it stays alike
            nn.init.zeros_(self.edges)
        if self.cfg.memory.navigation_init != SPREAD:  # else they are as every linear layer is
            for layer in (self.query, self.key):
                nn.init.normal_(layer.weight, std=self.cfg.memory.navigation_init)
        nn.init.constant_(self.gate, self.cfg.memory.gate_init)
        nn.init.constant_(self.momentum, self.cfg.memory.momentum_init)
        nn.init.constant_(self.usage, 1 / self.cfg.memory.slots)
        nn.init.zeros_(self.age)

    def tables(self, dtype: torch.dtype, centroids: Tensor | None = None) -> Tables:
        """`centroids` take the place of the cell's own."""
        states = wide_layer_norm(self.norm_centroids, self.centroids if centroids is None else centroids)
        keys = product(states, self.key.weight.T, dtype)
        return Tables(states, direction(states), transition_matrix(self.edges), keys)

    def route(self, z: Tensor, tables: Tables, tau: Tensor | float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Source and target distributions of the tokens z."""
        source = source_routing(z, tables.directions, tau, self.cfg.memory.distance_floor, dtype)
        edge = graph_traversal(source, tables.transition, dtype)
        context = context_scores(z, self.query.weight, tables.keys, dtype)
        return source, target_selection(edge, context)

    def forward(
        self,
        h: Tensor,
        z: Tensor,
        tau: Tensor | float,
        mask: Tensor | None = None,
        *,
        observe: bool = True,
        reseed: Tensor | None = None,
        want_route: bool = True,
    ) -> tuple[Tensor, Route | None, Seen | None]:
        """h is the state after attention, z = LN2(h). Returns the block's output; changes nothing."""
        if self.edit is not None:
            return self.edit(self, h, z, tau, mask, observe, reseed)
        dtype = compute_type(z)
        if takes_frozen_path(observe):
            return *self._forward_frozen(h, z, tau, dtype, want_route), None
        tables = self.tables(dtype)
        source, target = self.route(z, tables, tau, dtype)
        move = displacement(source, target, tables.states, self.norm_displacement, self.gate, dtype).to(h.dtype)
        out = h + move
        seen = self.observe(tables, source, out, mask, reseed, dtype) if observe else None
        return out, Route(source, target, move), seen

    def _forward_frozen(
        self, h: Tensor, z: Tensor, tau: Tensor | float, dtype: torch.dtype, want_route: bool
    ) -> tuple[Tensor, Route | None]:
        """The same from tables that were made before: where no gradient and no writes are wanted."""
        tables = self.frozen_tables(dtype)
        with unautocast(z):
            source, target = frozen_route(z.flatten(0, -2), tables, tau, self.cfg.memory.distance_floor, dtype)
            move = frozen_displacement(source, target, tables, self.norm_displacement.eps, dtype)
        move = move.view(h.shape).to(h.dtype)
        if not want_route:
            return h + move, None
        slots = (*z.shape[:-1], -1)
        return h + move, Route(source.view(slots), target.view(slots), move)

    def _made_of(self) -> tuple[Tensor, ...]:
        """All that frozen tables depend on."""
        own = self._parameters  # asked for at every generated token: the dictionaries are faster than attributes
        parts = [self._modules[name] for name in ("query", "key", "norm_centroids", "norm_displacement")]
        try:
            query, key, centroids, moved = (part._parameters for part in parts)  # pyright: ignore
            return (  # pyright: ignore
                own["centroids"], own["edges"], own["gate"], query["weight"], key["weight"],
                centroids["weight"], centroids["bias"], moved["weight"], moved["bias"],
            )  # fmt: skip
        except KeyError:  # a pruned or reparametrised tensor is no parameter any more, and made anew at each look
            norms = (p for norm in (self.norm_centroids, self.norm_displacement) for p in (norm.weight, norm.bias))
            return self.centroids, self.edges, self.gate, self.query.weight, self.key.weight, *norms

    @torch.no_grad()
    def _freeze(self, dtype: torch.dtype) -> FrozenTables:
        fresh = self.tables(dtype)
        gate, norm = wide(self.gate).sigmoid(), self.norm_displacement
        return FrozenTables(
            lookup=rounded(torch.cat([fresh.directions, fold(self.query.weight, fresh.keys, dtype)]), dtype).T,
            transition=rounded(fresh.transition, dtype),
            states=rounded(fresh.states, dtype),
            scale=gate * wide(norm.weight),
            shift=gate * wide(norm.bias),
        )

    def frozen_tables(self, dtype: torch.dtype) -> FrozenTables:
        """Tables for the frozen path, made again when memory was written."""
        made_of = self._made_of()
        if self.frozen is None or not self.frozen.holds(made_of, dtype):
            self.frozen = Frozen(self._freeze(dtype), made_of, dtype)
        return self.frozen.tables

    def frozen_differs(self) -> Tensor | None:
        """[] whether a number of memory differs from what the frozen tables were made of; None if there are none."""
        made_of = self._made_of()
        if self.frozen is None or not self.frozen.holds(made_of, self.frozen.dtype):
            return None  # they will be made again in any case
        return self.frozen.differs(made_of)

    def forget_frozen(self) -> None:
        self.frozen = None

    def observe(
        self,
        tables: Tables,
        source: Tensor,
        out: Tensor,
        mask: Tensor | None,
        reseed: Tensor | None,
        dtype: torch.dtype,
    ) -> Seen:
        slot_sum, slot_count = observe_slots(source, out, self.cfg.memory.assignment, mask)
        usage = source if mask is None else source * mask[..., None]
        source_state = memory_state(source, tables.states, dtype)
        return Seen(
            slot_sum=slot_sum,
            slot_count=slot_count,
            usage_sum=usage.flatten(0, -2).sum(0),
            reseed=None if reseed is None else out.detach().flatten(0, -2)[reseed],
            track=losses.commit_loss(out, source_state, mask)
            if self.cfg.losses.track_form == "commit"
            else losses.track_loss(out, source_state, self.momentum, mask),
            ortho=losses.ortho_loss(self.centroids),
            edge=losses.edge_loss(tables.transition, self.cfg.edge_floor),
            contrast=losses.contrast_loss(tables.transition),
        )

    def maintain(self, candidates: Tensor, generator: torch.Generator) -> maintenance.Maintenance:
        """Reset dead slots and merge near-duplicates, reseeding from sampled block outputs."""
        rules = self.cfg.maintenance
        return maintenance.maintain(
            self.centroids,
            self.usage,
            self.age,
            candidates,
            # no usage is under 0, and no slot so old
            dead_below=self.cfg.dead_below if rules.reset else 0.0,
            merge_cosine=rules.merge_cosine,
            merge_age=rules.merge_age if rules.merge else NEVER,
            generator=generator,
        )
