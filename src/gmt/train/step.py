"""One optimizer step, top to bottom."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gmt.config import GMTConfig
from gmt.data.batches import TrainBatches
from gmt.memory import losses
from gmt.memory.diagnostics import usage_diagnostics
from gmt.memory.maintenance import forget_moments, keyed_generator, reseed_positions
from gmt.memory.writeback import Writes
from gmt.model.device import autocast
from gmt.model.language_model import GraphMemoryLM, LMOutput
from gmt.train.graph import Graphed
from gmt.train.optimizer import masked_step, skips_on_device
from gmt.train.parallel import Parallel
from gmt.train.schedule import Schedule
from gmt.utils.seeding import seed_for


@dataclass
class StepRecord:
    """What a step did, still on the device: the host reads it when it has nothing better to do."""

    step: int
    learning_rate: float
    tau: float
    numbers: Tensor  # see NUMBERS; sums over micro-batches and ranks
    norm: Tensor  # of the gradient, before clipping
    good: Tensor  # 0 from the first step on that must not count
    usage: Tensor | None  # see USAGE_NAMES; of the last micro-batch
    dead: Tensor  # slots whose usage is under the threshold
    resets: int = 0
    merges: int = 0


# one row per micro-batch: the objective's parts, and how many ranks saw something that is not finite in each
NUMBERS = ("task", *losses.TERMS, "bad_task", *(f"bad_{term}" for term in losses.TERMS), "stop")
BAD = slice(1 + len(losses.TERMS), 2 * (1 + len(losses.TERMS)))


class Stepper:
    """All that a step needs and keeps from one to the next."""

    def __init__(
        self,
        lm: GraphMemoryLM,
        model: nn.Module,
        optimizer: torch.optim.AdamW,
        batches: TrainBatches,
        schedule: Schedule,
        parallel: Parallel,
    ) -> None:
        self.lm, self.model, self.optimizer, self.batches = lm, model, optimizer, batches
        self.schedule, self.parallel = schedule, parallel
        self.cfg: GMTConfig = lm.cfg
        self.good = torch.ones((), device=parallel.device)  # falls to 0 at the first bad number, and stays
        self.skips_on_device = skips_on_device(optimizer, parallel.device)
        train = self.cfg.train
        self.graphs = train.graphs and train.compile and parallel.device.type == "cuda" and parallel.world == 1
        self.graph: Graphed | None = None
        # compiled, every pass samples block outputs where these say, so that one graph serves all; only a step that
        # maintains memory says where, and looks at them
        self.positions: Tensor | None = None
        if train.compile and lm.cells:
            shape = (len(lm.cells), self.cfg.memory.slots)
            self.positions = torch.zeros(shape, dtype=torch.long, device=parallel.device)
        self.stopping: Callable[[], bool] = lambda: False  # whether this rank was told to stop; travels with the rest

    def __call__(self, step: int) -> StepRecord:
        lm, parallel, accumulation = self.lm, self.parallel, self.batches.accumulation
        tau, rate = self.schedule.temperature(step), self.schedule.learning_rate(step)
        lm.set_temperature(tau)
        lm.set_aux_weight(self.schedule.aux_weight(step))
        lm.train()
        rows, writes, maintains = [], None, self.schedule.maintains_after(step)
        for micro in range(accumulation):
            last = micro == accumulation - 1
            ids, labels = (_to(part, parallel.device) for part in self.batches.at(step, micro)[:2])
            reseed, mine = self._reseed(step) if last and maintains else (None, None)
            self._seed_dropout(step, micro)
            with parallel.gradients(self.model, last):
                numbers, writes = self._micro_batch(ids, labels, reseed)
            writes = parallel.gather_reseed(writes, mine)
            rows.append(numbers)
        parallel.finish_gradients(lm)
        norm = parallel.clip(lm, self.cfg.train.clip)
        self.good.mul_(torch.isfinite(norm))
        masked_step(self.optimizer, rate, self.good, self.skips_on_device)
        self.optimizer.zero_grad(set_to_none=self.graph is None)  # a graph writes gradients where it found them
        usage = usage_diagnostics(writes.mean_usage, writes.slot_count) if writes is not None else None
        dead = torch.zeros(())
        if lm.cells:
            dead = (torch.stack([cell.usage for cell in lm.cells]) < self.cfg.dead_below).sum()
        record = StepRecord(step, rate, tau, torch.stack(rows).detach(), norm.detach(), self.good.clone(), usage, dead)
        if writes is not None and maintains:
            self._maintain(writes, step, record)
        return record

    def _micro_batch(self, ids: Tensor, labels: Tensor, reseed: Tensor | None) -> tuple[Tensor, Writes | None]:
        """Forward, backward, commit: replayed where they were recorded."""
        if self.positions is not None:
            if reseed is not None:
                self.positions.copy_(reseed)
            reseed = self.positions
        if not self.graphs:
            numbers, writes = self._work(ids, labels, reseed)
        else:
            if self.graph is None:
                work = self._alone if self.batches.accumulation == 1 else self._one_of_several
                self.graph = Graphed(work, self.lm, ids, labels, [self.good])
            numbers, writes = self.graph(ids, labels)
            numbers = numbers.clone()  # the next replay writes there again
        if self.stopping():
            numbers[-1] = 1.0 if self.parallel.world == 1 else numbers[-1]
        return numbers, writes

    def _alone(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Writes | None]:
        """The only micro-batch of a step: its gradients are written, not added to what is there."""
        self.lm.zero_grad()
        return self._work(ids, labels, self.positions)

    def _one_of_several(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Writes | None]:
        return self._work(ids, labels, self.positions)

    def _work(self, ids: Tensor, labels: Tensor, reseed: Tensor | None) -> tuple[Tensor, Writes | None]:
        out = self._forward(ids, labels, reseed)
        writes, numbers = self.parallel.share(out.writes, self._numbers(out))
        loss = self._objective(out, writes, numbers) / self.batches.accumulation
        self.good.mul_(numbers[BAD].sum() == 0)
        loss.backward()
        self.lm.commit(writes, self.good > 0)  # after this micro-batch's backward, before the next forward
        return numbers, None if writes is None else writes._replace(usage_sum=writes.usage_sum.detach())

    def _forward(self, ids: Tensor, labels: Tensor, reseed: Tensor | None) -> LMOutput:
        with autocast(self.parallel.device, self.cfg.train.precision):
            return self.model(ids, labels, reseed=reseed, return_logits=False)

    def _numbers(self, out: LMOutput) -> Tensor:
        """This rank's share of each part, and a mark beside each that is not finite."""
        assert out.task_loss is not None
        parts = [out.task_loss, *(out.aux.get(term, out.task_loss.new_zeros(())) for term in losses.TERMS)]
        values = torch.stack([part.detach() for part in parts]) / self.parallel.world
        marks = (~torch.isfinite(values)).to(values.dtype)
        return torch.cat([values, marks, values.new_full((1,), float(self.stopping()))])

    def _objective(self, out: LMOutput, writes: Writes | None, numbers: Tensor) -> Tensor:
        """The objective whose gradients, averaged over ranks, are those of one process.

        Means over tokens and terms of parameters average by themselves. The usage term looks at all ranks' tokens
        and each rank has the gradient of its own part alone: those must be summed, so it is taken `world` times.
        Its value takes the place of the ranks' own among the numbers.
        """
        assert out.loss is not None and out.task_loss is not None
        if self.parallel.world == 1 or writes is None:
            return out.loss
        cluster = losses.cluster_loss(writes.mean_usage, self.cfg.cluster_target).mean()
        numbers[NUMBERS.index("cluster")] = cluster.detach()
        return self.lm.objective(out.task_loss, out.aux | {"cluster": cluster * self.parallel.world})

    def _reseed(self, step: int) -> tuple[Tensor, Tensor]:
        """[L, F] positions in this rank's rows whose block outputs may replace a slot, and which of them are its own.

        Drawn over the tokens of all ranks, from (seed, step, block): every rank draws the same.
        """
        local = self.batches.micro_batch // self.parallel.world * self.batches.context
        count, blocks = self.cfg.memory.slots, len(self.lm.cells)
        drawn = [
            reseed_positions(local * self.parallel.world, count, keyed_generator(self.cfg.train.seed, step, block, 1))
            for block in range(blocks)
        ]
        positions = torch.stack(drawn) - self.parallel.rank * local
        mine = (positions >= 0) & (positions < local)
        device = self.parallel.device
        return torch.where(mine, positions, 0).to(device), mine.to(device)

    def _seed_dropout(self, step: int, micro: int) -> None:
        if self.cfg.model.dropout:
            torch.manual_seed(seed_for(self.cfg.train.seed, step, micro, self.parallel.rank))

    def _maintain(self, writes: Writes, step: int, record: StepRecord) -> None:
        if not bool(self.good):  # maintenance looks at memory on the host anyway
            return
        assert writes.reseed is not None
        events = self.lm.maintain(writes.reseed, self.cfg.train.seed, step + 1)
        for cell, event in zip(self.lm.cells, events, strict=True):
            forget_moments(self.optimizer, cell.centroids, event.replaced)
            record.resets += int(event.reset.sum())
            record.merges += int(event.merged.sum())


def _to(array: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
