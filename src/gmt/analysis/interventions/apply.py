"""Edits at work: for as long as a context lasts, and without a trace after it."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from gmt.analysis.interventions.edit import At, Edit, Shape
from gmt.analysis.interventions.edits import KINDS
from gmt.errors import GMTError
from gmt.hf.load import Loaded
from gmt.memory.cell import MemoryCell, Route, Seen
from gmt.memory.precision import compute_type
from gmt.memory.readout import displacement
from gmt.memory.routing import context_scores, graph_traversal, source_routing, target_selection
from gmt.model.language_model import GraphMemoryLM, count_positions


class Fired:
    """How many tokens each edit was meant for, counted over blocks, while its context lasted."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = tuple(edits)
        self._counts: list[Tensor | int] = [0] * len(edits)

    def add(self, number: int, tokens: Tensor) -> None:
        self._counts[number] = self._counts[number] + tokens.sum()  # on the device: nobody waits for it

    @property
    def counts(self) -> list[int]:
        return [int(count) for count in self._counts]

    def never(self) -> list[Edit]:
        """Those that met no token they are meant for, edits that change nothing left out."""
        return [e for e, count in zip(self.edits, self.counts, strict=True) if not count and not e.does_nothing()]


@contextmanager
def intervene(model: GraphMemoryLM | Loaded, edits: Sequence[Edit], plainly: bool = False) -> Iterator[Fired]:
    """Apply `edits` to the model, in their order, and restore the model on exit.

    `plainly` runs every block in plain PyTorch, edited or not: then two sets of edits differ by the edits only, and not
    by the order of rounding.
    """
    lm = model.lm if isinstance(model, Loaded) else model
    check(lm, edits)
    if any(cell.edit is not None for cell in lm.cells):
        raise GMTError("this model already has an active intervention; pass all edits in one list")
    fired = Fired(edits)
    work = _Work(fired)
    handle = lm.register_forward_pre_hook(work.look, with_kwargs=True)
    taken = []
    try:
        for block, cell in enumerate(lm.cells):
            mine = [n for n, e in enumerate(edits) if e.block in (None, block) and not e.does_nothing()]
            if mine or plainly:
                cell.edit = work.editor(block, mine)
                taken.append(cell)
        yield fired
    finally:
        handle.remove()
        for cell in taken:
            cell.edit = None


def check(lm: GraphMemoryLM, edits: Sequence[Edit]) -> None:
    """Every place that an edit names must be there."""
    blocks, slots = len(lm.cells), lm.cfg.memory.slots
    if not blocks:
        raise GMTError("this model has no memory, and so nothing to intervene in")
    for edit in edits:
        if edit.rows is not None and any(row < 0 for row in edit.rows):
            raise GMTError(f"{edit.kind}: rows are counted from 0")
        if edit.block is not None and not 0 <= edit.block < blocks:
            raise GMTError(f"{edit.kind}: there is no block {edit.block}; there are 0 to {blocks - 1}")
        for slot in edit.slots():
            if not 0 <= slot < slots:
                raise GMTError(f"{edit.kind}: there is no slot {slot}; there are 0 to {slots - 1}")
        edit.check(Shape(blocks, slots, lm.cfg.model.vocab))


def from_json(items: Any) -> list[Edit]:
    """Edits from what `to_json` made of them."""
    if not isinstance(items, list):
        raise GMTError("edits are a list of objects, each with its kind")
    found = []
    for item in items:
        kind = item.get("kind") if isinstance(item, dict) else None
        if not isinstance(kind, str) or kind not in KINDS:
            raise GMTError(f"there is no edit {kind!r}; there are {', '.join(KINDS)}")
        found.append(_made(KINDS[kind], {key: value for key, value in item.items() if key != "kind"}))
    return found


def _made(kind: type[Edit], values: dict[str, Any]) -> Edit:
    """What comes from outside is looked at before it is believed."""
    types = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    for key, value in values.items():
        if key not in known:
            raise GMTError(f"{kind.kind} has no {key!r}; it has {', '.join(known)}")
        if not _fits(value, types[key]):
            raise GMTError(f"{kind.kind}: {key} cannot be {value!r}")
    given: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return kind(**given)


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if hint is NoneType:
        return value is None
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple) and all(_fits(part, int) for part in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, hint) and not isinstance(value, bool)


