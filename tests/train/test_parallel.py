"""Two ranks are one, and what happens to one of them happens to both."""

import os
import signal
import time

import pytest
import torch

from gmt.train.loop import Options, Run
from gmt.train.metrics import read_metrics
from gmt.train.parallel import Parallel
from gmt.train.step import Stepper
from tests.train.conftest import (
    assert_close,
    assert_equal,
    checkpoint,
    config,
    forked,
    make_data,
    ranks,
    start_ranks,
    train,
    wait,
)

# the usage term's hinge is open, so that its gradient takes part
TWELVE = ("train.steps=12", "validation.every=12", "losses.cluster_target=5.5", "losses.cluster=3")


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "data")


def test_two_ranks_are_one(tmp_path, data):
    cfg = config(*TWELVE)
    assert forked(lambda: train(cfg, data, tmp_path / "one")) == 0
    assert ranks(2, lambda rank: train(cfg, data, tmp_path / "two")) == [0, 0]
    assert_close(checkpoint(tmp_path / "one", 12), checkpoint(tmp_path / "two", 12))
    one, two = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    steps = [line for line in one if "task" in line]
    assert sum(line["resets"] for line in steps) > 0 and sum(line["cluster"] for line in steps) > 0, (
        "the case must reach both"
    )
    for a, b in zip(one, two, strict=True):
        for name in a.keys() - {"tokens_per_second", "tflops", "mode"}:
            assert a[name] == pytest.approx(b[name], abs=1e-9), name


@pytest.mark.parametrize(
    "settings",
    [
        ("losses.track_form=commit", "memory.edges=uniform"),
        ("memory.train_centroids=false", "memory.edges=frozen", "losses.begin=0.25", "losses.full=0.75"),
        ("memory.init=k-means", "train.centroid_rate=0.1", "maintenance.merge=false", "temperature.schedule=linear"),
    ],
    ids=("commitment", "held", "k-means"),
)
def test_two_ranks_are_one_with_what_studies_vary(tmp_path, data, settings):
    cfg = config(*TWELVE, *settings)
    assert forked(lambda: train(cfg, data, tmp_path / "one")) == 0
    assert ranks(2, lambda rank: train(cfg, data, tmp_path / "two")) == [0, 0]
    assert_close(checkpoint(tmp_path / "one", 12), checkpoint(tmp_path / "two", 12))


@pytest.mark.parametrize("piece", ["the sums", "the usage term's share", "the candidates"])
def test_without_the_reduction_they_are_not(tmp_path, data, piece, monkeypatch):
    """The same comparison with a piece taken out must fail."""
    cfg = config(*TWELVE)
    assert forked(lambda: train(cfg, data, tmp_path / "one")) == 0
    monkeypatch.setattr(Parallel, "check_memory", lambda self, lm: "")  # it would stop the run before the comparison
    if piece == "the sums":
        monkeypatch.setattr(Parallel, "share", lambda self, writes, numbers: (writes, numbers))
    elif piece == "the usage term's share":
        monkeypatch.setattr(Stepper, "_objective", lambda self, out, writes, numbers: out.loss)
    else:
        monkeypatch.setattr(Parallel, "gather_reseed", lambda self, writes, mine: writes)
    ranks(2, lambda rank: train(cfg, data, tmp_path / "two"))
    with pytest.raises(AssertionError):
        assert_close(checkpoint(tmp_path / "one", 12), checkpoint(tmp_path / "two", 12))


def test_ranks_whose_memory_comes_apart_stop(tmp_path, data, monkeypatch):
    monkeypatch.setattr(Parallel, "share", lambda self, writes, numbers: (writes, numbers))
    assert ranks(2, lambda rank: _refused(rank, data, tmp_path)) == [1, 1]
    assert (
        not list((tmp_path / "two" / "checkpoints").glob("*")) if (tmp_path / "two" / "checkpoints").exists() else True
    )


