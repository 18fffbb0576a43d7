"""Tokenizers: GPT-2 offline, exact round trips, and a fast path that is used only when it is right."""

import sys
import types
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmt.data import tokenizer as t
from gmt.errors import DataError

TRAINED = t.train_tokenizer(400, ["the cat sat on the mat, didn't it? " * 20, t.TEST_TEXT])
GPT2 = t.load_tokenizer("gpt2")
ENCODERS = [(each, t.reference_encode(each), t.encoder_named("tiktoken", each)) for each in (TRAINED, GPT2)]


def test_gpt2_is_gpt2():
    gpt2 = t.load_tokenizer("gpt2")
    assert gpt2.encode("Hello world").ids == [15496, 995]
    assert gpt2.get_vocab_size() == 50257 and t.end_of_text(gpt2) == 50256 and t.largest_id(gpt2) == 50256
    assert t.choose_encoder(gpt2, ["a few", "documents"])[0] in ("tiktoken", "gigatoken")


@pytest.mark.parametrize("tokenizer", [TRAINED, GPT2], ids=["trained", "gpt2"])
def test_a_text_that_spells_a_special_token_is_text(tokenizer):
    for name in ("tokenizers", "tiktoken"):
        (ids,) = t.encoder_named(name, tokenizer)(["a<|endoftext|>b"])
        assert t.end_of_text(tokenizer) not in ids.tolist()
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == "a<|endoftext|>b"


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_decode_of_encode_is_the_document(text):
    for tokenizer, reference, tiktoken in ENCODERS:
        (ids,) = tiktoken([text])
        assert np.array_equal(ids, reference([text])[0]), "tiktoken and tokenizers disagree"
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == text


def test_folders_with_vocabularies(tmp_path):
    TRAINED.save(str(tmp_path / "tokenizer.json"))
    assert t.digest(t.load_tokenizer(str(tmp_path))) == t.digest(TRAINED)
    assert t.digest(t.load_tokenizer(str(tmp_path / "tokenizer.json"))) == t.digest(TRAINED)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (tmp_path / "other" / "merges.txt").write_text("#version: 0.2\na b\n")
    assert t.load_tokenizer(str(tmp_path / "other")).encode("ab").ids == [2]
    (tmp_path / "other" / "vocab.json").write_text("nonsense")
    with pytest.raises(DataError, match=r"is not a tokenizer\.json"):
        t.load_tokenizer(str(tmp_path / "other"))


def fake_gigatoken(monkeypatch, change):
    """A stand-in with gigatoken's interface that gives the right ids, or nearly."""
    reference = t.reference_encode(TRAINED)

    class Fast:
        def __init__(self, tokenizer):
            pass

        def encode_batch(self, texts, parallel):
            assert parallel is False
            return [change(text, ids) for text, ids in zip(texts, reference(texts), strict=True)]

    awkward = types.ModuleType("awkward")
    awkward.flatten = lambda rows: np.concatenate(rows)
    awkward.num = lambda rows: [len(row) for row in rows]
    gigatoken = types.ModuleType("gigatoken")
    gigatoken.Tokenizer = Fast
    for name, module in (("gigatoken", gigatoken), ("awkward", awkward)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(t, "find_spec", lambda name: True if name == "gigatoken" else find_spec(name))


@pytest.mark.parametrize(
    ("wrong", "chosen"),
    [
        (lambda text: False, "gigatoken"),
        (lambda text: text == t.TEST_TEXT, "tiktoken"),
        (lambda text: "900" in text, "tiktoken"),
    ],
)
def test_the_fast_path_must_give_the_judges_ids(monkeypatch, wrong, chosen):
    fake_gigatoken(monkeypatch, lambda text, ids: ids[::-1] if wrong(text) else ids)
    documents = [f"document number {n}" for n in range(1000)]
    name, reason = t.choose_encoder(TRAINED, documents)
    assert name == chosen
    assert ("gave tiktoken's ids" in reason) if chosen == "gigatoken" else ("gave other ids" in reason)
    if chosen == "gigatoken":
        rows = t.encoder_named("gigatoken", TRAINED)(["one", "", "two three"])
        expected = t.reference_encode(TRAINED)(["one", "", "two three"])
        assert all(np.array_equal(a, b) for a, b in zip(rows, expected, strict=True))


@pytest.mark.skipif(find_spec("gigatoken") is None, reason="gigatoken is not installed; pip install gigatoken")
def test_the_real_gigatoken_agrees():
    assert t.choose_encoder(GPT2, ["a few", "", "documents"])[0] == "gigatoken"


def test_tiktoken_stands_back_from_other_kinds():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert t.tiktoken_encode(words) is None
    assert t.choose_encoder(words, ["a"])[0] == "tokenizers"
