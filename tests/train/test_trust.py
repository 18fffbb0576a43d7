"""A process whose kernels or whose compiled step compute wrong does not train."""

import sys

import pytest
import torch

from gmt.errors import GMTError
from gmt.model import parity
from gmt.model.language_model import GraphMemoryLM
from gmt.train.trust import check_kernels, check_routing
from tests.conftest import small_config

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "setting",
    [
        "memory.edges=uniform",
        "memory.edges=frozen",
        "memory.train_centroids=false",
        "memory.write_back=false",
        "memory.gate_init=-20",
    ],
)
def test_a_cell_that_is_right_passes_and_leaves_the_generator_alone(setting):
    pytest.importorskip("triton")
    cfg = small_config("model.hidden=24", "memory.slots=9", setting)
    before = torch.get_rng_state()
    found = parity.check_cell(cfg, CPU, "fp32", 20)
    assert len(found) > 10
    assert torch.equal(torch.get_rng_state(), before)


def test_a_cell_that_is_wrong_is_refused(monkeypatch, tmp_path):
    pytest.importorskip("triton")
    from tests.kernels.test_constants import NORM, changed

    wrong = changed(NORM, "EPS = tl.constexpr(1e-8)", "EPS = tl.constexpr(1e8)", tmp_path)  # distances all alike
    monkeypatch.setitem(sys.modules, NORM, wrong)
    with pytest.raises(GMTError, match="not trained with: the fused operators differ"):
        parity.check_cell(small_config("model.hidden=24", "memory.slots=9"), CPU, "fp32", 20)


@pytest.mark.parametrize(
    ("kernels", "device", "checked"), [("auto", "cuda", 1), ("plain", "cuda", 0), ("auto", "cpu", 0)]
)
def test_a_run_that_takes_the_fused_cell_checks_it_first(monkeypatch, kernels, device, checked):
    calls = []
    monkeypatch.setattr("gmt.train.trust.check_cell", lambda *given: calls.append(given))
    monkeypatch.setattr("gmt.train.trust.use_fused", lambda cfg, z: cfg.memory.kernels == "auto")
    monkeypatch.setattr("gmt.train.trust.autocast", lambda *_: torch.no_grad())
    check_kernels(GraphMemoryLM(small_config(f"memory.kernels={kernels}")), torch.device(device), 200)
    assert [call[3] for call in calls] == [1024 + 200] * checked  # tiles are full where a pass's are


@pytest.mark.parametrize("slots", [16, 48, 128])
def test_the_same_share_for_every_slot_at_the_first_step_is_an_error(slots):
    cfg, one = small_config(f"memory.slots={slots}"), float(torch.eye(slots)[0].mean())
    check_routing(cfg, 1, 0.9999 * slots, 0.99)  # memory at its start
    check_routing(cfg, 400, 3.0, one)  # memory that has collapsed
    with pytest.raises(GMTError, match="step 7: every slot has the same share"):
        check_routing(cfg, 7, 0.999 * slots, one)
