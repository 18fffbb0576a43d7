"""What compile is told, by the model that it compiles."""

import pytest
import torch
from torch._inductor import config as inductor
from torch._inductor.graph import GraphLowering

from gmt import GMTConfig
from gmt.model.device import compile_options, compile_whole


def test_a_width_that_a_gpu_does_not_like_is_padded():
    for name in ("dense-1050", "dense-205"):
        assert compile_options(GMTConfig.preset(name)) == {"deterministic": True, "force_shape_pad": True}
    assert compile_options(GMTConfig.preset("dense-1050", "model.dense_width=1056")) == {"deterministic": True}
    assert compile_options(GMTConfig.preset("gmt-v7-base")) == {"deterministic": True}


def test_no_clock_chooses_how_numbers_are_added_up_in_a_forward_or_a_backward(monkeypatch: pytest.MonkeyPatch):
    """Torch leaves its deterministic mode after it compiled a forward, where the mode was set for the process. Nothing
    public tells in which mode a backward was compiled: its code generation is asked."""
    seen, original = [], GraphLowering.codegen

    def codegen(self: GraphLowering):
        seen.append((self.is_backward, inductor.deterministic))
        return original(self)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (5,)).square().sum()

    monkeypatch.setattr(GraphLowering, "codegen", codegen)
    with inductor.patch(force_disable_caches=True):
        compile_whole(forward, GMTConfig.preset("tiny"))(torch.randn(3, 5, requires_grad=True)).backward()
    assert seen == [(False, True), (True, True)]


def test_who_wants_speed_from_the_clock_can_have_it():
    assert compile_options(GMTConfig.preset("gmt-v7-base", "train.deterministic=false")) == {}


def test_torch_knows_these_options():
    known = {
        name: value
        for cfg in (["dense-1050"], ["gmt-v7-base", "memory.slots=512"])
        for name, value in compile_options(GMTConfig.preset(*cfg)).items()
    }
    torch.compile(lambda x: x, options=known)  # of an unknown one it says so


def test_many_slots_are_compiled_without_what_torch_cannot():
    assert compile_options(GMTConfig.preset("gmt-v7-base", "memory.slots=512")) == {
        "deterministic": True,
        "triton.mix_order_reduction": False,
    }
