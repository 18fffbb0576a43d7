"""Settings without effect are named before training."""

import pytest
import torch

from gmt.train.checks import setting_warnings
from gmt.train.schedule import Schedule
from tests.train.conftest import config, make_data, train

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CASES = {
    "graphs on a CPU": (
        ("train.graphs=true", "train.compile=true"), CPU, 1,
        ["train.graphs=true has no effect: it needs a CUDA device (this is cpu)"],
    ),
    "graphs, eager, two ranks": (
        ("train.graphs=true",), CUDA, 2,
        ["train.graphs=true has no effect: it needs train.compile=true and a single process (there are 2)"],
    ),
    "graphs that work": (("train.graphs=true", "train.compile=true"), CUDA, 1, []),
    "deterministic": (
        ("train.deterministic=false",), CPU, 1,
        ["train.deterministic=false has no effect without train.compile=true"],
    ),
    "deterministic that works": (("train.deterministic=false", "train.compile=true"), CPU, 1, []),
    "memory of a dense model": (
        ("model.sublayer=dense", "memory.slots=128", "memory.navigation=128", "memory.gate_init=-2",
         "maintenance.every=9", "maintenance.dead_below=null", "losses.track=2"), CPU, 1,
        ["memory.gate_init, losses.track, maintenance.every have no effect: model.sublayer=dense has no memory"],
    ),
    "warm-up": (
        ("train.warmup=40",), CPU, 1,
        ["train.warmup=40 is longer than the run of 20 steps: the learning rate ends at 0.00475 instead of 0.01"],
    ),
    "validations": (
        ("validation.every=null", "validation.per_epoch=16"), CPU, 1,
        ["validation.per_epoch=16 exceeds the 15 steps of an epoch: the run validates after every step"],
    ),
    "nothing": ((), CPU, 1, []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_setting_without_effect_is_named(case):
    settings, device, world, expected = CASES[case]
    cfg = config(*settings)
    assert setting_warnings(cfg, Schedule(cfg, 15), device, world) == expected


def test_a_run_prints_them(tmp_path):
    events = []
    cfg = config("train.steps=1", "train.graphs=true")
    assert train(cfg, make_data(tmp_path / "data"), tmp_path / "run", lambda *event: events.append(event)) == 0
    message = "train.graphs=true has no effect: it needs train.compile=true and a CUDA device (this is cpu)"
    assert ("warning", {"message": message}) in events
