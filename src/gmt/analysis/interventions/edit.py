"""Edits: small immutable changes at named places of a memory's forward pass. None of them touches a parameter.

Each works on one stage of the cell: its centroids, its transition matrix P, a source or target distribution, or the
displacement; it says for which tokens it fired. `block` None means every block, `rows` None every row of a batch.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

TOUCHED = 1e-3  # of a token, in a slot that is edited


class At(NamedTuple):
    """What an edit may look at: the tokens of the rows it works on, and their way so far."""

    block: int
    ids: Tensor  # [B, T]
    positions: Tensor  # [B, T] places in the text, counted from its beginning
    source: Tensor | None  # [B, T, F]
    target: Tensor | None  # [B, T, F]


class Shape(NamedTuple):
    """What an edit's places are checked against."""

    blocks: int
    slots: int
    vocabulary: int


def spread(value: Tensor, over: Tensor) -> Tensor:
    """value [..., F] as a distribution: scaled to its sum, or even over the slots `over` where nothing is left."""
    total = value.sum(-1, keepdim=True)
    even = over.to(value.dtype) / over.sum()
    return torch.where(total > 0, value / torch.where(total > 0, total, 1), even)


@dataclass(frozen=True)
class Edit:
    stage: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    block: int | None = None
    rows: tuple[int, ...] | None = None

    @property
    def place(self) -> str:
        """The stage it works on."""
        return self.stage

    def apply(self, value: Tensor, at: At) -> Tensor:
        raise NotImplementedError

    def check(self, shape: "Shape") -> None:
        """Raises where a value cannot be what it is in a memory of this shape."""

    def fires(self, at: At) -> Tensor:
        """[B, T] the tokens it is meant for. For an edit of a slot or an edge: those of which the slot holds more than
        a thousandth, since every token is a little everywhere."""
        return torch.ones_like(at.ids, dtype=torch.bool)

    def does_nothing(self) -> bool:
        """An edit that changes nothing is left out altogether, so that not a bit differs."""
        return False

    def slots(self) -> tuple[int, ...]:
        """Slots that it names: checked against the memory before anything runs."""
        return ()

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind} | {name: value for name, value in asdict(self).items() if value is not None}

    def _in_source(self, at: At, slot: int) -> Tensor:
        assert at.source is not None
        return at.source[..., slot] > TOUCHED


def exchange(count: int, seed: int, block: int) -> Tensor:
    """Whose place each slot takes: one round through all slots, drawn from a seed, so that nobody keeps its own."""
    order = torch.randperm(count, generator=drawn_from(seed, block))
    taken = torch.empty_like(order)
    taken[order] = order.roll(1)
    return taken


def drawn_from(seed: int, block: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1009 + block)
