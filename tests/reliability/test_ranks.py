"""Two ranks whose run folders differ end together, within a minute, with the same message."""

import re
import shutil
import time

import pytest

from gmt.errors import GMTError
from tests.train.conftest import assert_close, checkpoint, config, forked, make_data, ranks, train

SETTINGS = ("train.steps=12", "save.every=4", "validation.every=12")


@pytest.fixture
def folders(tmp_path):
    """One run folder per rank, as on two machines without shared storage."""
    data = make_data(tmp_path / "data")
    assert forked(lambda: train(config(*SETTINGS), data, tmp_path / "rank0")) == 0
    shutil.copytree(tmp_path / "rank0", tmp_path / "rank1")
    return tmp_path, data


def other_step(folder):
    shutil.rmtree(folder / "rank1" / "checkpoints" / "step-00000012")


def no_folder(folder):
    shutil.rmtree(folder / "rank1")


def damaged_copy(folder):
    (folder / "rank1/checkpoints/step-00000012/model.safetensors").write_bytes(b"damaged")


def other_run(folder):
    (folder / "rank1/checkpoints/step-00000012/MANIFEST.json").write_text('{"format": 1, "sha256": {"a": "b"}}')


def only_rank_one(folder):
    shutil.rmtree(folder / "rank0")


def rank_zero_damaged(folder):
    for step in (8, 12):
        (folder / f"rank0/checkpoints/step-{step:08d}/model.safetensors").write_bytes(b"damaged")


CASES = {
    other_step: r"rank 1: .*step-00000012 does not exist; rank 0 resumes from it",
    no_folder: r"rank 1: .*step-00000012 does not exist; rank 0 resumes from it",
    damaged_copy: r"rank 1: .*step-00000012: model\.safetensors is damaged",
    other_run: r"rank 1: .*step-00000012 differs from the checkpoint of rank 0",
    only_rank_one: r"rank 1: .*rank1 has a checkpoint of step 12, the folder of rank 0 has none",
    rank_zero_damaged: r"rank0 cannot be resumed: no checkpoint is usable",
}


def ended_together(tmp_path, work) -> str:
    """The one message with which both ranks end."""

    def guarded(rank: int) -> int:
        try:
            return work(rank)
        except GMTError as error:
            (tmp_path / f"message{rank}").write_text(str(error))
            return 1

    began = time.monotonic()
    assert ranks(2, guarded) == [1, 1]
    assert time.monotonic() - began < 60
    messages = {(tmp_path / f"message{rank}").read_text() for rank in range(2)}
    assert len(messages) == 1
    return messages.pop()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_ranks_that_cannot_start_together_end_together(folders, case):
    folder, data = folders
    case(folder)
    found = ended_together(folder, lambda rank: train(config(*SETTINGS), data, folder / f"rank{rank}", resume=True))
    assert re.search(CASES[case], found), found


def test_equal_copies_on_two_machines_resume(folders):
    """The folders differ in place only: rank 1 loads its own copy, and rank 0 writes."""
    folder, data = folders
    for rank in range(2):
        shutil.rmtree(folder / f"rank{rank}" / "checkpoints" / "step-00000012")
    work = lambda rank: train(config(*SETTINGS), data, folder / f"rank{rank}", resume=True)  # noqa: E731
    assert ranks(2, work) == [0, 0]
    assert forked(lambda: train(config(*SETTINGS), data, folder / "one")) == 0
    written, alone = checkpoint(folder / "rank0", 12), checkpoint(folder / "one", 12)
    assert_close(written, alone)


def test_other_data_or_settings_on_one_rank(tmp_path):
    data = [make_data(tmp_path / f"data{rank}", seed=rank) for rank in range(2)]
    out, cfg = tmp_path / "run", config(*SETTINGS)
    message = "the ranks were started with different data or settings"
    assert ended_together(tmp_path, lambda rank: train(cfg, data[rank], out)) == message
    settings = [cfg, config(*SETTINGS, "losses.track=2")]
    assert ended_together(tmp_path, lambda rank: train(settings[rank], data[0], out)) == message
    assert not out.exists()


def test_data_missing_on_one_rank(tmp_path):
    data = make_data(tmp_path / "data")
    found = ended_together(
        tmp_path, lambda rank: train(config(*SETTINGS), data if rank == 0 else tmp_path / "none", tmp_path / "run")
    )
    assert found.startswith("rank 1: ") and "holds no prepared data" in found


def test_a_locked_folder_and_a_checkpoint_that_cannot_be_written(tmp_path):
    from gmt.train.lock import Lock

    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    out.mkdir()
    lock = Lock(out)
    lock.take()
    found = ended_together(tmp_path, lambda rank: train(config(*SETTINGS), data, out))
    assert found.startswith("rank 0: another process is training")
    lock.release()
    (out / "metrics.jsonl").unlink(missing_ok=True)
    (out / "checkpoints").write_text("a file is in the way")
    found = ended_together(tmp_path, lambda rank: train(config(*SETTINGS), data, out))
    assert found.startswith("rank 0: cannot write a checkpoint to ")
