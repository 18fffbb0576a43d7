"""A checkpoint is complete or absent: kills within a save, damage, retention, and errors of the disk."""

import errno
import json
import os
import pickle
import shutil
import signal
from pathlib import Path

import pytest

from gmt.checkpoint import format as module
from gmt.checkpoint import store
from gmt.checkpoint import writer as writer_module
from gmt.checkpoint.format import verify, write_checkpoint
from gmt.checkpoint.store import list_checkpoints, newest_usable, repair, retain
from gmt.errors import GMTError
from gmt.train import saving
from gmt.train.loop import Options, Run
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
        "save": (saving, "save"), "rmtree": (shutil, "rmtree"), "retain": (writer_module, "retain"),
        "sync folder": (module, "sync_folder"), "write": (module, "write_synced"),
        "remove": (store, "remove_checkpoint"),
    }[name]  # fmt: skip
    original, calls = getattr(owner, attribute), [0]

    def dying(*args, **kwargs):
        if armed[0]:
            calls[0] += 1
            if calls[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    armed = [False]
    first = writer_module.write_checkpoint

    def arming(target, files):
        armed[0] = target.name != "step-00000004"
        first(target, files)

    monkeypatch.setattr(writer_module, "write_checkpoint", arming)
    monkeypatch.setattr(owner, attribute, dying)


MOMENTS = [
    ("rmtree", 1), ("mkdir", 1), ("save", 1), ("write", 1), ("open", 2), ("fsync", 3), ("write", 5), ("rename", 1),
    ("sync folder", 1), ("sync folder", 2), ("retain", 1),
]  # fmt: skip


@pytest.mark.parametrize(("moment", "count"), MOMENTS)
def test_kill_minus_nine_within_a_save(tmp_path, whole, moment, count):
    data, reference = whole

    def victim():
        kill_at(pytest.MonkeyPatch(), moment, count)
        return train(config(*SETTINGS), data, tmp_path / "run")

    assert forked(victim) == -signal.SIGKILL
    found, damaged = newest_usable(tmp_path / "run")
    assert found is not None and found.step in (4, 8) and damaged == []
    assert forked(lambda: train(config(*SETTINGS), data, tmp_path / "run", resume=True)) == 0
    assert_equal(checkpoint(reference, 12), checkpoint(tmp_path / "run", 12))


DAMAGE = {
    "truncated": (lambda d: os.truncate(d / "model.safetensors", 100), "model.safetensors is damaged"),
    "bit-flipped": (lambda d: _flip(d / "optimizer.safetensors"), "optimizer.safetensors is damaged"),
    "half-deleted": (lambda d: (d / "progress.json").unlink(), "progress.json is missing"),
    "no manifest": (lambda d: (d / "MANIFEST.json").unlink(), "has no MANIFEST.json"),
    "broken manifest": (lambda d: (d / "MANIFEST.json").write_text("{"), "MANIFEST.json cannot be read"),
    "other version": (lambda d: (d / "MANIFEST.json").write_text('{"format": 9}'), "is of format 9"),
    "empty": (lambda d: [p.unlink() for p in d.iterdir()], "has no MANIFEST.json"),
}


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_not_used_and_named_with_its_reason(tmp_path, whole, kind):
    data, reference = whole
    damage, reason = DAMAGE[kind]
    shutil.copytree(reference, tmp_path / "run")
    damage(tmp_path / "run" / "checkpoints" / "step-00000012")
    found, damaged = newest_usable(tmp_path / "run")
    assert found is not None and found.step == 8
    assert [(one.step, one.path.name) for one in damaged] == [(12, "step-00000012")] and reason in damaged[0].reason
    if kind == "bit-flipped":
        events = []
        assert train(config(*SETTINGS), data, tmp_path / "run", lambda *e: events.append(e), resume=True) == 0
        assert ("damaged", {"reasons": [str(damaged[0])], "step": 8}) in events
        assert_equal(checkpoint(reference, 12), checkpoint(tmp_path / "run", 12))


def test_retention_keeps_the_newest_and_the_best(tmp_path):
    data = make_data(tmp_path / "data")
    settings = ("train.steps=12", "save.every=1", "save.keep=2", "validation.every=3", "train.precision=fp32")
    losses = iter([5.0, 1.0, 4.0, 3.0])

    def work():
        from gmt.evaluate.validation import Validation
        from gmt.train import loop as run_module

        run_module.validate = lambda *args, **kwargs: Validation(next(losses), 3, "frozen")
        return train(config(*settings), data, tmp_path / "run")

    assert forked(work) == 0
    kept = list_checkpoints(tmp_path / "run")
    assert [one.step for one in kept] == [12, 11, 6] and all(verify(one.path) is None for one in kept)
    progress = json.loads((kept[0].path / "progress.json").read_text())
    assert progress["best"] == {"step": 6, "loss": 1.0}


def test_a_broken_newer_one_does_not_push_out_a_good_one(tmp_path, whole):
    """Steps 8 and 12 are damaged: the run goes on from 4, and what it then saves is kept."""
    _, reference = whole
    shutil.copytree(reference, tmp_path / "run")
    shutil.copytree(tmp_path / "run/checkpoints/step-00000008", tmp_path / "run/checkpoints/step-00000004")
    for step in ("08", "12"):
        os.truncate(tmp_path / f"run/checkpoints/step-000000{step}/model.safetensors", 5)
    retain(tmp_path / "run", 1, newest=4, best=None)
    assert verify(tmp_path / "run/checkpoints/step-00000004") is None


def test_killed_between_two_renames(tmp_path, monkeypatch):
    """The same step is written again: at every moment one of the two is there, and readers rename nothing."""
    target = tmp_path / "checkpoints" / "step-00000004"
    write_checkpoint(target, {"a": lambda: b"old"})
    original, calls = Path.rename, []

    def dying(self, to):
        calls.append(to)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, to)

    monkeypatch.setattr(Path, "rename", dying)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(target, {"a": lambda: b"new"})
    monkeypatch.undo()
    before = sorted(path.name for path in target.parent.iterdir())
    found, damaged = newest_usable(tmp_path)
    assert found == (4, target.with_name(".step-00000004.old")) and damaged == []
    assert (found.path / "a").read_bytes() == b"old"
    assert sorted(path.name for path in target.parent.iterdir()) == before, "reading has no side effect"
    repair(tmp_path)
    assert [path.name for path in target.parent.iterdir()] == [target.name] and (target / "a").read_bytes() == b"old"
    write_checkpoint(target, {"a": lambda: b"new"})
    assert (target / "a").read_bytes() == b"new" and len(list(target.parent.iterdir())) == 1


