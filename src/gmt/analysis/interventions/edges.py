"""Edits of the graph: P as a whole, or one of its edges."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gmt.analysis.interventions.edit import At, Edit, Shape, drawn_from, exchange, spread
from gmt.errors import GMTError


@dataclass(frozen=True)
class Edges(Edit):
    """P as a whole: `identity` (stay), `uniform`, `shuffled` (rows exchanged) or `random`, the last two from a seed."""

    stage: ClassVar[str] = "transition"
    kind: ClassVar[str] = "edges"
    form: str = "uniform"
    seed: int = 0

    FORMS: ClassVar[tuple[str, ...]] = ("learned", "identity", "uniform", "shuffled", "random")

    def check(self, shape: Shape) -> None:
        if self.form not in self.FORMS:
            raise GMTError(f"edges: there is no form {self.form!r}; there are {', '.join(self.FORMS)}")
        if not 0 <= self.seed < 2**31:
            raise GMTError(f"edges: a seed is a whole number from 0 to {2**31 - 1}, not {self.seed}")

    def does_nothing(self) -> bool:
        return self.form == "learned"

    def apply(self, value: Tensor, at: At) -> Tensor:
        count = value.shape[-1]
        eye = torch.eye(count, dtype=torch.bool, device=value.device)
        if self.form == "identity":
            return eye.to(value.dtype)
        if self.form == "uniform":
            return torch.full_like(value, 1 / (count - 1)).masked_fill(eye, 0)
        if self.form == "shuffled":
            return _exchanged(value, exchange(count, self.seed, at.block).to(value.device))
        logits = torch.randn(count, count, generator=drawn_from(self.seed, at.block)).to(value)
        return logits.masked_fill(eye, -torch.inf).softmax(-1)


def _exchanged(transition: Tensor, taken: Tensor) -> Tensor:
    """Every slot has another slot's row, and still no edge to itself: what the row says of the slot itself goes to
    where the row came from, which had none there."""
    rows, places = transition[taken].clone(), torch.arange(len(transition), device=transition.device)
    rows[places, taken] = rows[places, places]
    rows[places, places] = 0
    return rows


@dataclass(frozen=True)
class SetEdge(Edit):
    """P[source, target] = share, the rest of the row scaled to the rest. 0 cuts the edge."""

    stage: ClassVar[str] = "transition"
    kind: ClassVar[str] = "set-edge"
    source: int = 0
    target: int = 0
    share: float = 0.0

    def slots(self) -> tuple[int, ...]:
        return self.source, self.target

    def check(self, shape: Shape) -> None:
        if not 0 <= self.share <= 1:
            raise GMTError(f"set-edge: a share is from 0 to 1, not {self.share}")
        if self.source == self.target:
            raise GMTError(f"set-edge: slot {self.source} has no edge to itself")

    def apply(self, value: Tensor, at: At) -> Tensor:
        value = value.clone()
        row, others = value[self.source].clone(), torch.ones_like(value[0], dtype=torch.bool)
        row[self.target] = 0
        others[[self.source, self.target]] = False
        if not others.any():  # with two slots there is no other way to go
            return value
        value[self.source] = spread(row, others) * (1 - self.share)
        value[self.source, self.target] = self.share
        return value

    def fires(self, at: At) -> Tensor:
        return self._in_source(at, self.source)


@dataclass(frozen=True)
class Redirect(Edit):
    """What the edge source -> target carries goes to `to` instead."""

    stage: ClassVar[str] = "transition"
    kind: ClassVar[str] = "redirect"
    source: int = 0
    target: int = 0
    to: int = 0

    def slots(self) -> tuple[int, ...]:
        return self.source, self.target, self.to

    def check(self, shape: Shape) -> None:
        if self.source in (self.target, self.to):
            raise GMTError(f"redirect: slot {self.source} has no edge to itself")

    def does_nothing(self) -> bool:
        return self.to == self.target

    def apply(self, value: Tensor, at: At) -> Tensor:
        value = value.clone()
        value[self.source, self.to] += value[self.source, self.target]
        value[self.source, self.target] = 0
        return value

    def fires(self, at: At) -> Tensor:
        return self._in_source(at, self.source)
