"""Hashes that are equal where every bit is."""

import hashlib

import pytest
import torch

from gmt.model.bits import hash_of, memory_hash
from tests.conftest import small_model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_one_bit_makes_another_hash(dtype):
    tensor = torch.arange(6).to(dtype).view(2, 3).T  # not as it lies
    other = tensor.clone().contiguous()
    assert hash_of([tensor]) == hash_of([other])
    other.view(torch.uint8)[-1, -1] ^= 1
    assert hash_of([tensor]) != hash_of([other])
    assert hash_of([tensor.sum()]) == hash_of([tensor.sum()[None]])


def test_of_a_memory_it_is_the_one_that_results_were_kept_by():
    lm = small_model()
    wanted = b"".join(t.numpy().tobytes() for c in lm.cells for t in (c.centroids.detach(), c.usage, c.age))
    assert memory_hash(lm) == hashlib.sha256(wanted).hexdigest()
