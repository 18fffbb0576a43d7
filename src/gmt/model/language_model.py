"""The language model, and the contract of memory: `forward` is pure and reports, `commit` writes."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gmt.config import GMTConfig
from gmt.config.sections import SPREAD
from gmt.kernels.available import use_fused
from gmt.kernels.cell import BlockSeen, Tables, all_tables, gather_seen
from gmt.kernels.commit import commits_fused, fused_commit
from gmt.kernels.cross_entropy import IGNORED, linear_cross_entropy
from gmt.kernels.embedding import Embedding
from gmt.memory import losses
from gmt.memory.cell import MemoryCell, Route, Seen, stack_seen
from gmt.memory.commit import commit
from gmt.memory.frozen import takes_frozen_path
from gmt.memory.maintenance import Maintenance, keyed_generator
from gmt.memory.precision import KeepsFloat32, compute_type, state_type, wide
from gmt.memory.writeback import Writes
from gmt.model.attention import Cache, causal_attend
from gmt.model.block import Block, BlockOutput
from gmt.model.checks import check_shapes, check_temperature, check_values
from gmt.model.objective import objective


class LMOutput(NamedTuple):
    logits: Tensor | None  # [B, T, V], or as many positions as were asked for
    loss: Tensor | None  # the objective: task_loss plus the weighted auxiliary terms
    task_loss: Tensor | None  # token-mean cross-entropy
    aux: dict[str, Tensor]  # the five terms, each a mean over blocks; empty without memory
    writes: Writes | None  # what `commit` takes
    routes: tuple[Route, ...] | None  # one per block


class GraphMemoryLM(KeepsFloat32):
    """A decoder-only language model whose second sublayers are memory (or dense, or left out)."""

    float32_tensors = ("tau", "aux_weight")

    def __init__(self, cfg: GMTConfig) -> None:
        super().__init__()
        model = cfg.model
        self.cfg = cfg
        self.gradient_checkpointing = False
        self.token_embedding = Embedding(model.vocab, model.hidden)
        self.position_embedding = Embedding(model.context, model.hidden)
        self.blocks = nn.ModuleList(Block(cfg, index) for index in range(model.blocks))
        self.norm_final = nn.LayerNorm(model.hidden)
        self.tau: Tensor  # the temperature a model was last trained at travels with it
        self.register_buffer("tau", torch.empty((), dtype=state_type()))
        self.aux_weight: Tensor  # of all auxiliary terms; a trainer may let it rise, a loaded model begins at 1
        self.register_buffer("aux_weight", torch.empty((), dtype=state_type()), persistent=False)
        self.apply(self.init_weights)

    @staticmethod
    def init_weights(module: nn.Module) -> None:
        """One module's own tensors as they are before training."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=SPREAD)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, MemoryCell):
            module.reset_memory()
        elif isinstance(module, GraphMemoryLM):
            nn.init.constant_(module.tau, module.cfg.temperature.max)
            nn.init.ones_(module.aux_weight)
        elif isinstance(module, Block):
            module.reset_residual()

    @property
    def cells(self) -> list[MemoryCell]:
        """The memory cells, block by block; none in a dense or attention-only model."""
        # asked for at every token: not a walk over all modules
        return [block.memory for block in self.blocks if isinstance(block.memory, MemoryCell)]

    def set_temperature(self, tau: float) -> None:
        """Set the stored temperature in place, so that a compiled model sees the new value without recompiling."""
        check_temperature(tau)
        with torch.no_grad():
            self.tau.fill_(tau)

    def set_aux_weight(self, weight: float) -> None:
        with torch.no_grad():
            self.aux_weight.fill_(weight)

    def forward(
        self,
        ids: Tensor,
        labels: Tensor | None = None,
        mask: Tensor | None = None,
        tau: Tensor | float | None = None,
        return_routes: bool = False,
        *,
        observe: bool = True,
        reseed: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
        attend: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        return_logits: bool = True,
    ) -> LMOutput:
        """Logits and, where labels are given, losses for ids [B, T]. Changes no tensor of the model.

        labels      [B, T] the next token at each position (already shifted); -100 takes no part
        mask        [B, past + T] False at padding, which takes part in nothing
        tau         routing temperature; by default the stored one
        observe     False leaves out what only training and adaptive evaluation need (aux, writes)
        reseed      [L, K] flat token positions whose block outputs come back in writes.reseed
        cache       keys and values of the past, as `transformers` keeps them
        positions   [B, T] place of each token; by default counted from the mask
        attend      [B, 1, T, S] which keys are seen, for a cache that is not just as long as what it holds
        logits_to_keep  logits of the last n positions, or at a tensor of positions; 0 keeps all
        return_logits   False, with labels: the loss is computed in chunks, and no logits are ever whole in memory
        """
        past = cache.get_seq_length() if cache is not None else 0  # a static cache counts in a tensor
        check_shapes(ids, labels, mask, past, self.cfg.model.context)
        tokens_mask = None if mask is None else mask[:, -ids.shape[1] :].bool()
        if attend is None:
            attend = causal_attend(ids.shape[1], int(past), None if mask is None else mask.bool(), ids.device)
        in_a_row = positions is None and mask is None and isinstance(past, int)
        if positions is None:
            positions = count_positions(ids, mask, past)
        check_values(ids, labels, positions, tau, self.token_embedding.num_embeddings, self.cfg.model.context)

        if _begins(ids, past, cache) and takes_frozen_path(observe):
            self._refresh_frozen()
        places = slice(past, past + ids.shape[1]) if in_a_row else positions
        x = self.token_embedding(ids) + self.position_embedding(places)
        x = F.dropout(x, self.cfg.model.dropout, self.training)
        # the fused kernels keep the distributions on the chip: who wants to see or change them takes the plain way
        edited = any(cell.edit is not None for cell in self.cells)
        fused = not return_routes and not edited and self.cfg.model.sublayer == "memory" and use_fused(self.cfg, x)
        tables = self._tables(compute_type(x)) if fused and not takes_frozen_path(observe) else None
        routes: list[Route] = []
        seen: list[Seen | BlockSeen] = []
        for index, block in enumerate(self.blocks):
            sampled = None if reseed is None else reseed[index]
            args = (x, self.tau if tau is None else tau, tokens_mask, attend, cache, observe, sampled, return_routes)
            args = (*args, fused, tables.blocks[index] if tables is not None else None)
            x, route, saw = _recomputed(block, *args) if self.gradient_checkpointing and self.training else block(*args)
            if return_routes and route is not None:
                routes.append(route)
            if saw is not None:
                seen.append(saw)

        logits = task_loss = None
        if labels is not None and not return_logits:
            task_loss = self._chunked_loss(x, labels, tokens_mask)
        else:
            logits = self._logits(x, logits_to_keep if labels is None else 0)
            task_loss = None if labels is None else _cross_entropy(logits, labels, tokens_mask)
        writes, aux = self._observed(seen, tables, ids, tokens_mask) if seen else (None, {})
        loss = None if task_loss is None else self.objective(task_loss, aux)
        return LMOutput(logits, loss, task_loss, aux, writes, tuple(routes) if return_routes else None)

    def _tables(self, dtype: torch.dtype) -> Tables:
        return all_tables(self.cells, [block.norm2 for block in self.blocks], dtype)  # pyright: ignore

    def _refresh_frozen(self) -> None:
        """Drop frozen tables whose memory was written behind the version counters' back, through `.data`."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # a captured graph looks at nothing on the host
        differs = {cell: flag for cell in self.cells if (flag := cell.frozen_differs()) is not None}
        if differs:
            # one stall for the whole model, on a device that has stalls
            for cell, flag in zip(differs, torch.stack(list(differs.values())).tolist(), strict=True):
                if flag:
                    cell.forget_frozen()

    def _logits(self, x: Tensor, keep: int | Tensor) -> Tensor:
        if isinstance(keep, Tensor):
            x = x[:, keep]
        elif keep:
            x = x[:, -keep:]
        return F.linear(self.norm_final(x), self.token_embedding.weight)

    def _chunked_loss(self, x: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        """The same cross-entropy, from the hidden state and the tied embedding."""
        hidden = self.norm_final(x).flatten(0, 1)
        labels = _scored(labels, mask).flatten()
        total = linear_cross_entropy(hidden.to(compute_type(hidden)), self.token_embedding.weight, labels)
        return total / (labels != IGNORED).sum().clamp_min(1)

    def _observed(
        self, seen: list[Seen | BlockSeen], tables: Tables | None, ids: Tensor, mask: Tensor | None
    ) -> tuple[Writes, dict[str, Tensor]]:
        """What `commit` takes, and the auxiliary terms."""
        # filled on the device: a copy from the host would be a stall in every step
        tokens = self.tau.new_full((), ids.numel()) if mask is None else mask.sum().to(self.tau.dtype)
        if tables is not None:
            saw = gather_seen(cast(list[BlockSeen], seen), tables, tokens)
        else:
            saw = stack_seen(cast(list[Seen], seen))
        writes = Writes(saw.slot_sum, saw.slot_count, saw.usage_sum, tokens.to(saw.usage_sum.dtype), saw.reseed)
        cluster = losses.cluster_loss(writes.mean_usage, self.cfg.cluster_target).mean()
        aux = {name: cluster if name == "cluster" else getattr(saw, name).mean() for name in losses.TERMS}
        return writes, aux

    def objective(self, task_loss: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """The objective of this process, with the auxiliary weight that the schedule has set."""
        return objective(task_loss, aux, self.cfg.losses, self.aux_weight)

    @torch.no_grad()
    def commit(self, writes: Writes | None, keep: Tensor | None = None) -> None:
        """Write what one forward pass saw into memory: once, after its backward and before the next forward.

        `keep` [] false writes nothing, without the host having to know.
        """
        if writes is not None:
            (fused_commit if commits_fused(self.cells) else commit)(self.cells, writes, keep)

    def maintain(self, candidates: Tensor, seed: int, step: int) -> list[Maintenance]:
        """Reset and merge in every block, reseeding from candidates [L, K, H], K at least the number of slots."""
        if candidates.shape[1] < self.cfg.memory.slots:
            raise ValueError(f"maintenance needs {self.cfg.memory.slots} candidates a block, not {candidates.shape[1]}")
        return [
            cell.maintain(candidates[index], keyed_generator(seed, step, index))
            for index, cell in enumerate(self.cells)
        ]


def _recomputed(block: nn.Module, *args: Any) -> BlockOutput:
    """The block without its activations, which backward computes again: from the same memory, or not at all."""
    memory = block.memory.centroids if isinstance(block.memory, MemoryCell) else None
    version = None if memory is None or torch.compiler.is_compiling() else memory._version

    def run(*inputs: Any) -> BlockOutput:
        if version is not None and memory is not None and memory._version != version:
            raise RuntimeError(
                "memory was modified by an inplace operation between a forward pass and its backward, so that its "
                "activations cannot be computed again: commit after backward"
            )
        return block(*inputs)

    return cast(BlockOutput, checkpoint(run, *args, use_reentrant=False))


def _begins(ids: Tensor, past: int | Tensor, cache: Cache | None) -> bool:
    """Whether a text begins, rather than going on by a token."""
    if cache is None or ids.shape[1] > 1:
        return True
    # a static cache counts on the device, where a look would stall; it is filled by a prompt of several tokens
    return past == 0 if isinstance(past, int) else past.device.type == "cpu" and int(past) == 0


def count_positions(ids: Tensor, mask: Tensor | None, past: int | Tensor) -> Tensor:
    if mask is None:
        return (torch.arange(ids.shape[1], device=ids.device) + past)[None].expand(ids.shape)
    # padding is not counted: a left-padded row has the positions it has alone
    return (mask.long().cumsum(-1) - 1).clamp_min(0)[:, -ids.shape[1] :]


def _cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
    labels = _scored(labels, mask)
    total = F.cross_entropy(wide(logits).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)


def _scored(labels: Tensor, mask: Tensor | None) -> Tensor:
    """Padding is never scored."""
    return labels if mask is None else labels.masked_fill(~mask, IGNORED)
