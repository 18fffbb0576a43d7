"""A disk that is full during a save: one sentence, the earlier checkpoint is intact, and resuming repeats every bit."""

import os
import resource
import signal
from pathlib import Path

import pytest

from gmt.checkpoint.store import newest_usable
from gmt.errors import GMTError
from tests.train.conftest import assert_equal, checkpoint, config, forked, make_data, train

SETTINGS = ("train.steps=12", "save.every=4", "validation.every=12", "model.dropout=0.1", "train.precision=fp32")


def limited(data: Path, out: Path, message: Path) -> int:
    """From the first checkpoint on, the kernel refuses files as large as the optimizer's state (EFBIG)."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = out / "checkpoints" / "step-00000004" / "optimizer.safetensors"

    def tell(event, values):
        if event == "step" and path.exists():
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size - 1, resource.RLIM_INFINITY))

    try:
        return train(config(*SETTINGS), data, out, tell)
    except GMTError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        message.write_text(str(error))
        return 1


def test_a_limit_on_file_size_during_a_save(tmp_path):
    data = make_data(tmp_path / "data")
    assert forked(lambda: train(config(*SETTINGS), data, tmp_path / "whole")) == 0
    assert forked(lambda: limited(data, tmp_path / "run", tmp_path / "message")) == 1
    message = (tmp_path / "message").read_text()
    assert message == (
        f"cannot write a checkpoint to {tmp_path / 'run' / 'checkpoints'}: File too large; "
        "earlier checkpoints are complete"
    )
    check_resume(tmp_path / "run", tmp_path / "whole", data)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_full_tmpfs_during_a_save(tmp_path):
    """A real file system of 200 kB, which two checkpoints of this model do not fit on."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    data, out = make_data(tmp_path / "data"), tmp_path / "small"
    assert forked(lambda: train(config(*SETTINGS), data, tmp_path / "whole")) == 0
    whole = sum(p.stat().st_size for p in (tmp_path / "whole/checkpoints/step-00000012").iterdir())
    out.mkdir()
    size = f"size={int(1.6 * whole) // 4096 * 4}k".encode()
    if libc.mount(b"tmpfs", bytes(out), b"tmpfs", 0, size):
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        assert forked(lambda: full_disk(data, out / "run", tmp_path / "message")) == 1
        message = (tmp_path / "message").read_text()
        assert message.startswith("cannot write ") and "No space left on device" in message and "\n" not in message
        assert libc.mount(b"tmpfs", bytes(out), b"tmpfs", 32, b"size=20m") == 0  # MS_REMOUNT: space is freed
        check_resume(out / "run", tmp_path / "whole", data)
    finally:
        libc.umount2(bytes(out), 2)  # MNT_DETACH


def full_disk(data: Path, out: Path, message: Path) -> int:
    try:
        return train(config(*SETTINGS), data, out)
    except GMTError as error:
        message.write_text(str(error))
        return 1


def check_resume(run: Path, whole: Path, data: Path) -> None:
    found, damaged = newest_usable(run)
    assert found is not None and found.step == 4 and damaged == []
    assert_equal(checkpoint(whole, 12), resumed(run, data))


def resumed(run: Path, data: Path):
    assert forked(lambda: train(config(*SETTINGS), data, run, resume=True)) == 0
    return checkpoint(run, 12)
