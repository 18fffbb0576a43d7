"""The cache with room: the same keys and values as transformers' own, without copying them at every token."""

import torch
from transformers import DynamicCache

from gmt.hf import GMTForCausalLM
from gmt.hf.cache import LEAST_ROOM, RoomyCache
from tests.conftest import small_model


def test_it_holds_what_the_growing_cache_holds():
    roomy, growing = RoomyCache(), DynamicCache()
    for length in (5, 1, 1, LEAST_ROOM, 1, 300, 1):
        for layer in (0, 1):
            key, value = torch.randn(2, 3, length, 4), torch.randn(2, 3, length, 4)
            mine, theirs = roomy.update(key, value, layer), growing.update(key, value, layer)
            for a, b in zip(mine, theirs, strict=True):
                assert torch.equal(a, b)
        assert roomy.get_seq_length() == growing.get_seq_length()


def test_a_token_is_written_in_place():
    cache = RoomyCache()
    cache.update(torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3, 2), 0)
    place = cache.layers[0].keys.data_ptr()
    for _ in range(LEAST_ROOM - 3):
        cache.update(torch.randn(1, 1, 1, 2), torch.randn(1, 1, 1, 2), 0)
    assert cache.layers[0].keys.data_ptr() == place


def test_reordered_and_cropped_caches_go_on():
    caches = RoomyCache(), DynamicCache()
    for cache in caches:
        torch.manual_seed(0)
        cache.update(torch.randn(3, 1, 6, 2), torch.randn(3, 1, 6, 2), 0)
        cache.reorder_cache(torch.tensor([2, 0, 0]))
        cache.update(torch.randn(3, 1, 1, 2), torch.randn(3, 1, 1, 2), 0)
        cache.batch_select_indices(torch.tensor([1, 2]))
        cache.update(torch.randn(2, 1, 1, 2), torch.randn(2, 1, 1, 2), 0)
    a, b = (cache.layers[0] for cache in caches)
    assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)


def test_generation_is_the_same():
    model = GMTForCausalLM.from_lm(small_model(dtype=torch.float32)).eval()
    ids = torch.randint(11, (2, 4), generator=torch.Generator().manual_seed(0))
    settings = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    for beams in (1, 3):
        a = model.generate(ids, past_key_values=RoomyCache(), num_beams=beams, **settings)
        b = model.generate(ids, num_beams=beams, **settings)
        assert torch.equal(a, b)