class _Work:
    """What the edits of one context share: the tokens that are being read, and the counts."""

    def __init__(self, fired: Fired) -> None:
        self.fired = fired
        self.ids = self.positions = torch.empty(0)

    def look(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a forward pass: which tokens it reads, and where they stand."""
        ids = args[0] if args else kwargs["ids"]
        given = dict(zip(("ids", "labels", "mask"), args, strict=False)) | kwargs
        cache, mask, positions = given.get("cache"), given.get("mask"), given.get("positions")
        past = cache.get_seq_length() if cache is not None else 0
        self.ids = ids
        self.positions = count_positions(ids, mask, past) if positions is None else positions.expand(ids.shape)

    def editor(self, block: int, mine: list[int]) -> Any:
        def forward(
            cell: MemoryCell,
            h: Tensor,
            z: Tensor,
            tau: Tensor | float,
            mask: Tensor | None,
            observe: bool,
            reseed: Tensor | None,
        ) -> tuple[Tensor, Route, Seen | None]:
            dtype = compute_type(z)
            parts = [
                (rows, self._route(cell, block, edits, z[rows], tau, _some(mask, rows), rows))
                for rows, edits in self._groups(mine, len(z), z.device)
            ]
            source, target, move = (_joined(parts, place, len(z)) for place in range(3))
            move = move.to(h.dtype)
            out = h + move
            seen = cell.observe(cell.tables(dtype), source, out, mask, reseed, dtype) if observe else None
            return out, Route(source, target, move), seen

        return forward

    def _groups(self, mine: list[int], rows: int, device: torch.device) -> list[tuple[Tensor, list[int]]]:
        """Rows of the batch that have the same edits."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for row in range(rows):
            edits = self.fired.edits
            here = tuple(n for n in mine if (chosen := edits[n].rows) is None or row in chosen)
            groups.setdefault(here, []).append(row)
        return [(torch.tensor(found, device=device), list(here)) for here, found in groups.items()]

    def _route(
        self,
        cell: MemoryCell,
        block: int,
        mine: list[int],
        z: Tensor,
        tau: Tensor | float,
        mask: Tensor | None,
        rows: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """MemoryCell.forward with edits between its lines."""
        dtype, edits = compute_type(z), self.fired.edits
        at = At(block, self.ids[rows], self.positions[rows], None, None)

        def count(number: int, at: At) -> None:
            meant = edits[number].fires(at)
            self.fired.add(number, meant if mask is None else meant & mask)

        def edited(value: Tensor, stage: str, at: At) -> Tensor:
            for number in mine:
                edit = edits[number]
                if edit.place != stage and not (edit.place == "route" and stage in ("source", "target")):
                    continue
                if stage in ("source", "target", "displacement") and (edit.place, stage) != ("route", "target"):
                    met = {stage: value} if stage != "displacement" else {}  # it counts what it meets
                    count(number, at._replace(**met))
                value = edit.apply(value, at)
            return value

        moved = any(edits[n].place == "centroids" for n in mine)
        tables = cell.tables(dtype, edited(cell.centroids, "centroids", at) if moved else None)
        tables = tables._replace(transition=edited(tables.transition, "transition", at))
        source = source_routing(z, tables.directions, tau, cell.cfg.memory.distance_floor, dtype)
        source = edited(source, "source", at)
        at = at._replace(source=source)
        for number in mine:
            if edits[number].place in ("centroids", "transition"):
                count(number, at)
        edge = graph_traversal(source, tables.transition, dtype)
        target = target_selection(edge, context_scores(z, cell.query.weight, tables.keys, dtype))
        target = edited(target, "target", at._replace(target=target))
        at = at._replace(target=target)
        move = displacement(source, target, tables.states, cell.norm_displacement, cell.gate, dtype)
        return source, target, edited(move, "displacement", at)


def _some(mask: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if mask is None else mask[rows]


def _joined(parts: list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]], place: int, rows: int) -> Tensor:
    """The groups' results, each row where it was."""
    if len(parts) == 1:
        return parts[0][1][place]
    first = parts[0][1][place]
    whole = first.new_empty((rows, *first.shape[1:]))
    for chosen, found in parts:
        whole[chosen] = found[place]
    return whole
