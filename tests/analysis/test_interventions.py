"""Every edit against numbers worked out in loops; nothing stays behind; cached and uncached agree."""

import json
import math

import numpy as np
import pytest
import torch

from gmt.analysis.interventions import (
    Ablate,
    Edges,
    MoveCentroid,
    Patch,
    Pin,
    RandomCentroids,
    Redirect,
    Scale,
    SetEdge,
    ShuffleCentroids,
    SwapCentroids,
    from_json,
    intervene,
)
from gmt.errors import GMTError
from tests import oracle
from tests.conftest import assert_same, batch_of, small_model, snapshot

TAU = 0.4


@pytest.fixture
def lm():
    return small_model().eval()


def by_hand(cell, z, change):
    """Displacements [T, H] of tokens z [T, H] in float64 loops; `change` says what differs, stage by stage."""
    w = {name: p.detach().double().numpy() for name, p in cell.named_parameters()}
    centroids = change.get("centroids", lambda c: c)(w["centroids"].copy())
    states = [oracle.layer_norm(c, w["norm_centroids.weight"], w["norm_centroids.bias"]) for c in centroids]
    p = change.get("transition", lambda p: p)(oracle.transition(w["edges"]))
    rows = []
    for place, token in enumerate(z):
        distances = [max(1 - float(oracle.unit(token) @ oracle.unit(state)), 0.01) for state in states]
        source = change.get("source", lambda s: s)(oracle.softmax([1 / (TAU * d) for d in distances]))
        query = w["query.weight"] @ token
        context = [float(query @ (w["key.weight"] @ state)) / math.sqrt(len(query)) for state in states]
        edge = [sum(source[i] * p[i, j] for i in range(len(states))) for j in range(len(states))]
        target = oracle.softmax([e + c for e, c in zip(edge, context, strict=True)])
        target = change.get("target", lambda t: t)(target)
        difference = sum((target[i] - source[i]) * states[i] for i in range(len(states)))
        normed = oracle.layer_norm(difference, w["norm_displacement.weight"], w["norm_displacement.bias"])
        scale = change.get("displacement", lambda place, source: 1.0)(place, source)
        rows.append(oracle.sigmoid(w["gate"]) * normed * scale)
    return np.array(rows)


def assert_by_hand(lm, edits, change, block=1):
    """The block's displacements under the edits are those worked out by hand from the z that it was given."""
    ids, _ = batch_of(lm, rows=1)
    kept = []
    hook = lm.blocks[block].memory.register_forward_pre_hook(lambda module, args: kept.append(args[1]))
    with torch.no_grad(), intervene(lm, edits) as fired:
        routes = lm(ids, tau=TAU, return_routes=True, observe=False).routes
    hook.remove()
    wanted = by_hand(lm.cells[block], kept[0][0].double().numpy(), change)
    np.testing.assert_allclose(routes[block].displacement[0].numpy(), wanted, rtol=1e-9, atol=1e-10)
    with torch.no_grad():
        plain = lm(ids, tau=TAU, return_routes=True, observe=False).routes
    assert not torch.allclose(plain[block].displacement, routes[block].displacement), "the edit changes something"
    return fired


def changed(value, **places):
    value = value.copy()
    for key, new in places.items():
        value[int(key[1:])] = new
    return value


def renormed(p, slot):
    p = p.copy()
    p[slot] = 0
    return p / p.sum()


def test_edges_identity_and_uniform(lm):
    assert_by_hand(lm, [Edges(1, form="identity")], {"transition": lambda p: np.eye(5)})
    assert_by_hand(lm, [Edges(1, form="uniform")], {"transition": lambda p: (1 - np.eye(5)) / 4})


