"""Shares of the residual stream, against the model's own routes and against blocks run by hand."""

import pytest
import torch

from gmt.config import GMTConfig
from gmt.evaluate.shares import residual_shares
from gmt.model.language_model import GraphMemoryLM

SMALL = ("model.blocks=3", "model.hidden=8", "model.heads=2", "model.context=8", "model.vocab=23", "memory.slots=6")


@pytest.mark.parametrize("sublayer", ["memory", "dense", "none"])
def test_shares_are_those_of_blocks_run_by_hand(sublayer):
    torch.manual_seed(0)
    lm = GraphMemoryLM(GMTConfig.preset("tiny", *SMALL, f"model.sublayer={sublayer}", "model.dense_width=7")).double()
    ids = torch.randint(23, (2, 8))
    found = residual_shares(lm, ids)
    x = lm.token_embedding(ids) + lm.position_embedding(torch.arange(8))
    routes = lm(ids, return_routes=True).routes or ()
    for index, block in enumerate(lm.blocks):
        update = block.attention(block.norm1(x), None, None, index)
        h = x + update
        if sublayer == "memory":
            second = routes[index].displacement
        else:
            second = block.dense(block.norm2(h)) if sublayer == "dense" else torch.zeros_like(h)
        wanted = torch.stack([(u.norm(dim=-1) / s.norm(dim=-1)).mean() for u, s in ((update, x), (second, h))])
        torch.testing.assert_close(found[:, index], wanted.detach(), rtol=1e-9, atol=1e-9)
        x = h + second


def test_looking_leaves_nothing_behind():
    lm = GraphMemoryLM(GMTConfig.preset("tiny", *SMALL)).train()
    residual_shares(lm, torch.zeros(1, 8, dtype=torch.long))
    assert lm.training and not any(block._forward_hooks or block.attention._forward_hooks for block in lm.blocks)