def _refused(rank, data, tmp_path):
    from gmt.errors import GMTError

    try:
        train(config(*TWELVE), data, tmp_path / "two")
    except GMTError as error:
        return 1 if "memory differs between ranks" in str(error) else 3


def test_fsdp2_is_ddp(tmp_path, data):
    for mode in ("ddp", "fsdp2"):
        cfg = config(*TWELVE, f"train.parallel={mode}")
        assert ranks(2, lambda rank, c=cfg, m=mode: train(c, data, tmp_path / m)) == [0, 0]
    assert_close(checkpoint(tmp_path / "ddp", 12), checkpoint(tmp_path / "fsdp2", 12))


@pytest.mark.slow
def test_fsdp2_is_ddp_with_fused_kernels(tmp_path, data):
    """Tables are made of all blocks' parameters before any block runs: none of those may be in shards."""
    pytest.importorskip("triton")
    fused = ("memory.kernels=fused", "train.precision=fp32", "train.steps=4", "validation.every=4")
    for mode in ("ddp", "fsdp2"):
        cfg = config(*TWELVE, *fused, f"train.parallel={mode}")
        assert ranks(2, lambda rank, c=cfg, m=mode: train(c, data, tmp_path / m)) == [0, 0]
    assert_close(checkpoint(tmp_path / "ddp", 4), checkpoint(tmp_path / "fsdp2", 4), atol=1e-5)


def test_a_dense_model_in_shards(tmp_path, data):
    cfg = config("train.steps=3", "validation.every=3", "model.sublayer=dense", "train.parallel=fsdp2")
    assert forked(lambda: train(cfg, data, tmp_path / "one")) == 0
    assert ranks(2, lambda rank: train(cfg, data, tmp_path / "two")) == [0, 0]
    assert_close(checkpoint(tmp_path / "one", 3), checkpoint(tmp_path / "two", 3))


def test_a_checkpoint_of_any_world_size_loads_at_any_other(tmp_path, data):
    whole = config("train.steps=12", "validation.every=6")
    assert forked(lambda: train(whole, data, tmp_path / "one")) == 0

    def stopping(run, at):
        def tell(event, values):
            if event == "saved" and values["step"] == at:
                os.kill(os.getpid(), signal.SIGTERM)

        run.tell = tell
        return run

    def part(rank, mode, at, resume):
        cfg = config("train.steps=12", "validation.every=6", "save.every=3", f"train.parallel={mode}")
        run = Run(cfg, Options(data, tmp_path / "parts", resume=resume))
        code = stopping(run, at).go() if at else run.go()
        run.parallel.close()
        return code

    assert ranks(2, lambda rank: part(rank, "fsdp2", 3, False)) == [75, 75]
    assert forked(lambda: part(0, "ddp", 6, True)) == 75
    assert ranks(2, lambda rank: part(rank, "ddp", 9, True)) == [75, 75]
    assert ranks(2, lambda rank: part(rank, "fsdp2", None, True)) == [0, 0]
    assert_close(checkpoint(tmp_path / "one", 12), checkpoint(tmp_path / "parts", 12))


def test_a_slot_that_only_one_rank_uses(tmp_path, data):
    """At a low temperature few slots are used: the ranks' slots differ, and still their memory is one."""
    cfg = config("train.steps=2", "validation.every=2", "temperature.max=1e-3", "temperature.min=1e-3",
                 "memory.slots=12", "maintenance.every=0", "train.micro_batch=2")  # fmt: skip
    seen = []

    def one(rank):
        run = Run(cfg, Options(data, tmp_path / "two"))
        original = run.parallel.share

        def share(writes, numbers):
            if writes is not None and len(seen) < 4:
                (tmp_path / f"rank{rank}").open("a").write(f"{(writes.slot_count > 0).int().tolist()}\n")
                seen.append(1)
            return original(writes, numbers)

        run.parallel.share = share
        code = run.go()
        run.parallel.close()
        return code

    assert forked(lambda: train(cfg, data, tmp_path / "one")) == 0
    assert ranks(2, one) == [0, 0]
    used = [(tmp_path / f"rank{rank}").read_text() for rank in range(2)]
    assert used[0] != used[1], "the case needs slots that one rank alone uses"
    assert_close(checkpoint(tmp_path / "one", 2), checkpoint(tmp_path / "two", 2))


