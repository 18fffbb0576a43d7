"""A trace is what the model did, and leaves the model as it was."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from gmt.analysis import load_trace, trace
from gmt.analysis.trace import Trace, _routing, _windows
from gmt.errors import GMTError
from gmt.hf.load import open_model
from gmt.memory.cell import Route
from tests.conftest import assert_same, snapshot
from tests.evaluate.conftest import CONTEXT, make_model

TEXT = "the cat sat on a mat while they counted 345 stars, didn't they?"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return open_model(make_model(tmp_path_factory.mktemp("model") / "memory"))


def test_it_is_what_the_forward_pass_did(loaded):
    found = trace(loaded, TEXT, "cat")
    ids = loaded.words.encode(TEXT).ids
    with torch.no_grad():
        out = loaded.lm(torch.tensor([ids]), return_routes=True, observe=False)
    for block, route in enumerate(out.routes):
        for name in ("source", "target", "displacement"):
            np.testing.assert_allclose(getattr(found, name)[block], getattr(route, name)[0].numpy(), atol=2e-3)
        p = route.source[0].double().numpy()
        np.testing.assert_allclose(found.source_entropy[block], -(p * np.log(p + 1e-8)).sum(-1), atol=1e-5)
        np.testing.assert_array_equal(found.source_slot[block], p.argmax(-1))
        np.testing.assert_allclose(found.update_norm[block], route.displacement[0].norm(dim=-1).numpy(), rtol=1e-5)
        with torch.no_grad():
            states = loaded.lm.cells[block].norm_centroids(loaded.lm.cells[block].centroids)
        shift = (route.target[0] - route.source[0]) @ states
        np.testing.assert_allclose(found.shift_norm[block], shift.norm(dim=-1).numpy(), rtol=1e-4)
        np.testing.assert_array_equal(found.top_source[block][:, 0], p.argmax(-1))
    log_p = out.logits[0].log_softmax(-1)
    assert np.isnan(found.surprise[0])
    np.testing.assert_allclose(found.surprise[1:], -log_p[range(len(ids) - 1), ids[1:]].numpy(), rtol=1e-4, atol=1e-5)
    assert "".join(found.tokens) == TEXT
    cell = loaded.lm.cells[1]
    np.testing.assert_array_equal(found.centroids[1], cell.centroids.detach().numpy())
    np.testing.assert_allclose(found.transition[1].sum(-1), 1, rtol=1e-5)
    assert found.gate[1] == pytest.approx(cell.gate.detach().sigmoid().item())


@pytest.mark.parametrize("sublayer", ["memory", "dense", "none"])
def test_the_parts_sum_to_the_logit(tmp_path, sublayer):
    """Exactly, but for rounding: what the blocks added is all that the final norm reads."""
    loaded = open_model(make_model(tmp_path / "m", f"model.sublayer={sublayer}", "model.dense_width=20"))
    found = trace(loaded, TEXT)
    whole = found.logit_embedding + found.logit_bias + found.logit_attention.sum(0) + found.logit_update.sum(0)
    np.testing.assert_allclose(whole, found.predicted_logit, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        logits = loaded.lm(torch.tensor([found.ids.tolist()]), observe=False).logits[0]
    np.testing.assert_allclose(found.predicted_logit, logits.max(-1).values.numpy(), rtol=1e-5)
    np.testing.assert_array_equal(found.predicted, logits.argmax(-1).numpy())
    assert found.has_memory == (sublayer == "memory")
    assert found.blocks == 2


def test_the_model_stays_bit_identical_and_without_hooks(loaded):
    before = snapshot(loaded.lm)
    trace(loaded, TEXT)
    assert_same(loaded.lm, before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.lm.modules())


def test_a_long_text_is_read_in_windows(loaded):
    text = TEXT * 4
    found = trace(loaded, text)
    length = len(found.ids)
    assert length > CONTEXT and found.facts["windows"] == -(-length // CONTEXT)
    assert found.window.tolist() == [place // CONTEXT for place in range(length)]
    starts = np.flatnonzero(np.isnan(found.surprise)).tolist()
    assert starts == list(range(0, length, CONTEXT)), "nothing comes before the first token of a window"
    first = trace(loaded, text[: found.facts["spans"][CONTEXT][0]])
    np.testing.assert_allclose(found.update_norm[:, : len(first.ids)], first.update_norm, rtol=1e-4)


def test_it_can_be_kept_and_read_again(loaded, tmp_path):
    found = trace(loaded, TEXT, "cat")
    found.save(tmp_path / "cat.safetensors")
    again = load_trace(tmp_path / "cat.safetensors")
    assert again.facts == found.facts and again.facts["sha256"] == loaded.sha256 and again.text == TEXT
    assert again.arrays.keys() == found.arrays.keys()
    for name, value in found.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], value)
    with pytest.raises(AttributeError, match="this trace has no weather"):
        _ = again.weather


def test_pieces_of_one_character_are_told_apart(loaded):
    found = trace(loaded, "the 天 cat")
    pieces = [token for token in found.tokens if "天" in token]
    assert len(pieces) > 1 and pieces == [f"天{mark}" for mark in "¹²³⁴"[: len(pieces)]]
    assert len(found.facts["predicted_words"]) == len(found.ids)


def test_it_can_be_copied(loaded):
    import copy
    import pickle

    found = trace(loaded, TEXT)
    for again in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        np.testing.assert_array_equal(again.source, found.source)


def test_in_bfloat16_the_parts_sum_to_what_bfloat16_can_tell(tmp_path):
    loaded = open_model(make_model(tmp_path / "m"))
    loaded.model.to(torch.bfloat16)
    found = trace(loaded, TEXT)
    whole = found.logit_embedding + found.logit_bias + found.logit_attention.sum(0) + found.logit_update.sum(0)
    assert np.abs(whole - found.predicted_logit).max() < 0.05 * np.abs(found.predicted_logit).max()


def test_slots_above_32767_keep_their_number():
    """The configuration allows 65,536 slots."""
    slots, tokens = 40_000, 3
    source, target = torch.zeros(1, tokens, slots), torch.zeros(1, tokens, slots)
    for token, slot in enumerate((39_999, 32_768, 7)):
        source[0, token, slot] = target[0, token, slots - 1 - slot] = 1.0
    found = _routing((Route(source, target, torch.zeros(1, tokens, 2)),), np.zeros((1, slots, 2), dtype=np.float32))
    assert found["source_slot"].tolist() == [[39_999, 32_768, 7]]
    assert found["target_slot"].tolist() == [[0, 7_231, 39_992]]
    assert found["top_source"][0, :, 0].tolist() == [39_999, 32_768, 7]
    assert found["top_target"][0, :, 0].tolist() == [0, 7_231, 39_992]


def test_windows_above_32767_keep_their_number():
    found = _windows([2] * 40_000)
    assert found.dtype == np.int32 and found.tolist() == [token // 2 for token in range(80_000)]


def test_a_trace_of_an_earlier_version_loads(loaded, tmp_path):
    """Until version 0.1, slots and windows were 16-bit numbers."""
    found = trace(loaded, TEXT, "cat")
    names = ("window", "source_slot", "target_slot", "top_source", "top_target")
    old = {name: value.astype(np.int16) if name in names else value for name, value in found.arrays.items()}
    Trace(found.facts, old).save(tmp_path / "old.safetensors")
    again = load_trace(tmp_path / "old.safetensors")
    for name, value in found.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], value)
    assert np.array_equal(again.counts(0), found.counts(0))


def test_bad_input_is_told_in_a_sentence(loaded, tmp_path):
    with pytest.raises(GMTError, match="the text 'none' is empty"):
        trace(loaded, "", "none")
    (tmp_path / "x").write_bytes(b"nothing of the kind")
    with pytest.raises(GMTError, match="cannot be read as a trace"):
        load_trace(tmp_path / "x")
    save_file({"a": np.zeros(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(GMTError, match="is not a trace"):
        load_trace(tmp_path / "plain.safetensors")
    save_file({"a": np.zeros(1)}, tmp_path / "old.safetensors", {"gmt_trace": json.dumps({"version": 0})})
    with pytest.raises(GMTError, match="trace of another version"):
        load_trace(tmp_path / "old.safetensors")
