"""Decoding with a static cache is the model's own next token; on a GPU it is recorded, here it is not."""

import pytest
import torch

from gmt.model.decode import Decoder
from tests.conftest import small_model


def greedy(lm, ids, count):
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, lm(ids, observe=False).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids


@pytest.mark.parametrize("sublayer", ["memory", "dense", "none"])
def test_it_decodes_what_the_model_predicts(sublayer):
    lm = small_model(f"model.sublayer={sublayer}").eval()
    ids = torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(0))
    decoder = Decoder(lm, batch=2)
    for _ in range(2):  # a second text starts afresh
        found = [decoder.prompt(ids).clone()]
        found += [decoder.step().clone() for _ in range(8)]
        assert torch.equal(torch.cat([ids, *found], dim=1), greedy(lm, ids, 9))


def test_memory_may_be_written_between_two_tokens():
    lm = small_model().eval()
    ids = torch.randint(11, (1, 5), generator=torch.Generator().manual_seed(0))
    decoder = Decoder(lm)
    decoder.prompt(ids)
    with torch.no_grad():
        for cell in lm.cells:
            cell.centroids.mul_(-1)
    token = decoder.token.clone()
    logits = []
    lm.register_forward_hook(lambda module, args, out: logits.append(out.logits))
    decoder.step()
    assert decoder.filled == 6 and token.shape == (1, 1)
    with torch.no_grad():  # the keys of the past are the old memory's, the token's own way is the new one's
        old = small_model().eval()
        fresh = Decoder(old)
        fresh.prompt(ids)
        stale = []
        old.register_forward_hook(lambda module, args, out: stale.append(out.logits))
        fresh.step()
    assert not torch.allclose(logits[-1], stale[-1])


def test_a_full_context_is_told():
    lm = small_model().eval()
    decoder = Decoder(lm)
    decoder.prompt(torch.zeros(1, 16, dtype=torch.long))
    with pytest.raises(ValueError, match="the context of 16 tokens is full"):
        decoder.step()