def test_a_signal_to_one_rank_stops_both_at_the_same_step(tmp_path, data):
    cfg = config("train.steps=100000", "validation.per_epoch=0", "save.every=100000")
    (pids := start_ranks(2, lambda rank: train(cfg, data, tmp_path / "run")))
    record = tmp_path / "run" / "metrics.jsonl"
    while not (record.exists() and len(record.read_text().splitlines()) > 5):
        time.sleep(0.02)
    os.kill(pids[1], signal.SIGUSR1)
    assert [wait(pid) for pid in pids] == [75, 75]
    (saved,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    assert int(saved.name[5:]) > 5


def test_a_nan_on_one_rank_reaches_nobody(tmp_path, data, capfd):
    cfg = config("train.steps=12", "validation.every=12", "save.every=3")

    def work(rank):
        run = Run(cfg, Options(data, tmp_path / "run"))
        if rank == 1:
            poison(run, step=7, micro=1)
        return told(run)

    assert ranks(2, work) == [1, 1]
    shown = capfd.readouterr().err
    assert shown.count("step 8: task") == 2
    windows = Run(cfg, Options(data, tmp_path / "x")).batches.whole(7, 1).tolist()
    assert str(windows) in shown
    names = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000006"], "no checkpoint was written after the bad step"


def poison(run: Run, step: int, micro: int) -> None:
    """The loss of one micro-batch becomes NaN, and with it its gradients and its write."""
    original, calls = run.stepper._forward, [0]

    def forward(ids, labels, reseed):
        out = original(ids, labels, reseed)
        calls[0] += 1
        if calls[0] == step * run.batches.accumulation + micro + 1:
            nan = torch.tensor(float("nan"))
            bad = None if out.writes is None else out.writes._replace(slot_sum=out.writes.slot_sum * nan)
            return out._replace(task_loss=out.task_loss * nan, loss=out.loss * nan, writes=bad)
        return out

    run.stepper._forward = forward


def told(run: Run) -> int:
    import sys

    from gmt.errors import GMTError

    try:
        return run.go()
    except GMTError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        run.parallel.close()


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_nothing_that_is_not_finite_reaches_weights_or_memory(tmp_path, data, kind, capfd):
    """One process: after the error the model is bit for bit what it was before the bad step."""
    cfg = config("train.steps=12", "validation.per_epoch=0")
    good = Run(cfg, Options(data, tmp_path / "good"))

    def after(run, upto):
        for step in range(upto):
            run.stepper(step)
        return {k: v.clone() for k, v in run.lm.state_dict().items()}

    expected = after(good, 4)
    run = Run(cfg, Options(data, tmp_path / "bad"))
    if kind == "loss":
        poison(run, step=4, micro=0)
    else:
        run.parallel.clip = lambda lm, most: (
            torch.tensor(float("inf")) if run.done == 4 else type(run.parallel).clip(run.parallel, lm, most)
        )
    assert told(run) == 1
    shown = capfd.readouterr().err
    assert "step 5: " in shown and ("task" if kind == "loss" else "the gradient") in shown
    found = {k: v for k, v in run.lm.state_dict().items() if k != "tau"}
    if kind == "loss":
        assert_equal(found, {k: v for k, v in expected.items() if k != "tau"})
    else:  # its micro-batches were good and were written; the weights stay
        states = {k: v for k, v in found.items() if "memory." not in k}
        assert_equal(states, {k: v for k, v in expected.items() if "memory." not in k and k != "tau"})
    assert all(torch.isfinite(v).all() for v in found.values())
