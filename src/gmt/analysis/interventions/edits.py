"""Edits: small immutable changes at named places of a memory's forward pass. None of them touches a parameter.

Each works on one stage of the cell: its centroids, its transition matrix P, a source or target distribution, or the
displacement; it says for which tokens it fired. `block` None means every block, `rows` None every row of a batch.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gmt.errors import GMTError


class At(NamedTuple):
    """What an edit may look at: the tokens of the rows it works on, and their way so far."""

    block: int
    ids: Tensor  # [B, T]
    positions: Tensor  # [B, T] places in the text, counted from its beginning
    source: Tensor | None  # [B, T, F]
    target: Tensor | None  # [B, T, F]


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

    def check(self) -> None:
        """Raises where a value cannot be what it is."""

    def fires(self, at: At) -> Tensor:
        """[B, T] the tokens it is meant for. For an edit of a slot or an edge: those whose likeliest slot it is."""
        return torch.ones_like(at.ids, dtype=torch.bool)

    def does_nothing(self) -> bool:
        """An edit that changes nothing is left out altogether, so that not a bit differs."""
        return False

    def slots(self) -> tuple[int, ...]:
        """Slots that it names: checked against the memory before anything runs."""
        return ()

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind} | {name: value for name, value in asdict(self).items() if value is not None}

    def _at_source(self, at: At, slot: int) -> Tensor:
        assert at.source is not None
        return at.source.argmax(-1) == slot


@dataclass(frozen=True)
class Edges(Edit):
    """P as a whole: `identity` (stay), `uniform`, `shuffled` (rows exchanged) or `random`, the last two from a seed."""

    stage: ClassVar[str] = "transition"
    kind: ClassVar[str] = "edges"
    form: str = "uniform"
    seed: int = 0

    FORMS: ClassVar[tuple[str, ...]] = ("learned", "identity", "uniform", "shuffled", "random")

    def check(self) -> None:
        if self.form not in self.FORMS:
            raise GMTError(f"edges: there is no form {self.form!r}; there are {', '.join(self.FORMS)}")

    def does_nothing(self) -> bool:
        return self.form == "learned"

    def apply(self, value: Tensor, at: At) -> Tensor:
        count = value.shape[-1]
        eye = torch.eye(count, dtype=torch.bool, device=value.device)
        if self.form == "identity":
            return eye.to(value.dtype)
        if self.form == "uniform":
            return torch.full_like(value, 1 / (count - 1)).masked_fill(eye, 0)
        generator = torch.Generator().manual_seed(self.seed * 1009 + at.block)
        if self.form == "shuffled":
            return value[torch.randperm(count, generator=generator).to(value.device)]
        logits = torch.randn(count, count, generator=generator).to(value)
        return logits.masked_fill(eye, -torch.inf).softmax(-1)


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

    def check(self) -> None:
        if not 0 <= self.share <= 1:
            raise GMTError(f"set-edge: a share is from 0 to 1, not {self.share}")

    def apply(self, value: Tensor, at: At) -> Tensor:
        value = value.clone()
        row = value[self.source].clone()
        row[self.target] = 0
        value[self.source] = row * ((1 - self.share) / row.sum().clamp_min(1e-12))
        value[self.source, self.target] = self.share
        return value

    def fires(self, at: At) -> Tensor:
        return self._at_source(at, self.source)


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

    def does_nothing(self) -> bool:
        return self.to == self.target

    def apply(self, value: Tensor, at: At) -> Tensor:
        value = value.clone()
        value[self.source, self.to] += value[self.source, self.target]
        value[self.source, self.target] = 0
        return value

    def fires(self, at: At) -> Tensor:
        return self._at_source(at, self.source)


@dataclass(frozen=True)
class _SlotEdit(Edit):
    slot: int = 0
    role: str = "source"  # or target

    @property
    def place(self) -> str:
        return self.role

    def check(self) -> None:
        if self.role not in ("source", "target"):
            raise GMTError(f"{self.kind}: a role is source or target, not {self.role!r}")

    def slots(self) -> tuple[int, ...]:
        return (self.slot,)

    def fires(self, at: At) -> Tensor:
        found = at.source if self.role == "source" else at.target
        assert found is not None
        return found.argmax(-1) == self.slot


@dataclass(frozen=True)
class Ablate(_SlotEdit):
    """No token is in the slot (as a source) or goes there (as a target): its share goes to the others."""

    kind: ClassVar[str] = "ablate"

    def apply(self, value: Tensor, at: At) -> Tensor:
        value = value.clone()
        value[..., self.slot] = 0
        return value / value.sum(-1, keepdim=True).clamp_min(1e-12)


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
class Scale(Edit):
    """The displacement times alpha: of all tokens, or of those that stand in a slot, have one of these ids, or stand at
    one of these places."""

    stage: ClassVar[str] = "displacement"
    kind: ClassVar[str] = "scale"
    alpha: float = 1.0
    slot: int | None = None
    ids: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    def check(self) -> None:
        if not math.isfinite(self.alpha):
            raise GMTError(f"scale: alpha is a number, not {self.alpha}")

    def slots(self) -> tuple[int, ...]:
        return () if self.slot is None else (self.slot,)

    def does_nothing(self) -> bool:
        return self.alpha == 1

    def fires(self, at: At) -> Tensor:
        found = torch.ones_like(at.ids, dtype=torch.bool)
        if self.slot is not None:
            found = found & self._at_source(at, self.slot)
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

    def fires(self, at: At) -> Tensor:
        wanted = torch.tensor([here for here, _ in self.places], device=at.positions.device)
        return torch.isin(at.positions, wanted)

    def apply(self, value: Tensor, at: At) -> Tensor:
        routes = self.source if at.target is None else self.target
        assert routes is not None
        value = value.clone()
        for here, there in self.places:
            value[at.positions == here] = routes[at.block, there].to(value)
        return value / value.sum(-1, keepdim=True)  # a trace keeps its distributions in float16

    def to_json(self) -> dict[str, Any]:
        raise GMTError("a patch holds the routes of a trace, and cannot be written as JSON")


KINDS: dict[str, type[Edit]] = {
    cls.kind: cls for cls in (Edges, SetEdge, Redirect, Ablate, Pin, MoveCentroid, SwapCentroids, Scale)
}
