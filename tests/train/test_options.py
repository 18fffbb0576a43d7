"""Settings that studies vary, in training."""

import pytest
import torch

from gmt.config import GMTConfig
from gmt.config.compare import differences
from gmt.errors import GMTError
from gmt.train.lock import Lock
from gmt.train.loop import Options, Run
from gmt.train.metrics import read_metrics
from gmt.train.schedule import Schedule
from tests.train.conftest import config, make_data, train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def test_centroids_learn_at_a_rate_of_their_own(data, tmp_path):
    """At 0 only the write-back moves them; every other parameter has its own first step, as ever."""
    states = {}
    for scale in ("1", "0"):
        run = Run(config(f"train.centroid_rate={scale}", "memory.write_back=false"), Options(data, tmp_path / scale))
        first = {name: p.detach().clone() for name, p in run.lm.named_parameters()}
        run.stepper(0)
        states[scale] = {name: p.detach() - first[name] for name, p in run.lm.named_parameters()}
    for name, moved in states["0"].items():
        if name.endswith("centroids"):
            assert not moved.any() and states["1"][name].any()
        else:
            assert torch.equal(moved, states["1"][name])


def test_memory_begins_with_k_means_of_its_own_blocks(data, tmp_path):
    sphere, found, again = (
        Run(config(f"memory.init={init}"), Options(data, tmp_path / str(n)))
        for n, init in enumerate(("sphere", "k-means", "k-means"))
    )
    for a, b, c in zip(sphere.lm.cells, found.lm.cells, again.lm.cells, strict=True):
        assert torch.equal(b.centroids, c.centroids) and not torch.allclose(a.centroids, b.centroids)
        torch.testing.assert_close(b.centroids.norm(dim=-1), torch.ones(6, dtype=b.centroids.dtype))
    # each block's centroids lie where that block's outputs do: nearer to them than random ones
    ids = torch.from_numpy(found.batches.at(0, 0).ids)
    outputs = sphere.lm(ids, reseed=torch.arange(ids.numel()).expand(2, -1)).writes.reseed
    unit = torch.nn.functional.normalize(outputs, dim=-1)
    for index in range(2):
        near = [(unit[index] @ run.lm.cells[index].centroids.T).max(-1).values.mean() for run in (found, sphere)]
        assert near[0] > near[1] + 0.1


def test_a_lowest_loss_is_not_saved_where_nobody_wants_it(data, tmp_path):
    train(config("save.best=false", "save.every=15", "validation.every=4"), data, tmp_path / "x")
    assert sorted(p.name for p in (tmp_path / "x" / "checkpoints").iterdir()) == ["step-00000015", "step-00000020"]


def test_validations_tell_how_much_each_sublayer_adds(data, tmp_path):
    train(config(), data, tmp_path / "x")
    lines = [line for line in read_metrics(tmp_path / "x" / "metrics.jsonl") if "val_loss" in line]
    for line in lines:
        assert [len(line[name]) for name in ("attention_share", "second_share")] == [2, 2]
        assert all(share > 0 for share in line["second_share"])


@pytest.mark.parametrize(("settings", "wanted"), [
    ((), [1.0, 1.0, 1.0, 1.0, 1.0]),
    (("losses.begin=0.25", "losses.full=0.75"), [0.0, 0.0, 0.5, 1.0, 1.0]),
    (("losses.full=1",), [0.0, 0.25, 0.5, 0.75, 1.0]),
    (("losses.begin=0.5", "losses.full=0.5"), [0.0, 0.0, 1.0, 1.0, 1.0]),
])  # fmt: skip
def test_auxiliary_terms_begin_when_they_are_told_to(settings, wanted):
    schedule = Schedule(config(*settings, "train.steps=20"), steps_per_epoch=100)
    assert [schedule.aux_weight(step) for step in (0, 5, 10, 15, 20)] == pytest.approx(wanted)


def test_a_step_without_auxiliary_terms_is_one_with_weights_of_zero(data, tmp_path):
    zero = [f"losses.{term}=0" for term in ("track", "ortho", "cluster", "edge", "contrast")]
    states = []
    for name, settings in (("late", ["losses.begin=1", "losses.full=1"]), ("none", zero)):
        run = Run(config(*settings), Options(data, tmp_path / name))
        for step in range(2):
            run.stepper(step)
        states.append(run.lm.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=0, atol=1e-12, msg=name)


# --- what a run folder is -----------------------------------------------------------------------------------------


def test_a_setting_that_is_newer_than_a_checkpoint_had_its_default():
    saved = config().to_dict()
    del saved["memory"]["init"], saved["losses"]["begin"], saved["model"]["residual_init"]
    assert differences(saved, config()) == []
    assert differences(saved, config("memory.init=k-means")) == ["memory.init: sphere -> k-means"]
    assert differences({}, GMTConfig()) == ["model.attention: torch -> auto"], "the one default that has changed"


def test_two_processes_do_not_train_in_one_folder(data, tmp_path):
    lock = Lock(tmp_path)
    lock.take()
    with pytest.raises(GMTError, match="another process is training in"):
        train(config(), data, tmp_path)
    lock.release()
    assert train(config(), data, tmp_path) == 0
    lock.take()  # the run let go of it


def test_a_hang_up_is_heeded_unless_it_is_ignored(monkeypatch):
    import signal

    from gmt.train.signals import Interruption

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:  # as under nohup
            signal.raise_signal(signal.SIGHUP)
        assert not interruption
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
        assert interruption.received == signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)
