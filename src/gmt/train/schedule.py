"""Everything that is a function of the step: learning rate, temperature, and when things happen."""

import math
from dataclasses import dataclass

from gmt.config import GMTConfig
from gmt.memory.temperature import aux_weight, temperature

LONG_RUN, PAPER_WARMUP = 20_000, 2_000


@dataclass(frozen=True)
class Schedule:
    cfg: GMTConfig
    steps_per_epoch: int

    @property
    def steps(self) -> int:
        """S, the planned optimizer steps."""
        return self.cfg.train.steps or self.cfg.train.epochs * self.steps_per_epoch

    @property
    def warmup(self) -> int:
        given = self.cfg.train.warmup
        if given is not None:
            return given
        return PAPER_WARMUP if self.steps >= LONG_RUN else min(PAPER_WARMUP, self.steps // 10)

    def learning_rate(self, step: int) -> float:
        """With `step` completed steps: linear from 0 over the warm-up, then half a cosine to 0."""
        peak, warmup = self.cfg.train.learning_rate, self.warmup
        if step < warmup:
            return peak * step / warmup
        return peak * (1 + math.cos(math.pi * (step - warmup) / max(self.steps - warmup, 1))) / 2

    def temperature(self, step: int) -> float:
        tau = self.cfg.temperature
        return temperature(step, self.steps, tau.max, tau.min, tau.schedule)

    def aux_weight(self, step: int) -> float:
        return aux_weight(step, self.steps, self.cfg.losses.begin, self.cfg.losses.full)

    def maintains_after(self, step: int) -> bool:
        """Whether memory is maintained once step `step` (from 0) is done: after every 110th."""
        every = self.cfg.maintenance.every
        return self.cfg.model.sublayer == "memory" and every > 0 and (step + 1) % every == 0

    @property
    def validation_every(self) -> int:
        """Steps between validations; 0 for none."""
        given, per_epoch = self.cfg.validation.every, self.cfg.validation.per_epoch
        if given is not None:
            return given
        return max(1, self.steps_per_epoch // per_epoch) if per_epoch else 0

    def validates_at(self, done: int) -> bool:
        """After `done` completed steps, and always at the end."""
        every = self.validation_every
        return every > 0 and (done % every == 0 or done == self.steps)

    def saves_at(self, done: int) -> bool:
        every = self.cfg.save.every
        return done == self.steps or (done % every == 0 if every else self.validates_at(done))
