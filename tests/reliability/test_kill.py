"""kill -9 while checkpoints are written and read: no finished checkpoint is lost, and no reader sees half of one."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from gmt.checkpoint import format as module
from gmt.checkpoint.format import Progress, verify
from gmt.checkpoint.state import load_state
from gmt.checkpoint.store import list_checkpoints, newest_usable, repair
from gmt.checkpoint.writer import CheckpointWriter
from gmt.config import GMTConfig
from gmt.hf.load import open_model
from gmt.model.language_model import GraphMemoryLM
from gmt.train.optimizer import make_optimizer
from gmt.train.saving import checkpoint_files
from tests.train.conftest import fork, wait

KEEP = 2
TREE = {
    "model": {"blocks": 1, "hidden": 8, "heads": 2, "context": 8, "vocab": 23, "dropout": 0.0},
    "memory": {"slots": 4, "navigation": 4},
}


def make_model() -> tuple[GraphMemoryLM, torch.optim.AdamW]:
    cfg = GMTConfig.from_dict(TREE)
    lm = GraphMemoryLM(cfg)
    return lm, make_optimizer(lm, cfg)


def write_checkpoints(run: Path, finished: Path, first: int) -> None:
    """Every step is written twice, so that checkpoints are also replaced. `finished` lists the steps on disk."""
    lm, optimizer = make_model()
    writer = CheckpointWriter(run, KEEP)
    for number in range(2 * first, 10**6):
        with torch.no_grad():
            lm.norm_final.bias.fill_(number)
            lm.position_embedding.weight.fill_(number)
        progress = Progress(step=number // 2, config=lm.cfg.to_dict(), data=str(number))
        writer.save(progress, checkpoint_files(lm, optimizer, progress, None))
        writer.wait()
        with finished.open("a") as file:
            file.write(f"{number // 2}\n")


def kill_within_a_write(calls: int) -> None:
    """This process dies at its n-th write or rename."""
    left = [calls]

    def dying(function):
        def wrapper(*args):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args)

        return wrapper

    module.write_synced = dying(module.write_synced)
    Path.rename = dying(Path.rename)


def read(run: Path) -> int:
    """A whole model: its tensors and its progress are of one write."""
    loaded = open_model(run)
    number = int(loaded.progress["data"])
    for tensor in (loaded.lm.norm_final.bias, loaded.lm.position_embedding.weight):
        assert bool((tensor == number).all()), "the reader mixed two checkpoints"
    return number // 2


def rounds(tmp_path: Path, count: int) -> None:
    generator, run, finished = random.Random(0), tmp_path / "run", tmp_path / "finished"
    finished.touch()
    reads, left_behind = 0, set()
    for number in range(count):
        before = [int(line) for line in finished.read_text().split()]

        def victim(number=number, first=(before[-1] + 1 if before else 1)) -> None:
            repair(run)
            if number % 2:
                kill_within_a_write(generator.randint(1, 40))
            write_checkpoints(run, finished, first)

        pid = fork(victim)
        until = time.monotonic() + (30 if number % 2 else generator.uniform(0.02, 0.25))
        ended = 0
        while not ended and time.monotonic() < until:
            if list_checkpoints(run):
                assert read(run) >= (before[-1] if before else 0)
                reads += 1
            ended = os.waitpid(pid, os.WNOHANG)[0]
        if not ended:
            os.kill(pid, signal.SIGKILL)
            assert wait(pid) == -signal.SIGKILL
        generator.random()
        left_behind |= {path.suffix for path in (run / "checkpoints").glob(".step-*")}
        steps = sorted({int(line) for line in finished.read_text().split()})[-KEEP:]
        usable = {one.step for one in list_checkpoints(run) if verify(one.path) is None}
        assert set(steps[-1:]) <= usable, "the newest finished checkpoint is lost"
        # the one before may have been removed for an even newer one that is complete
        assert all(step in usable or max(usable) > steps[-1] for step in steps)
        if steps:
            newest, damaged = newest_usable(run)
            assert newest is not None and damaged == []
            assert load_state(newest.path, *make_model()).step == newest.step
            assert read(run) == newest.step
    assert reads > count, "the reader hardly read"
    assert left_behind, "no kill was within a write"


def test_kill_minus_nine_twenty_times_with_a_reader(tmp_path):
    rounds(tmp_path, 20)


@pytest.mark.slow
def test_kill_minus_nine_two_hundred_times_with_a_reader(tmp_path):
    rounds(tmp_path, 200)


def test_a_reader_that_mixes_two_checkpoints_would_be_seen(tmp_path):
    """The control: the tensors of one write beside the progress of another fail the reader's comparison."""
    lm, optimizer = make_model()
    progress = Progress(step=1, config=lm.cfg.to_dict(), data="2")
    files = checkpoint_files(lm, optimizer, progress, None)
    module.write_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000001", files)
    assert json.loads((tmp_path / "run/checkpoints/step-00000001/progress.json").read_text())["data"] == "2"
    with pytest.raises(AssertionError, match="mixed two checkpoints"):
        read(tmp_path / "run")
