"""The frozen path: the same numbers, made once, and never stale."""

import copy

import pytest
import torch

from gmt.memory.cell import MemoryCell
from tests.conftest import batch_of, small_model


def frozen(lm, ids, **kwargs):
    with torch.no_grad():
        return lm(ids, observe=False, return_routes=True, **kwargs)


def plain(lm, ids):
    """With gradients on, the cell computes everything from memory itself."""
    return lm(ids, observe=False, return_routes=True)


def assert_agree(lm, ids, **tolerance):
    fast, slow = frozen(lm, ids), plain(lm, ids)
    torch.testing.assert_close(fast.logits, slow.logits.detach(), **tolerance)
    for a, b in zip(fast.routes, slow.routes, strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y.detach(), **tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, {"rtol": 0, "atol": 1e-12}), (torch.float32, {"rtol": 0, "atol": 2e-5})],
)
def test_the_frozen_path_is_the_plain_one(dtype, tolerance):
    lm = small_model(dtype=dtype).eval()
    assert_agree(lm, batch_of(lm)[0], **tolerance)


def test_a_single_token_goes_its_own_way_to_the_same_numbers():
    lm = small_model().eval()
    ids = batch_of(lm)[0][:1, :1]
    assert_agree(lm, ids, rtol=0, atol=1e-12)
    with torch.no_grad():  # the floor of the distance, and a state of length zero
        for block in lm.blocks:
            block.norm2.weight.zero_()
            block.norm2.bias.copy_(block.memory.norm_centroids(block.memory.centroids)[2])
    assert_agree(lm, ids, rtol=0, atol=1e-12)
    with torch.no_grad():
        lm.blocks[0].norm2.bias.zero_()
    assert_agree(lm, ids, rtol=0, atol=1e-12)


def test_it_follows_autocast():
    lm = small_model(dtype=torch.float32).eval()
    ids = batch_of(lm)[0]
    whole = frozen(lm, ids).logits
    with torch.autocast("cpu", torch.bfloat16):
        rounded, slow = frozen(lm, ids).logits, plain(lm, ids).logits
    assert not torch.equal(rounded.float(), whole), "tables made in float32 were used under autocast"
    torch.testing.assert_close(rounded.float(), slow.detach().float(), rtol=0.1, atol=0.1)
    assert torch.equal(frozen(lm, ids).logits, whole)


def test_tables_are_made_once(monkeypatch):
    lm = small_model().eval()
    ids = batch_of(lm)[0]
    made = []
    tables = MemoryCell.tables
    monkeypatch.setattr(MemoryCell, "tables", lambda self, dtype: made.append(self) or tables(self, dtype))
    for _ in range(3):
        frozen(lm, ids)
    assert len(made) == len(lm.cells)
    lm.commit(lm(ids).writes)
    made.clear()
    for _ in range(3):
        frozen(lm, ids)
    assert len(made) == len(lm.cells)


def edits():
    def in_place(cell):
        with torch.no_grad():
            cell.centroids[0] += 1

    def through_data(cell):
        cell.centroids.data[0] += 1

    def new_data(cell):
        cell.edges.data = cell.edges.data.flip(0)

    def new_parameter(cell):
        cell.gate = torch.nn.Parameter(cell.gate.detach() + 1)

    def in_inference_mode(cell):
        with torch.inference_mode():
            cell.edges.mul_(2)

    def query(cell):
        torch.nn.init.normal_(cell.query.weight)

    def norm(cell):
        cell.norm_displacement.bias.data += 1

    def key(cell):
        with torch.no_grad():
            cell.key.weight.zero_()

    def swapped(cell):
        state = {name: t + 0.25 if name == "norm_centroids.weight" else t for name, t in cell.state_dict().items()}
        cell.load_state_dict(state)

    return [in_place, through_data, new_data, new_parameter, in_inference_mode, query, norm, key, swapped]


@pytest.mark.parametrize("edit", edits(), ids=lambda f: f.__name__)
def test_never_stale(edit):
    lm = small_model().eval()
    ids = batch_of(lm)[0]
    before = frozen(lm, ids).logits
    edit(lm.cells[1])
    assert not torch.equal(frozen(lm, ids).logits, before), "the edit was not seen"
    assert_agree(lm, ids, rtol=0, atol=1e-12)


def test_a_write_between_two_generated_tokens_is_seen():
    from transformers import DynamicCache

    lm = small_model().eval()
    ids = batch_of(lm)[0]
    cache, untouched = DynamicCache(), DynamicCache()
    frozen(lm, ids, cache=cache), frozen(lm, ids, cache=untouched)
    before = frozen(lm, ids[:, :1], cache=untouched).logits
    with torch.no_grad():
        lm.cells[0].centroids.mul_(-1)
    after = frozen(lm, ids[:, :1], cache=cache).logits
    assert not torch.allclose(after, before)


def test_a_copy_and_a_cast_have_tables_of_their_own():
    lm = small_model(dtype=torch.float32).eval()
    ids = batch_of(lm)[0]
    frozen(lm, ids)
    twin = copy.deepcopy(lm)
    with torch.no_grad():
        twin.cells[0].edges.neg_()
    assert_agree(twin, ids, rtol=0, atol=2e-5)
    assert_agree(lm, ids, rtol=0, atol=2e-5)
    assert_agree(lm.double(), ids, rtol=0, atol=1e-12)


def test_frozen_tables_are_no_part_of_the_state():
    lm = small_model().eval()
    names = set(lm.state_dict())
    frozen(lm, batch_of(lm)[0])
    assert set(lm.state_dict()) == names


def test_a_prompt_of_one_token_begins_a_text_too():
    from transformers import DynamicCache

    lm = small_model().eval()
    ids = batch_of(lm)[0][:, :1]
    before = frozen(lm, ids, cache=DynamicCache()).logits
    for cell in lm.cells:
        cell.centroids.data.mul_(-1)
    after = frozen(lm, ids, cache=DynamicCache()).logits
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, plain(lm, ids).logits.detach(), rtol=0, atol=1e-12)


def test_surgery_that_works_with_gradients_works_without():
    """A pruned or reparametrised tensor is no parameter any more."""
    from torch.nn.utils import parametrizations, prune

    lm = small_model().eval()
    ids = batch_of(lm)[0]
    frozen(lm, ids)
    prune.l1_unstructured(lm.cells[0].query, "weight", 0.5)
    parametrizations.weight_norm(lm.cells[1].key)
    prune.random_unstructured(lm.cells[1], "centroids", 0.3)
    for _ in range(2):
        assert_agree(lm, ids, rtol=0, atol=1e-12)