def test_edges_shuffled_are_the_learned_rows_and_random_ones_are_rows_of_a_softmax(lm):
    p = torch.from_numpy(oracle.transition(lm.cells[1].edges.detach().numpy()))
    at = type("At", (), {"block": 1})()
    shuffled = Edges(form="shuffled", seed=3).apply(p, at)
    assert torch.equal(shuffled.diagonal(), torch.zeros(5, dtype=torch.float64)), "still no edge to itself"
    rows = {tuple(sorted(row)) for row in p.tolist()}
    assert {tuple(sorted(row)) for row in shuffled.tolist()} == rows, "the same rows, each somewhere else"
    for old, new in zip(p.tolist(), shuffled.tolist(), strict=True):
        assert sorted(old) != sorted(new), "nobody keeps its own"
    random = Edges(form="random", seed=3).apply(p, at)
    torch.testing.assert_close(random.sum(-1), torch.ones(5, dtype=torch.float64))
    assert torch.equal(random.diagonal(), torch.zeros(5, dtype=torch.float64))
    assert torch.equal(random, Edges(form="random", seed=3).apply(p, at)), "a seed is a seed"
    assert not torch.equal(random, Edges(form="random", seed=4).apply(p, at))
    assert_by_hand(lm, [Edges(1, form="shuffled", seed=3)], {"transition": lambda q: shuffled.numpy()})


def test_set_cut_and_redirect_an_edge(lm):
    def set_edge(share):
        def change(p):
            row = p[2].copy()
            row[4] = 0
            row = row / row.sum() * (1 - share)
            row[4] = share
            return changed(p, _2=row)

        return change

    assert_by_hand(lm, [SetEdge(1, source=2, target=4, share=0.7)], {"transition": set_edge(0.7)})
    assert_by_hand(lm, [SetEdge(1, source=2, target=4)], {"transition": set_edge(0.0)})

    def redirected(p):
        row = p[2].copy()
        row[0] += row[4]
        row[4] = 0
        return changed(p, _2=row)

    assert_by_hand(lm, [Redirect(1, source=2, target=4, to=0)], {"transition": redirected})


@pytest.mark.parametrize("role", ["source", "target"])
def test_ablate_and_pin_a_slot(lm, role):
    assert_by_hand(lm, [Ablate(1, slot=3, role=role)], {role: lambda p: renormed(p, 3)})
    assert_by_hand(lm, [Pin(1, slot=3, role=role)], {role: lambda p: np.eye(5)[3]})


@pytest.mark.parametrize("role", ["source", "target"])
def test_a_distribution_stays_one_also_where_nothing_is_left(lm, role):
    """A token that is wholly in the silenced slot is spread over the others."""
    ids, _ = batch_of(lm, rows=1)
    with torch.no_grad(), intervene(lm, [Pin(1, slot=3, role=role), Ablate(1, slot=3, role=role)]) as fired:
        route = lm(ids, tau=TAU, return_routes=True, observe=False).routes[1]
    wanted = torch.tensor([0.25, 0.25, 0.25, 0.0, 0.25], dtype=torch.float64).expand(1, 6, 5)
    torch.testing.assert_close(getattr(route, role), wanted)
    assert fired.counts == [6, 6]


def test_edges_of_two_slots_and_of_a_spent_row():
    from gmt.analysis.interventions.edit import At

    at = At(0, torch.zeros(1, 1), torch.zeros(1, 1), None, None)
    two = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert torch.equal(SetEdge(source=0, target=1).apply(two, at), two), "there is no other way to go"
    spent = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0, 0, 0], [1.0, 0, 0, 0], [1.0, 0, 0, 0]])
    cut = SetEdge(source=0, target=1).apply(spent, at)
    assert cut[0].tolist() == [0.0, 0.0, 0.5, 0.5]


def test_centroids_exchanged_and_random(lm):
    at = type("At", (), {"block": 1})()
    own = lm.cells[1].centroids.detach()
    exchanged = ShuffleCentroids(seed=2).apply(own, at)
    assert {tuple(row) for row in exchanged.tolist()} == {tuple(row) for row in own.tolist()}
    assert not (exchanged == own).all(-1).any(), "nobody keeps its own"
    drawn = RandomCentroids(seed=2).apply(own, at)
    torch.testing.assert_close(drawn.norm(dim=-1), own.norm(dim=-1))
    assert not torch.allclose(drawn, own)
    assert_by_hand(lm, [ShuffleCentroids(1, seed=2)], {"centroids": lambda c: exchanged.numpy()})


