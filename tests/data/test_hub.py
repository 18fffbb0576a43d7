"""Datasets of the hub, with a stand-in for `datasets`: nothing here reaches a network."""

import sys
import types

import pytest

from gmt.data.prepare import PrepareOptions, prepare
from gmt.data.sources import find_sources
from gmt.errors import DataError
from tests.data.conftest import invented, write_jsonl


def stand_in(monkeypatch, rows, known=True, error=None):
    asked = []

    class Rows(list):
        split = types.SimpleNamespace(num_examples=len(rows))
        info = types.SimpleNamespace(splits={"train": split} if known else None)

    def load_dataset(repo, **kwargs):
        asked.append((repo, kwargs))
        if error:
            raise error
        return Rows(rows)

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


@pytest.mark.parametrize("known", [True, False])
def test_a_dataset_gives_the_streams_of_its_rows(monkeypatch, tmp_path, known):
    asked = stand_in(monkeypatch, [{"text": t, "id": n} for n, t in enumerate(invented(300))], known)
    shared = {"tokenizer": "train:300", "context": 16}
    prepare(PrepareOptions(("openwebtext",), **shared), tmp_path / "hub")
    write_jsonl(tmp_path / "same.jsonl", invented(300))
    prepare(PrepareOptions((str(tmp_path / "same.jsonl"),), **shared), tmp_path / "local")
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "hub" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    assert asked[0][0] == "Skylion007/openwebtext"
    assert asked[0][1] == {"split": "train", "streaming": True, "revision": "refs/convert/parquet"}


def test_clear_words(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'graph-memory-transformer\[hub\]'"):
        find_sources(["openwebtext"], "text")
    stand_in(monkeypatch, [], error=ConnectionError("no route\nto host"))
    with pytest.raises(DataError, match=r"someone/some-data: no local file, and not to be had from the hub: no route$"):
        find_sources(["someone/some-data"], "text")
    stand_in(monkeypatch, [{"body": "x"}])
    with pytest.raises(DataError, match=r"a/b:1: there is no field 'text', only body"):
        prepare(PrepareOptions(("a/b",)), tmp_path / "out")
    rows = [{"text": t} for t in invented(300)]
    rows[7] = {"text": None}
    stand_in(monkeypatch, rows)
    shared = {"tokenizer": "train:300", "context": 16, "on_error": "skip"}
    manifest = prepare(PrepareOptions(("a/b",), **shared), tmp_path / "skipped")
    assert manifest.skipped == ["a/b:8: the field 'text' is NoneType, not text"]
    assert manifest.documents["train"] + manifest.documents["val"] == 299