def test_a_failing_removal_of_an_old_checkpoint_is_a_warning(tmp_path, monkeypatch):
    def failing(path):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(store, "remove_checkpoint", failing)
    events = []
    settings = (*SETTINGS, "save.every=2", "save.keep=1")
    assert train(config(*settings), make_data(tmp_path / "data"), tmp_path / "run", lambda *e: events.append(e)) == 0
    warnings = [values["message"] for event, values in events if event == "warning"]
    assert warnings and all("cannot remove an old checkpoint" in message for message in warnings)


def test_a_full_disk_at_the_record(tmp_path, monkeypatch):
    from gmt.train.metrics import JsonLines

    def full(self, step, values):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JsonLines, "log", full)
    with pytest.raises(GMTError, match="No space left on device; earlier checkpoints are complete"):
        train(config(*SETTINGS), make_data(tmp_path / "data"), tmp_path / "run")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_and_a_read_only_folder_are_one_sentence(tmp_path, error, monkeypatch):
    data = make_data(tmp_path / "data")
    original = module.write_synced

    def failing(path, content):
        if "step-00000008" in str(path) and path.name == "optimizer.safetensors":
            raise OSError(error, os.strerror(error))
        original(path, content)

    monkeypatch.setattr(module, "write_synced", failing)
    message = f"cannot write a checkpoint to .*: {os.strerror(error)}; earlier checkpoints are complete"
    with pytest.raises(GMTError, match=message):
        train(config(*SETTINGS), data, tmp_path / "run")
    found, damaged = newest_usable(tmp_path / "run")
    assert found is not None and found.step == 4 and damaged == []


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
    original = writer_module.write_checkpoint

    def slow(target, files):
        if target.name == "step-00000004":
            assert gate.wait(30)
        events.append(("written", target.name))
        original(target, files)

    monkeypatch.setattr(writer_module, "write_checkpoint", slow)

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
    assert verify(tmp_path / "run" / "checkpoints" / "step-00000012") is None
