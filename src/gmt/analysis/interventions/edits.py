"""Edits of slots, centroids, displacements and routes; and the list of all kinds."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gmt.analysis.interventions.edges import Edges, Redirect, SetEdge
from gmt.analysis.interventions.edit import TOUCHED, At, Edit, Shape, drawn_from, exchange, spread
from gmt.errors import GMTError


@dataclass(frozen=True)
class _SlotEdit(Edit):
    slot: int = 0
    role: str = "source"  # or target

    @property
    def place(self) -> str:
        return self.role

    def check(self, shape: Shape) -> None:
        if self.role not in ("source", "target"):
            raise GMTError(f"{self.kind}: a role is source or target, not {self.role!r}")

    def slots(self) -> tuple[int, ...]:
        return (self.slot,)

    def fires(self, at: At) -> Tensor:
        found = at.source if self.role == "source" else at.target
        assert found is not None
        return found[..., self.slot] > TOUCHED


@dataclass(frozen=True)
class Ablate(_SlotEdit):
    """No token is in the slot (as a source) or goes there (as a target): its share goes to the others."""

    kind: ClassVar[str] = "ablate"

    def apply(self, value: Tensor, at: At) -> Tensor:
        others = torch.arange(value.shape[-1], device=value.device) != self.slot
        return spread(value * others, others)


@dataclass(frozen=True)
class Pin(_SlotEdit):
    """Every token is wholly in the slot, or goes wholly there."""

    kind: ClassVar[str] = "pin"

    def apply(self, value: Tensor, at: At) -> Tensor:
        value = torch.zeros_like(value)
        value[..., self.slot] = 1
        return value

    def fires(self, at: At) -> Tensor:
        return torch.ones_like(at.ids, dtype=torch.bool)


@dataclass(frozen=True)
class MoveCentroid(Edit):
    """A centroid goes `share` of the way to another one's place."""

    stage: ClassVar[str] = "centroids"
    kind: ClassVar[str] = "move-centroid"
    slot: int = 0
    toward: int = 0
    share: float = 1.0

    def slots(self) -> tuple[int, ...]:
        return self.slot, self.toward

    def check(self, shape: Shape) -> None:
        if not math.isfinite(self.share):
            raise GMTError(f"move-centroid: a share is a number, not {self.share}")

    def does_nothing(self) -> bool:
        return self.share == 0 or self.slot == self.toward

    def apply(self, value: Tensor, at: At) -> Tensor:
        value = value.clone()
        value[self.slot] = torch.lerp(value[self.slot], value[self.toward], self.share)
        return value


@dataclass(frozen=True)
class SwapCentroids(Edit):
    stage: ClassVar[str] = "centroids"
    kind: ClassVar[str] = "swap-centroids"
    slot: int = 0
    other: int = 0

    def slots(self) -> tuple[int, ...]:
        return self.slot, self.other

    def does_nothing(self) -> bool:
        return self.slot == self.other

    def apply(self, value: Tensor, at: At) -> Tensor:
        value = value.clone()
        value[[self.slot, self.other]] = value[[self.other, self.slot]]
        return value


@dataclass(frozen=True)
class ShuffleCentroids(Edit):
    """Every slot has another slot's centroid, from a seed. Keys are made of centroids and go with them: what changes is
    which places the edges join."""

    stage: ClassVar[str] = "centroids"
    kind: ClassVar[str] = "shuffle-centroids"
    seed: int = 0

    def apply(self, value: Tensor, at: At) -> Tensor:
        return value[exchange(len(value), self.seed, at.block).to(value.device)]


@dataclass(frozen=True)
class RandomCentroids(Edit):
    """Random directions of the same lengths, from a seed: a memory that was never trained."""

    stage: ClassVar[str] = "centroids"
    kind: ClassVar[str] = "random-centroids"
    seed: int = 0

    def apply(self, value: Tensor, at: At) -> Tensor:
        drawn = torch.randn(value.shape, generator=drawn_from(self.seed, at.block)).to(value)
        return drawn * (value.norm(dim=-1, keepdim=True) / drawn.norm(dim=-1, keepdim=True))


