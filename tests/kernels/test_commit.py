"""The commit in one launch against the reference's, and against the equation itself."""

import copy
import sys

import pytest
import torch

pytest.importorskip("triton")

from gmt import GraphMemoryLM
from gmt.kernels.commit import commits_fused, fused_commit
from gmt.memory.commit import commit
from gmt.memory.writeback import Writes
from tests.conftest import batch_of, small_config
from tests.kernels.test_constants import changed


def two_models(*settings):
    torch.manual_seed(0)
    lm = GraphMemoryLM(small_config("memory.kernels=fused", *settings))
    with torch.no_grad():
        for index, cell in enumerate(lm.cells):
            cell.momentum.fill_(index - 1.0)
            cell.usage.copy_(torch.rand_like(cell.usage))
    return lm, copy.deepcopy(lm)


def some_writes(lm, tokens=50.0):
    blocks, (slots, hidden) = len(lm.cells), lm.cells[0].centroids.shape
    count = torch.randint(0, 3, (blocks, slots)).float()
    sums = torch.randn(blocks, slots, hidden) * count[..., None]
    return Writes(sums, count, torch.rand(blocks, slots) * 9, torch.tensor(tokens), None)


@pytest.mark.parametrize("keep", [None, True, False])
@pytest.mark.parametrize("settings", [(), ("memory.write_back=false",), ("model.hidden=24", "memory.slots=5")])
@pytest.mark.parametrize("tokens", [50.0, 0.0])
def test_one_launch_writes_what_the_reference_writes(keep, settings, tokens):
    fused, plain = two_models(*settings)
    writes, flag = some_writes(fused, tokens), None if keep is None else torch.tensor(keep)
    assert commits_fused(fused.cells)
    for _ in range(2):
        fused_commit(fused.cells, writes, flag)
        commit(plain.cells, writes, flag)
    for mine, want in zip(fused.cells, plain.cells, strict=True):
        for name in ("centroids", "usage", "age"):
            torch.testing.assert_close(getattr(mine, name), getattr(want, name), rtol=1e-6, atol=1e-7)


def test_a_centroid_goes_where_the_equation_says():
    lm, _ = two_models()
    writes = some_writes(lm)
    before = [cell.centroids.detach().double() for cell in lm.cells]
    fused_commit(lm.cells, writes)
    for block, (cell, old) in enumerate(zip(lm.cells, before, strict=True)):
        m = 1 / (1 + torch.exp(-cell.momentum.detach().double()))
        for slot in range(len(old)):
            count = writes.slot_count[block, slot].double()
            mean = writes.slot_sum[block, slot].double() / count if count else torch.zeros_like(old[0])
            new = m * old[slot] + (1 - m) * mean
            torch.testing.assert_close(cell.centroids[slot].double(), new / new.norm(), rtol=1e-5, atol=1e-6)


def test_a_write_is_seen_by_who_saved_memory_before_it():
    lm, _ = two_models()
    kept = [(t, t._version) for cell in lm.cells for t in (cell.centroids, cell.usage, cell.age)]
    lm.commit(some_writes(lm))
    assert all(tensor._version > version for tensor, version in kept)


def test_what_is_not_written_does_not_count_as_changed():
    """A backward after the commit is then no mistake, and kept tables are not old."""
    lm, _ = two_models("memory.write_back=false")
    kept = [(cell.centroids, cell.centroids._version) for cell in lm.cells]
    out = lm(*batch_of(lm), return_logits=False)
    lm.commit(out.writes)
    assert all(tensor._version == version for tensor, version in kept)
    out.loss.backward()


def test_writes_of_another_model_are_refused():
    lm, _ = two_models()
    writes = some_writes(lm)
    with pytest.raises(ValueError, match=r"slot_count has shape .*: it was seen by another model"):
        lm.commit(writes._replace(slot_count=writes.slot_count[:, 1:]))


def test_the_operator_is_registered_as_torch_wants_it():
    lm, _ = two_models()
    writes, state = some_writes(lm), [[getattr(c, n).detach() for c in lm.cells] for n in ("centroids", "usage", "age")]
    momentum = [cell.momentum.detach() for cell in lm.cells]
    given = (*state, momentum, writes.slot_sum, writes.slot_count, writes.usage_sum, writes.tokens, None, 0.9)
    torch.library.opcheck(torch.ops.gmt.commit.default, given)


CHANGES = [
    ("(1 - m) * mean", "(1.01 - m) * mean"),
    ("/ tl.maximum(count, EPS)", "/ tl.maximum(count, 2.0)"),
    ("decay * usage + (1 - decay) * seen", "decay * usage + decay * seen"),
    ("/ tl.maximum(tokens, 1.0)", "/ (tokens + 1.0)"),
    ("age + 1.0", "age + 2.0"),
    ("index * F + row", "index * F"),
]


@pytest.mark.parametrize(("old", "new"), CHANGES, ids=[change[0] for change in CHANGES])
def test_a_changed_constant_is_found(monkeypatch, tmp_path, old, new):
    name = "gmt.kernels.triton_small"
    monkeypatch.setitem(sys.modules, name, changed(name, old, new, tmp_path))
    with pytest.raises(AssertionError):
        test_one_launch_writes_what_the_reference_writes(None, (), 50.0)


def test_inference_tensors_are_written_in_inference_mode_alone():
    with torch.inference_mode():
        lm, _ = two_models()
        lm.commit(some_writes(lm))
    with pytest.raises(RuntimeError, match="inference"):
        lm.commit(some_writes(lm))


def test_the_choice_is_by_setting_and_type():
    lm, _ = two_models()
    lm.cells[0].centroids.data = lm.cells[0].centroids.data.T.contiguous().T
    assert not commits_fused(lm.cells), "it must lie in one piece"
    lm, _ = two_models()
    assert not commits_fused(lm.double().cells)
    assert not commits_fused(GraphMemoryLM(small_config("memory.kernels=plain")).cells)
    assert not commits_fused(GraphMemoryLM(small_config()).cells), "the interpreter is for tests that ask for it"