def test_plainly_and_unedited_is_the_model_itself(lm):
    ids, _ = batch_of(lm)
    with torch.no_grad():
        before = lm(ids, observe=False).logits
        with intervene(lm, [], plainly=True):
            torch.testing.assert_close(lm(ids, observe=False).logits, before, rtol=1e-9, atol=1e-9)
            assert all(cell.edit is not None for cell in lm.cells)
    assert all(cell.edit is None for cell in lm.cells)


def test_move_and_swap_centroids(lm):
    move = [MoveCentroid(1, slot=0, toward=2, share=0.25)]
    assert_by_hand(lm, move, {"centroids": lambda c: changed(c, _0=0.75 * c[0] + 0.25 * c[2])})
    swap = {"centroids": lambda c: changed(c, _1=c[4], _4=c[1])}
    assert_by_hand(lm, [SwapCentroids(1, slot=1, other=4)], swap)


def test_scale_all_a_slot_an_id_a_place(lm):
    ids, _ = batch_of(lm, rows=1)
    assert_by_hand(lm, [Scale(1, alpha=0.5)], {"displacement": lambda place, source: 0.5})
    first = int(ids[0, 1])
    some = {"displacement": lambda place, source: 3.0 if int(ids[0, place]) == first else 1.0}
    fired = assert_by_hand(lm, [Scale(1, alpha=3.0, ids=(first,))], some)
    assert fired.counts == [int((ids == first).sum())]
    two = {"displacement": lambda place, source: 0.0 if place in (2, 4) else 1.0}
    assert assert_by_hand(lm, [Scale(1, alpha=0.0, positions=(2, 4))], two).counts == [2]
    with torch.no_grad():
        slot = int(lm(ids, tau=TAU, return_routes=True, observe=False).routes[1].source[0, 0].argmax())
    there = {"displacement": lambda place, source: 2.0 if source.argmax() == slot else 1.0}
    assert_by_hand(lm, [Scale(1, alpha=2.0, slot=slot)], there)


def test_scale_the_tokens_of_a_word_class(lm):
    classes = ["DET", "NOUN", "VERB", "DET", "NOUN", "PUNCT"]
    edit = Scale.of_class(0.25, "NOUN", classes, block=1)
    wanted = {"displacement": lambda place, source: 0.25 if classes[place] == "NOUN" else 1.0}
    assert assert_by_hand(lm, [edit], wanted).counts == [2]
    with torch.no_grad(), intervene(lm, [Scale.of_class(0.0, "INTJ", classes)]) as fired:
        lm(batch_of(lm, rows=1)[0], observe=False)
    assert fired.never(), "a class that no token has is said"


def test_edits_compose_in_their_order(lm):
    both = {"source": lambda p: renormed(p, 3), "displacement": lambda place, source: 0.5}
    fired = assert_by_hand(lm, [Ablate(1, slot=3), Scale(1, alpha=0.25), Scale(1, alpha=2.0)], both)
    assert fired.counts[1:] == [6, 6]


def test_identity_edits_change_no_bit(lm):
    ids, _ = batch_of(lm)
    nothing = [
        Edges(form="learned"), Scale(alpha=1.0), MoveCentroid(slot=1, toward=2, share=0.0),
        SwapCentroids(slot=2, other=2), Redirect(source=1, target=2, to=2),
    ]  # fmt: skip
    with torch.no_grad():
        before = lm(ids, observe=False).logits
        with intervene(lm, nothing) as fired:
            assert torch.equal(lm(ids, observe=False).logits, before)
    assert fired.never() == []