@dataclass(frozen=True)
class Scale(Edit):
    """The displacement times alpha: of all tokens, or of those that stand in a slot, have one of these ids, or stand at
    one of these places."""

    stage: ClassVar[str] = "displacement"
    kind: ClassVar[str] = "scale"
    alpha: float = 1.0
    slot: int | None = None
    ids: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    @classmethod
    def of_class(cls, alpha: float, wanted: str, classes: list[str], block: int | None = None) -> "Scale":
        """Of the tokens of a text that have a word class, given the class of each (`gmt.analysis.pos.word_classes`)."""
        return cls(block, alpha=alpha, positions=tuple(place for place, name in enumerate(classes) if name == wanted))

    def check(self, shape: Shape) -> None:
        if not math.isfinite(self.alpha):
            raise GMTError(f"scale: alpha is a number, not {self.alpha}")
        for index in self.ids or ():
            if not 0 <= index < shape.vocabulary:
                raise GMTError(f"scale: there is no token {index}; there are 0 to {shape.vocabulary - 1}")

    def slots(self) -> tuple[int, ...]:
        return () if self.slot is None else (self.slot,)

    def does_nothing(self) -> bool:
        return self.alpha == 1

    def fires(self, at: At) -> Tensor:
        found = torch.ones_like(at.ids, dtype=torch.bool)
        if self.slot is not None:
            assert at.source is not None
            found = found & (at.source.argmax(-1) == self.slot)
        for wanted, values in ((self.ids, at.ids), (self.positions, at.positions)):
            if wanted is not None:
                found = found & torch.isin(values, torch.tensor(wanted, device=values.device))
        return found

    def apply(self, value: Tensor, at: At) -> Tensor:
        return torch.where(self.fires(at)[..., None], value * self.alpha, value)


@dataclass(frozen=True, eq=False)
class Patch(Edit):
    """Tokens at some places take the route that others had, in this text or another: `places` says whose, place by
    place, and `source` and `target` [L, T, F] are the routes of a trace. With the text's own trace it freezes them."""

    stage: ClassVar[str] = "route"
    kind: ClassVar[str] = "patch"
    places: tuple[tuple[int, int], ...] = ()  # (place here, place there)
    source: Tensor | None = None
    target: Tensor | None = None

    @classmethod
    def from_trace(cls, trace: Any, places: dict[int, int], block: int | None = None) -> "Patch":
        routes = (torch.from_numpy(getattr(trace, name)).float() for name in ("source", "target"))
        length = len(trace.ids)
        if wrong := [there for there in places.values() if not 0 <= there < length]:
            raise GMTError(f"the trace {trace.name!r} has {length} tokens, and none at place {wrong[0]}")
        return cls(block, None, tuple(sorted(places.items())), *routes)

    def check(self, shape: Shape) -> None:
        for routes in (self.source, self.target):
            if routes is None or routes.ndim != 3 or routes.shape[0] != shape.blocks or routes.shape[2] != shape.slots:
                raise GMTError(
                    f"patch: the routes are not those of {shape.blocks} blocks with {shape.slots} slots each"
                )
            if any(not 0 <= there < routes.shape[1] for _, there in self.places):
                raise GMTError(f"patch: the routes are of {routes.shape[1]} tokens, and places go beyond them")

    def does_nothing(self) -> bool:
        return not self.places

    def fires(self, at: At) -> Tensor:
        wanted = torch.tensor([here for here, _ in self.places], device=at.positions.device)
        return torch.isin(at.positions, wanted)

    def apply(self, value: Tensor, at: At) -> Tensor:
        routes = self.source if at.target is None else self.target
        assert routes is not None
        value = value.clone()
        for here, there in self.places:
            route = routes[at.block, there].to(value)
            value[at.positions == here] = route / route.sum()  # a trace keeps its distributions in float16
        return value

    def to_json(self) -> dict[str, Any]:
        raise GMTError("a patch holds the routes of a trace, and cannot be written as JSON")


KINDS: dict[str, type[Edit]] = {
    cls.kind: cls
    for cls in (
        Edges,
        SetEdge,
        Redirect,
        Ablate,
        Pin,
        MoveCentroid,
        SwapCentroids,
        ShuffleCentroids,
        RandomCentroids,
        Scale,
    )
}
