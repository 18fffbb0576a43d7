"""What compile is told, by the model that it compiles."""

import torch

from gmt import GMTConfig
from gmt.model.block import Dense
from gmt.model.device import compile_options, compile_whole


def test_a_width_that_a_gpu_does_not_like_is_padded():
    assert compile_options(GMTConfig.preset("dense-1050")) == {"force_shape_pad": True}
    assert compile_options(GMTConfig.preset("dense-1050", "model.dense_width=1056")) == {}
    assert compile_options(GMTConfig.preset("gmt-v7-base")) == {}


def test_many_slots_are_compiled_without_what_torch_cannot():
    assert compile_options(GMTConfig.preset("gmt-v7-base", "memory.slots=512")) == {"triton.mix_order_reduction": False}


def test_padding_changes_nothing():
    cfg = GMTConfig.preset("tiny", "model.sublayer=dense", "model.dense_width=35")
    layer, z = Dense(cfg.model.hidden, cfg.model.dense_width), torch.randn(7, cfg.model.hidden)
    torch.testing.assert_close(compile_whole(layer, cfg)(z), layer(z))