def test_the_model_is_bit_identical_afterwards_also_after_an_exception(lm):
    ids, _ = batch_of(lm)
    kept, before = snapshot(lm), lm(ids, observe=False).logits
    edits = [Edges(form="random"), Pin(0, slot=1), SwapCentroids(1, slot=0, other=1), Scale(alpha=0.0)]

    def fail() -> None:
        with intervene(lm, edits):
            assert not torch.equal(lm(ids, observe=False).logits, before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert_same(lm, kept)
    assert torch.equal(lm(ids, observe=False).logits, before)
    assert all(cell.edit is None for cell in lm.cells) and not lm._forward_pre_hooks


def test_rows_of_a_batch_carry_different_edits(lm):
    ids, _ = batch_of(lm, rows=4)
    edits = [Ablate(1, rows=(1,), slot=2), Scale(0, rows=(2,), alpha=0.3), Edges(rows=(1, 2), form="uniform")]
    with torch.no_grad():
        with intervene(lm, edits) as fired:
            together = lm(ids, observe=False).logits
        for row in range(4):
            alone = [type(e)(**{**vars(e), "rows": None}) for e in edits if row in e.rows]
            with intervene(lm, alone):
                one = lm(ids[row : row + 1], observe=False).logits
            torch.testing.assert_close(together[row : row + 1], one, rtol=1e-9, atol=1e-9)
    assert fired.counts[1] == 6 and fired.counts[2] == 2 * 2 * 6


def test_cached_generation_is_the_uncached_one(lm):
    """Also for edits that look at the place of a token."""
    from transformers import DynamicCache

    ids, _ = batch_of(lm, rows=1, length=7)
    edits = [Edges(0, form="uniform"), Ablate(1, slot=0, role="target"), Scale(1, alpha=-1.0, positions=(5, 6))]
    with torch.no_grad(), intervene(lm, edits):
        whole = lm(ids, observe=False).logits
        cache, parts = DynamicCache(), []
        for start, end in ((0, 3), (3, 4), (4, 5), (5, 6), (6, 7)):
            parts.append(lm(ids[:, start:end], observe=False, cache=cache).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)


def test_routes_of_another_text(lm):
    """A patched token moves exactly as the other one did; its own trace changes nothing."""
    from gmt.analysis.trace import Trace

    ids, _ = batch_of(lm, rows=1)
    other, _ = batch_of(lm, rows=1, seed=5)
    with torch.no_grad():
        found = {}
        for name, text in (("mine", ids), ("other", other)):
            routes = lm(text, tau=TAU, return_routes=True, observe=False).routes
            arrays = {key: torch.cat([getattr(r, key) for r in routes]).numpy() for key in ("source", "target")}
            found[name] = Trace({"name": name}, arrays | {"ids": text[0].numpy()})
        with intervene(lm, [Patch.from_trace(found["other"], {2: 4}, block=1)]) as fired:
            patched = lm(ids, tau=TAU, return_routes=True, observe=False).routes[1]
        assert fired.counts == [1]
        np.testing.assert_allclose(patched.source[0, 2], found["other"].source[1, 4], atol=1e-6)
        np.testing.assert_allclose(patched.target[0, 2], found["other"].target[1, 4], atol=1e-6)
        np.testing.assert_allclose(patched.source[0, 3], found["mine"].source[1, 3], atol=1e-6)
        with intervene(lm, [Patch.from_trace(found["mine"], {n: n for n in range(6)})]):
            frozen = lm(ids, tau=TAU, observe=False).logits
        torch.testing.assert_close(frozen, lm(ids, tau=TAU, observe=False).logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(GMTError, match="has 6 tokens, and none at place 9"):
        Patch.from_trace(found["other"], {0: 9})


def test_an_edit_that_never_fired_is_said(lm):
    ids, _ = batch_of(lm, rows=1)
    unused = Scale(alpha=2.0, positions=(15,))
    with torch.no_grad(), intervene(lm, [unused, Scale(alpha=2.0)]) as fired:
        lm(ids, observe=False)
    assert fired.never() == [unused] and fired.counts == [0, 2 * 6]


def test_padding_is_not_counted(lm):
    ids, _ = batch_of(lm, rows=2)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, :4] = False
    with torch.no_grad(), intervene(lm, [Scale(0, alpha=0.5)]) as fired:
        lm(ids, mask=mask, observe=False)
    assert fired.counts == [8]


def test_writes_can_be_observed_under_an_edit(lm):
    ids, labels = batch_of(lm)
    with intervene(lm, [Pin(slot=2)]):
        out = lm(ids, labels)
    assert out.writes.slot_count[:, 2].tolist() == [12, 12], "every token stands in the pinned slot"
    out.loss.backward()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Scale(7, alpha=0.0), "scale: there is no block 7; there are 0 to 1"),
        (Ablate(slot=5), "ablate: there is no slot 5; there are 0 to 4"),
        (SetEdge(source=-1), "there is no slot -1"),
        (SetEdge(source=0, target=1, share=1.5), "a share is from 0 to 1, not 1.5"),
        (Edges(form="round"), "there is no form 'round'"),
        (Pin(slot=0, role="neither"), "a role is source or target"),
        (Scale(alpha=math.nan), "alpha is a number, not nan"),
        (Scale(alpha=0.0, ids=(11,)), "there is no token 11; there are 0 to 10"),
        (Scale(alpha=0.0, rows=(-1,)), "rows are counted from 0"),
        (MoveCentroid(slot=0, toward=1, share=math.nan), "a share is a number"),
        (SetEdge(source=2, target=2), "slot 2 has no edge to itself"),
        (Redirect(source=2, target=1, to=2), "slot 2 has no edge to itself"),
        (Edges(form="random", seed=10**20), "a seed is a whole number from 0"),
        (Patch(places=((0, 0),)), "the routes are not those of 2 blocks with 5 slots each"),
    ],
)
def test_an_unknown_place_is_refused_before_anything_runs(lm, edit, message):
    with pytest.raises(GMTError, match=message), intervene(lm, [edit]):
        pytest.fail("the context was entered")


