"""`gmt prepare` with too few documents: the token stream is split at 95 %, and what is too small is named."""

import os
import signal
import subprocess
import sys
from math import floor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from gmt.cli import app
from gmt.data.manifest import BY_DOCUMENTS, BY_TOKENS, Manifest, verify
from gmt.data.prepare import prepare
from gmt.errors import DataError
from tests.data.conftest import TOKENIZER, invented, options, write_file, write_jsonl

BOOK = "\n".join(text for text in invented(200) if text)


def stream(folder: Path, split: str) -> list[int]:
    return np.fromfile(folder / f"{split}.bin", dtype=Manifest.load(folder).dtype).tolist()


@pytest.fixture
def book(tmp_path) -> Path:
    return write_file(tmp_path, "book.txt", BOOK.encode())


def test_one_book_is_split_by_tokens(book, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["prepare", str(book), "--tokenizer", TOKENIZER, "--context", "16", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert "split by tokens: 1 document cannot be divided" in done.output
    manifest, tokenizer = Manifest.load(out), Tokenizer.from_file(str(out / "tokenizer.json"))
    expected = [*tokenizer.encode(BOOK).ids, manifest.tokenizer["end_of_text"]]
    boundary = floor(0.95 * len(expected))
    assert stream(out, "train") == expected[:boundary] and stream(out, "val") == expected[boundary:]
    assert manifest.split == BY_TOKENS and manifest.tokens == {"train": boundary, "val": len(expected) - boundary}
    assert manifest.documents == {"train": 1, "val": 1, "found": 1, "skipped": 0}
    assert abs(sum(manifest.text_bytes.values()) - len(BOOK.encode())) <= 6  # a character may lie on the boundary
    assert verify(out) == [] and not (tmp_path / "out.partial").exists()


def test_the_tokenizer_of_one_book_is_trained_on_its_training_part(tmp_path):
    start = "aaaa bbbb aaaa bbbb " * 96
    for name, end in (("x", "zzzzqqqq" * 10), ("y", "something " * 8)):
        write_file(tmp_path, f"{name}.txt", (start + end).encode())
        prepare(options(tmp_path / f"{name}.txt"), tmp_path / name)
    assert (tmp_path / "x" / "tokenizer.json").read_bytes() == (tmp_path / "y" / "tokenizer.json").read_bytes()


def test_a_short_last_document_is_not_a_validation_split(tmp_path):
    """Two documents, the second of a few tokens: 95 % of the tokens train, with a whole window left to validate."""
    path = write_jsonl(tmp_path / "two.jsonl", [BOOK[:600], "the end"])
    manifest = prepare(options(path), tmp_path / "out")
    total = sum(manifest.tokens.values())
    assert manifest.split == BY_TOKENS
    assert manifest.tokens["val"] == max(total - floor(0.95 * total), 17)
    assert manifest.documents["train"] == 1 and manifest.documents["val"] == 2
    tokenizer, end = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")), manifest.tokenizer["end_of_text"]
    expected = [i for text in (BOOK[:600], "the end") for i in [*tokenizer.encode(text).ids, end]]
    assert stream(tmp_path / "out", "train") + stream(tmp_path / "out", "val") == expected


def test_enough_documents_are_split_by_documents(tmp_path):
    path = write_jsonl(tmp_path / "two.jsonl", [BOOK, BOOK])
    manifest = prepare(options(path), tmp_path / "out")
    assert manifest.split == BY_DOCUMENTS and manifest.documents["train"] == manifest.documents["val"] == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from gmt.data import prepare as p
count, original = int(sys.argv[3]), Path.replace

def replace(self, target):
    global count
    if self.suffix == ".new":
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return original(self, target)

Path.replace = replace
p.prepare(p.PrepareOptions((sys.argv[1],), tokenizer="train:300", context=16), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("count", [1, 2])
def test_killed_while_the_split_streams_are_renamed(book, tmp_path, count):
    done = subprocess.run([sys.executable, "-c", KILLED, book, tmp_path / "out", str(count)])
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "out").exists()
    for name in ("out", "whole"):
        prepare(options(book), tmp_path / name)
    for name in sorted(os.listdir(tmp_path / "whole")):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_too_small_names_what_is_missing_and_keeps_the_tokens(book, tmp_path):
    with pytest.raises(DataError, match=r"book\.txt has 1 document with [\d,]+ tokens; --context 90000 needs 180,002"):
        prepare(options(book, context=90000), tmp_path / "out")
    phases: list[str] = []
    prepare(options(book), tmp_path / "out", tell=lambda phase, *_: phases.append(phase))
    assert set(phases) == {"hashing"}, "the tokens of the first try are used"
    prepare(options(book), tmp_path / "fresh")
    assert stream(tmp_path / "out", "val") == stream(tmp_path / "fresh", "val")
    with pytest.raises(DataError, match=r"empty\.jsonl has no documents; at least 1 is needed"):
        prepare(options(write_file(tmp_path, "empty.jsonl", b"")), tmp_path / "none")
    assert not (tmp_path / "none.partial").exists()


def test_a_cap_that_is_too_small_is_refused_before_anything_is_read(tmp_path, corpus):
    with pytest.raises(
        DataError, match=r"--train-cap 169 leaves 16 validation tokens .* needs 17: use --train-cap 170"
    ):
        prepare(options(corpus, train_cap=169), tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()
    assert prepare(options(corpus, train_cap=170), tmp_path / "out").tokens == {"train": 170, "val": 17}


def test_a_stream_that_is_shorter_than_noted_is_refused(corpus, tmp_path, monkeypatch):
    from gmt.data import prepare as module

    monkeypatch.setattr(module._Run, "_finish", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(options(corpus), tmp_path / "out")
    monkeypatch.undo()
    (tmp_path / "out.partial" / "train.bin").unlink()
    with pytest.raises(DataError, match=r"train\.bin has 0 of the [\d,]+ bytes that note\.json records; delete"):
        prepare(options(corpus), tmp_path / "out")
