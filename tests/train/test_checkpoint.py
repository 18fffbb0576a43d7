"""A checkpoint is whole or not there: kills, damage, full disks, and what retention may remove."""

import errno
import json
import os
import pickle
import shutil
import signal
from pathlib import Path

import pytest

from gmt.errors import GMTError
from gmt.hf.directory import all_checkpoints, broken, find_checkpoint
from gmt.train import checkpoint as module
from gmt.train.run import Options, Run
from tests.train.conftest import assert_equal, checkpoint, config, forked, make_data, train

SETTINGS = ("train.steps=12", "save.every=4", "validation.every=12", "model.dropout=0.1", "train.precision=fp32")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("whole")
    data = make_data(folder / "data")
    assert forked(lambda: train(config(*SETTINGS), data, folder / "run")) == 0
    return data, folder / "run"


def kill_at(monkeypatch, name: str, count: int) -> None:
    """This process dies at the count-th call of a function that a save uses, after the first checkpoint is whole."""
    owner, attribute = {
        "mkdir": (Path, "mkdir"), "rename": (Path, "rename"), "fsync": (os, "fsync"), "open": (Path, "open"),
        "save": (module, "save"), "rmtree": (shutil, "rmtree"), "retain": (module.CheckpointWriter, "_retain"),
        "sync folder": (module, "_sync_folder"), "write": (module, "_write_synced"),
    }[name]  # fmt: skip
    original, calls = getattr(owner, attribute), [0]

    def dying(*args, **kwargs):
        if armed[0]:
            calls[0] += 1
            if calls[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    armed = [False]
    first = module.write_checkpoint

    def arming(target, files):
        armed[0] = target.name != "step-00000004"
        first(target, files)

    monkeypatch.setattr(module, "write_checkpoint", arming)
    monkeypatch.setattr(owner, attribute, dying)


MOMENTS = [
    ("rmtree", 1), ("mkdir", 1), ("save", 1), ("write", 1), ("open", 2), ("fsync", 3), ("write", 5), ("rename", 1),
    ("sync folder", 1), ("retain", 1),
]  # fmt: skip


@pytest.mark.parametrize(("moment", "count"), MOMENTS)
def test_kill_minus_nine_within_a_save(tmp_path, whole, moment, count):
    data, reference = whole

    def victim():
        kill_at(pytest.MonkeyPatch(), moment, count)
        return train(config(*SETTINGS), data, tmp_path / "run")

    assert forked(victim) == -signal.SIGKILL
    path, _ = find_checkpoint(tmp_path / "run")
    assert path is not None and path.name in ("step-00000004", "step-00000008")
    assert forked(lambda: train(config(*SETTINGS), data, tmp_path / "run", resume=True)) == 0
    assert_equal(checkpoint(reference, 12), checkpoint(tmp_path / "run", 12))


DAMAGE = {
    "truncated": (lambda d: os.truncate(d / "model.safetensors", 100), "model.safetensors is damaged"),
    "bit-flipped": (lambda d: _flip(d / "optimizer.safetensors"), "optimizer.safetensors is damaged"),
    "half-deleted": (lambda d: (d / "progress.json").unlink(), "progress.json is missing"),
    "no manifest": (lambda d: (d / "MANIFEST.json").unlink(), "has no MANIFEST.json"),
    "broken manifest": (lambda d: (d / "MANIFEST.json").write_text("{"), "its MANIFEST.json cannot be read"),
    "other version": (lambda d: (d / "MANIFEST.json").write_text('{"format": 9}'), "is of format 9"),
    "empty": (lambda d: [p.unlink() for p in d.iterdir()], "has no MANIFEST.json"),
}


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_broken_checkpoint_is_passed_over_with_a_reason(tmp_path, whole, kind):
    data, reference = whole
    damage, told = DAMAGE[kind]
    shutil.copytree(reference, tmp_path / "run")
    damage(tmp_path / "run" / "checkpoints" / "step-00000012")
    path, passed = find_checkpoint(tmp_path / "run")
    assert path.name == "step-00000008"
    assert passed[0].startswith("step-00000012: ") and told in passed[0]
    if kind == "bit-flipped":
        said = []
        assert train(config(*SETTINGS), data, tmp_path / "run", lambda *e: said.append(e), resume=True) == 0
        assert ("passed over", {"reason": passed[0]}) in said
        assert_equal(checkpoint(reference, 12), checkpoint(tmp_path / "run", 12))


def test_retention_keeps_the_newest_and_the_best(tmp_path):
    data = make_data(tmp_path / "data")
    settings = ("train.steps=12", "save.every=1", "save.keep=2", "validation.every=3", "train.precision=fp32")
    losses = iter([5.0, 1.0, 4.0, 3.0])

    def work():
        from gmt.evaluate.validation import Validation
        from gmt.train import run as run_module

        run_module.validate = lambda *args, **kwargs: Validation(next(losses), 3, "frozen")
        return train(config(*settings), data, tmp_path / "run")

    assert forked(work) == 0
    names = [p.name for p in all_checkpoints(tmp_path / "run" / "checkpoints")]
    assert names == ["step-00000012", "step-00000011", "step-00000006"]
    assert all(broken(p) is None for p in all_checkpoints(tmp_path / "run" / "checkpoints"))
    progress = json.loads((tmp_path / "run" / "checkpoints" / names[0] / "progress.json").read_text())
    assert progress["best"] == {"step": 6, "loss": 1.0}


def test_a_broken_newer_one_does_not_push_out_a_good_one(tmp_path, whole):
    """Steps 8 and 12 are damaged: the run goes on from 4, and what it then saves is kept."""
    _, reference = whole
    shutil.copytree(reference, tmp_path / "run")
    shutil.copytree(tmp_path / "run/checkpoints/step-00000008", tmp_path / "run/checkpoints/step-00000004")
    for step in ("08", "12"):
        os.truncate(tmp_path / f"run/checkpoints/step-000000{step}/model.safetensors", 5)
    writer = module.CheckpointWriter(tmp_path / "run", 1, None)
    writer._retain(module.Progress(step=4, config={}, data=""))
    assert broken(tmp_path / "run/checkpoints/step-00000004") is None


def test_killed_between_two_renames(tmp_path, monkeypatch):
    """The same step is written again: at every moment one of the two is there."""
    target = tmp_path / "checkpoints" / "step-00000004"
    module.write_checkpoint(target, {"a": lambda: b"old"})
    original, calls = Path.rename, []

    def dying(self, to):
        calls.append(to)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, to)

    monkeypatch.setattr(Path, "rename", dying)
    with pytest.raises(KeyboardInterrupt):
        module.write_checkpoint(target, {"a": lambda: b"new"})
    monkeypatch.undo()
    path, passed = find_checkpoint(tmp_path)
    assert path == target and (path / "a").read_bytes() == b"old" and passed == []
    module.write_checkpoint(target, {"a": lambda: b"new"})
    assert (target / "a").read_bytes() == b"new" and len(list(target.parent.iterdir())) == 1