def test_two_contexts_at_once_and_a_model_without_memory_are_refused(lm):
    again = pytest.raises(GMTError, match="already has an active intervention")
    with intervene(lm, [Scale(alpha=0.0)]), again, intervene(lm, []):
        pass
    with pytest.raises(GMTError, match="no memory"), intervene(small_model("model.sublayer=dense"), []):
        pass


def test_edits_go_to_json_and_back():
    edits = [
        Edges(form="random", seed=4), SetEdge(1, source=2, target=0, share=0.5), Redirect(0, source=1, target=2, to=3),
        Ablate(slot=3, role="target"), Pin(1, (0, 2), slot=1), MoveCentroid(slot=1, toward=2, share=0.5),
        SwapCentroids(slot=0, other=1), Scale(alpha=0.5, ids=(3, 4), positions=(1,)),
    ]  # fmt: skip
    assert from_json(json.loads(json.dumps([edit.to_json() for edit in edits]))) == edits


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({}, "a list of objects"),
        ([3], "there is no edit None"),
        ([{"kind": ["x"]}], "there is no edit"),
        ([{"kind": "explode"}], "there is no edit 'explode'; there are edges"),
        ([{"kind": "scale", "beta": 1}], "scale has no 'beta'"),
        ([{"kind": "scale", "alpha": "x"}], "scale: alpha cannot be 'x'"),
        ([{"kind": "scale", "alpha": math.nan}], "alpha cannot be nan"),
        ([{"kind": "ablate", "slot": 1.5}], "slot cannot be 1.5"),
        ([{"kind": "ablate", "slot": True}], "slot cannot be True"),
        ([{"kind": "scale", "alpha": 0, "ids": ["a"]}], "ids cannot be"),
    ],
)
def test_json_from_outside_is_not_believed(items, message):
    with pytest.raises(GMTError, match=message):
        from_json(items)
