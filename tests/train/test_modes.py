"""One process, DDP and FSDP2, eager and compiled: the same step, to rounding; and construction that fails."""

import pytest
import torch
import torch.distributed as dist

from gmt.errors import GMTError
from gmt.train.loop import Options, Run
from gmt.train.metrics import read_metrics
from tests.train.conftest import assert_close, checkpoint, config, forked, make_data, ranks, train

# the hinge of the usage term is open, so that its gradient takes part
SETTINGS = ("train.steps=3", "validation.every=3", "losses.cluster_target=5.5", "losses.cluster=3")
MODES = [
    pytest.param("fsdp2", "true"),
    *(
        pytest.param(mode, compiled, marks=pytest.mark.slow)
        for mode, compiled in (("ddp", "false"), ("ddp", "true"), ("fsdp2", "false"), ("one", "true"))
    ),
]


@pytest.mark.parametrize(("mode", "compiled"), MODES)
def test_every_mode_ends_a_step_like_one_eager_process(tmp_path, mode, compiled):
    """float64: weights, memory, moments and recorded losses differ by less than 1e-12 after three steps."""
    data = make_data(tmp_path / "data")
    assert forked(lambda: train(config(*SETTINGS), data, tmp_path / "one-eager")) == 0
    parallel = () if mode == "one" else (f"train.parallel={mode}",)
    cfg = config(*SETTINGS, f"train.compile={compiled}", *parallel)
    world = 1 if mode == "one" else 2
    assert ranks(world, lambda rank: train(cfg, data, tmp_path / "other")) == [0] * world
    assert_close(checkpoint(tmp_path / "one-eager", 3), checkpoint(tmp_path / "other", 3), atol=1e-12)
    lines = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one-eager", "other")]
    for one, other in zip(*lines, strict=True):
        for name in ("loss", "val_loss", "grad_norm"):
            if name in one:
                assert one[name] == pytest.approx(other[name], abs=1e-12), name


@pytest.mark.slow
def test_a_compiled_sharded_run_resumes(tmp_path):
    data = make_data(tmp_path / "data")
    cfg = config(*SETTINGS, "train.compile=true", "train.parallel=fsdp2", "save.every=2")
    assert ranks(2, lambda rank: train(cfg, data, tmp_path / "run")) == [0, 0]
    whole = checkpoint(tmp_path / "run", 3)
    import shutil

    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000003")
    assert ranks(2, lambda rank: train(cfg, data, tmp_path / "run", resume=True)) == [0, 0]
    for name, tensor in checkpoint(tmp_path / "run", 3).items():
        assert torch.equal(tensor, whole[name]), name


def test_construction_that_fails_closes_the_process_group(tmp_path):
    data = make_data(tmp_path / "data")

    def work(rank: int) -> int:
        with pytest.raises(GMTError, match=r"set model\.vocab=23"):
            Run(config("model.vocab=22"), Options(data, tmp_path / "run"))
        return int(dist.is_initialized())

    assert ranks(2, work) == [0, 0]
