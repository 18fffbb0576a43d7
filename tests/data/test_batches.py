"""Which tokens a step reads depends on (seed, step) alone; ranks only partition it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmt.data.batches import Permutation, Stream, TrainBatches, ValidationBatches
from gmt.data.manifest import Manifest
from gmt.errors import DataError


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**40), st.integers(0, 5))
def test_a_permutation_is_one(n, seed, epoch):
    order = Permutation(n, seed, epoch)(np.arange(n))
    assert sorted(order.tolist()) == list(range(n))
    assert np.array_equal(Permutation(n, seed, epoch)(np.arange(n)[n // 2 :]), order[n // 2 :])


def test_a_permutation_is_well_mixed():
    n = 10007
    first, second, other = (Permutation(n, *key)(np.arange(n)) for key in ((1, 0), (1, 1), (2, 0)))
    for a, b in ((first, second), (first, other), (first, np.arange(n))):
        assert (a == b).sum() < 10
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05


def test_a_huge_permutation_needs_no_table():
    values = Permutation(2**40 + 3, 7, 0)(np.array([0, 1, 2**40 + 2]))
    assert len(set(values.tolist())) == 3 and (values < 2**40 + 3).all()


@pytest.fixture
def folder(tmp_path):
    """Streams that count up, so that a window says where it is from."""
    for split, count in (("train", 1003), ("val", 105)):
        np.arange(count, dtype=np.uint16).tofile(tmp_path / f"{split}.bin")
    Manifest(
        sources=[], options={}, documents={}, tokens={"train": 1003, "val": 105}, text_bytes={}, caps={},
        tokenizer={"sha256": "", "vocab": 2000}, dtype="uint16", sha256={"train": "", "val": ""},
    ).save(tmp_path)  # fmt: skip
    return tmp_path


def test_windows_are_shifted_and_do_not_overlap(folder):
    batches = TrainBatches(Stream(folder, "train"), context=10, micro_batch=4, accumulation=3, seed=5)
    assert batches.windows == 100 and batches.steps_per_epoch == 8
    for step in (0, 7, 8):
        seen = []
        for micro in range(3):
            batch = batches.at(step, micro)
            assert np.array_equal(batch.ids, batch.windows[:, None] * 10 + np.arange(10))
            assert np.array_equal(batch.labels, batch.ids + 1)
            seen += batch.windows.tolist()
        assert len(set(seen)) == 12
    assert Stream(folder, "train").windows(10) == (1003 - 1) // 10


def test_an_epoch_reads_each_window_at_most_once_and_epochs_differ(folder):
    batches = TrainBatches(Stream(folder, "train"), context=10, micro_batch=4, accumulation=3, seed=5)
    epochs = []
    for epoch in range(2):
        steps = range(epoch * 8, epoch * 8 + 8)
        epochs.append([w for s in steps for m in range(3) for w in batches.at(s, m).windows.tolist()])
        assert len(set(epochs[-1])) == 96
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_partition_the_batch(folder, world):
    def ranks(rank, world):
        return TrainBatches(Stream(folder, "train"), 10, 4, 3, seed=5, rank=rank, world=world)

    for step in (0, 9):
        whole = ranks(0, 1).at(step, 2).ids
        assert np.array_equal(np.concatenate([ranks(r, world).at(step, 2).ids for r in range(world)]), whole)


def test_validation_is_in_order(folder):
    stream = Stream(folder, "val")
    batches = ValidationBatches(stream, context=10, batch=4)
    assert [batches.at(i).windows.tolist() for i in range(len(batches))] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(ValidationBatches(stream, 10, 4, limit=2)) == 2
    halves = [ValidationBatches(stream, 10, 4, rank=r, world=2).at(2).windows.tolist() for r in range(2)]
    assert halves == [[8], [9]]


def test_clear_words(folder):
    stream = Stream(folder, "train")
    with pytest.raises(DataError, match="one step reads 120 windows of 10 tokens; the training stream has 100"):
        TrainBatches(stream, 10, 40, 3, seed=0)
    with pytest.raises(DataError, match="a micro-batch of 4 windows does not divide among 3 ranks"):
        TrainBatches(stream, 10, 4, 3, seed=0, world=3)
    with pytest.raises(DataError, match="the validation stream is 96 tokens short of one window of 200"):
        ValidationBatches(Stream(folder, "val"), context=200, batch=4)
    (folder / "val.bin").write_bytes(b"")
    with pytest.raises(DataError, match="is not the 210 bytes its manifest says"):
        Stream(folder, "val")