def test_a_full_disk_at_the_record(tmp_path, monkeypatch):
    from gmt.train.metrics import JsonLines

    def full(self, step, values):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JsonLines, "log", full)
    with pytest.raises(GMTError, match="No space left on device; older checkpoints are whole"):
        train(config(*SETTINGS), make_data(tmp_path / "data"), tmp_path / "run")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_and_a_read_only_folder_are_one_sentence(tmp_path, error, monkeypatch):
    data = make_data(tmp_path / "data")
    original = module._write_synced

    def failing(path, content):
        if "step-00000008" in str(path) and path.name == "optimizer.safetensors":
            raise OSError(error, os.strerror(error))
        original(path, content)

    monkeypatch.setattr(module, "_write_synced", failing)
    with pytest.raises(GMTError, match=f"cannot write a checkpoint to .*: {os.strerror(error)}; older ones are whole"):
        train(config(*SETTINGS), data, tmp_path / "run")
    path, passed = find_checkpoint(tmp_path / "run")
    assert path.name == "step-00000004" and passed == []


def test_a_run_folder_that_cannot_be_made(tmp_path):
    data = make_data(tmp_path / "data")
    (tmp_path / "file").write_text("")
    with pytest.raises(GMTError, match="cannot write to"):
        train(config(*SETTINGS), data, tmp_path / "file" / "run")


class Bomb:
    def __reduce__(self):
        return (os._exit, (41,))


def test_a_pickle_in_a_run_folder_is_never_opened(tmp_path, whole):
    data, reference = whole
    shutil.copytree(reference, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000012")
    for folder in ("", "checkpoints/step-00000008/", "checkpoints/"):
        for name in ("best.pt", "model.pt", "optimizer.bin", "pytorch_model.bin", "training_args.bin"):
            (tmp_path / "run" / folder / name).write_bytes(pickle.dumps(Bomb()))
    assert forked(lambda: train(config(*SETTINGS), data, tmp_path / "run", resume=True)) == 0
    assert_equal(checkpoint(reference, 12), checkpoint(tmp_path / "run", 12))


def test_saving_goes_on_in_the_background(tmp_path, monkeypatch):
    """Training does not wait for the disk: a step runs while a slow write is still under way."""
    import threading

    data = make_data(tmp_path / "data")
    gate, events = threading.Event(), []
    original = module.write_checkpoint

    def slow(target, files):
        if target.name == "step-00000004":
            assert gate.wait(30)
        events.append(("written", target.name))
        original(target, files)

    monkeypatch.setattr(module, "write_checkpoint", slow)

    def tell(event, values):
        if event == "step":
            events.append(("step", values["step"]))
            if values["step"] == 6:
                gate.set()

    run = Run(config(*SETTINGS), Options(data, tmp_path / "run"), tell)
    assert run.go() == 0
    assert events.index(("step", 6)) < events.index(("written", "step-00000004"))


def test_a_resumed_run_may_write_its_step_again(tmp_path, whole):
    data, reference = whole
    shutil.copytree(reference, tmp_path / "run")
    os.truncate(tmp_path / "run" / "checkpoints" / "step-00000012" / "model.safetensors", 5)
    assert forked(lambda: train(config(*SETTINGS), data, tmp_path / "run", resume=True)) == 0
    assert broken(tmp_path / "run" / "checkpoints" / "step-00000012") is None


def test_what_was_saved_before_a_default_changed_counts_as_it_was():
    from gmt.config import GMTConfig
    from gmt.train.checkpoint import differences

    old = GMTConfig().to_dict()
    del old["model"]["attention"]
    assert differences(old, GMTConfig()) == ["model.attention: torch -> auto"]
    assert differences(old, GMTConfig.preset("gmt-v7-base", "model.attention=torch", "validation.mode=frozen")) == []
    del old["train"]["deterministic"]  # how a run computes, not what
    free = ["validation.mode=frozen", "train.deterministic=false"]
    assert differences(old, GMTConfig.preset("gmt-v7-base", "model.attention=torch", *free)) == []
