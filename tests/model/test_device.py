"""What compile is told, by the model that it compiles."""

import torch

from gmt import GMTConfig
from gmt.model.device import compile_options


def test_a_width_that_a_gpu_does_not_like_is_padded():
    for name in ("dense-1050", "dense-205"):
        assert compile_options(GMTConfig.preset(name)) == {"force_shape_pad": True}
    assert compile_options(GMTConfig.preset("dense-1050", "model.dense_width=1056")) == {}
    assert compile_options(GMTConfig.preset("gmt-v7-base")) == {}


def test_torch_knows_these_options():
    known = {
        name: value
        for cfg in ("dense-1050", "gmt-v7-base")
        for name, value in compile_options(GMTConfig.preset(cfg)).items()
    }
    torch.compile(lambda x: x, options=known)  # of an unknown one it says so


def test_many_slots_are_compiled_without_what_torch_cannot():
    assert compile_options(GMTConfig.preset("gmt-v7-base", "memory.slots=512")) == {"triton.mix_order_reduction": False}
