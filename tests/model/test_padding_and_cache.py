"""Padding takes part in nothing, and a cache changes no logit."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from gmt.hf import GMTForCausalLM
from tests.conftest import batch_of, small_model

LENGTHS = (6, 2, 4)


def padded(lm, side):
    """Rows of different lengths in one batch; padding is filled with a real token to tempt the model."""
    width = max(LENGTHS)
    rows = [batch_of(lm, rows=1, length=n, seed=n) for n in LENGTHS]
    ids, labels = torch.full((3, width), 3), torch.full((3, width), 5)
    mask = torch.zeros(3, width, dtype=torch.bool)
    for r, (row, goal) in enumerate(rows):
        part = slice(width - LENGTHS[r], None) if side == "left" else slice(LENGTHS[r])
        ids[r, part], labels[r, part], mask[r, part] = row[0], goal[0], True
    return rows, ids, labels, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side):
    lm = small_model("losses.cluster_target=4.9")
    rows, ids, labels, mask = padded(lm, side)
    out = lm(ids, labels, mask=mask)
    alone = [lm(row, goal) for row, goal in rows]
    for r, single in enumerate(alone):
        torch.testing.assert_close(out.logits[r][mask[r]], single.logits[0], rtol=0, atol=1e-12)
    # the write, the usage and the terms of the same tokens without padding
    for name in ("slot_sum", "slot_count", "usage_sum", "tokens"):
        expected = sum(getattr(single.writes, name) for single in alone)
        torch.testing.assert_close(getattr(out.writes, name), expected, rtol=0, atol=1e-12)
    tokens = sum(LENGTHS)
    for name in ("track", "ortho", "edge", "contrast"):
        expected = sum(n * single.aux[name] for n, single in zip(LENGTHS, alone, strict=True)) / tokens
        torch.testing.assert_close(out.aux[name], expected, rtol=0, atol=1e-12)
    task = sum(n * single.task_loss for n, single in zip(LENGTHS, alone, strict=True)) / tokens
    torch.testing.assert_close(out.task_loss, task, rtol=0, atol=1e-12)


def test_padding_beside_equal_rows_has_the_same_objective_and_write():
    """Where the unpadded batch exists, all five terms and the committed memory are compared with it."""
    lm, twin = small_model("losses.cluster_target=4.9"), small_model("losses.cluster_target=4.9")
    ids, labels = batch_of(lm, rows=3, length=5)
    left = torch.full((3, 3), 7)
    mask = torch.cat([torch.zeros(3, 3, dtype=torch.bool), torch.ones(3, 5, dtype=torch.bool)], dim=1)
    plain = lm(ids, labels)
    wide = twin(torch.cat([left, ids], 1), torch.cat([left, labels], 1), mask=mask)
    assert plain.aux["cluster"] > 0
    torch.testing.assert_close(wide.aux, plain.aux, rtol=0, atol=1e-12)
    torch.testing.assert_close(wide.loss, plain.loss, rtol=0, atol=1e-12)
    for model, out in ((lm, plain), (twin, wide)):
        out.loss.backward()
        model.commit(out.writes)
    for (name, a), (_, b) in zip(lm.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=0, atol=1e-11, msg=name)
        torch.testing.assert_close(b, a, rtol=0, atol=1e-12, msg=name)
    for a, b in zip(lm.cells, twin.cells, strict=True):
        torch.testing.assert_close(b.usage, a.usage, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sublayer", ["memory", "dense", "none"])
@pytest.mark.parametrize("chunks", [(1,) * 6, (3, 1, 2), (6,)])
def test_cached_decoding_is_the_full_forward(sublayer, chunks):
    lm = small_model(f"model.sublayer={sublayer}", dtype=torch.float32).eval()
    ids, _ = batch_of(lm, length=6)
    full = lm(ids).logits
    cache, pieces = DynamicCache(), []
    for part in ids.split(chunks, dim=1):
        pieces.append(lm(part, cache=cache).logits)
    torch.testing.assert_close(torch.cat(pieces, 1), full, rtol=0, atol=1e-5)


def test_cached_decoding_of_padded_rows():
    lm = small_model(dtype=torch.float32).eval()
    _, ids, _, mask = padded(lm, "left")
    full = lm(ids, mask=mask).logits
    cache, pieces = DynamicCache(), []
    for t in range(ids.shape[1]):
        pieces.append(lm(ids[:, t : t + 1], mask=mask[:, : t + 1], cache=cache).logits)
    torch.testing.assert_close(torch.cat(pieces, 1)[mask], full[mask], rtol=0, atol=1e-5)


def test_a_static_cache_is_the_full_forward():
    model = GMTForCausalLM.from_lm(small_model(dtype=torch.float32).eval())
    ids, _ = batch_of(model.model, length=6)
    full = model(ids).logits
    cache = StaticCache(config=model.config, max_cache_len=10)
    pieces = [model(part, past_key_values=cache, use_cache=True).logits for part in ids.split((3, 1, 1, 1), dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, rtol=0, atol=1e-5)
