"""`gmt prepare`: split, caps and end-of-text, the same bytes however it is run, and clear words for bad input."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from math import floor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from gmt.data import encode
from gmt.data import prepare as prepare_module
from gmt.data.manifest import Manifest, verify
from gmt.data.prepare import prepare
from gmt.errors import DataError
from tests.data.conftest import TOKENIZER, compressed, invented, options, truncated, write_file, write_jsonl


def tokens(folder: Path, split: str) -> np.ndarray:
    return np.fromfile(folder / f"{split}.bin", dtype=Manifest.load(folder).dtype)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_the_papers_rules(corpus, tmp_path):
    """First floor(0.95 D) documents train, the rest validate; end-of-text after each; nothing else is added."""
    out = tmp_path / "out"
    manifest = prepare(options(corpus), out)
    assert sorted(p.name for p in out.iterdir()) == ["manifest.json", "tokenizer.json", "train.bin", "val.bin"]
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    texts, boundary = invented(400), floor(0.95 * 400)
    end = manifest.tokenizer["end_of_text"]
    for split, part in (("train", texts[:boundary]), ("val", texts[boundary:])):
        expected = [i for text in part for i in [*tokenizer.encode(text).ids, end]]
        assert tokens(out, split).tolist() == expected
        assert manifest.tokens[split] == len(expected)
        assert manifest.documents[split] == len(part)
        assert manifest.text_bytes[split] == sum(len(t.encode()) for t in part)
        documents = tokenizer.decode(expected, skip_special_tokens=False).split("<|endoftext|>")[:-1]
        assert documents == part, "an empty document gives an end-of-text token and nothing else"
    assert verify(out) == []


def test_the_tokenizer_is_trained_on_training_documents_only(tmp_path):
    texts = ["aaaa bbbb aaaa bbbb " * 8] * 95
    for name, rest in (("x", "zzzzqqqq " * 30), ("y", "something else")):
        write_jsonl(tmp_path / f"{name}.jsonl", [*texts, *[rest * 20] * 5])
        prepare(options(tmp_path / f"{name}.jsonl"), tmp_path / name)
    assert (tmp_path / "x" / "tokenizer.json").read_bytes() == (tmp_path / "y" / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("cap", [2, 50, 777, 10**9])
@pytest.mark.parametrize("workers", [1, 2])
def test_caps_cut_both_streams(corpus, tmp_path, cap, workers, monkeypatch):
    monkeypatch.setattr(encode, "CHUNK_DOCUMENTS", 5)  # workers read ahead of the cap
    whole, out = tmp_path / "whole", tmp_path / "out"
    prepare(options(corpus, train_cap=0), whole)
    manifest = prepare(options(corpus, train_cap=cap * 10, context=1), out, workers)
    for split, most in (("train", cap * 10), ("val", cap)):
        assert np.array_equal(tokens(out, split), tokens(whole, split)[:most])
        assert manifest.tokens[split] == len(tokens(out, split))
    if cap == 50:
        ends = np.flatnonzero(tokens(whole, "train") == manifest.tokenizer["end_of_text"])
        assert manifest.documents["train"] == int(np.searchsorted(ends, cap * 10 - 1)) + 1


def test_any_number_of_workers_gives_the_same_bytes(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "CHUNK_DOCUMENTS", 7)
    folders = []
    for workers in (1, 2, 3):
        prepare(options(corpus), tmp_path / str(workers), workers)
        folders.append(folder_bytes(tmp_path / str(workers)))
    assert folders[0] == folders[1] == folders[2]


KILLED = """
import os, signal, sys
from pathlib import Path
from gmt.data import encode, prepare as p, manifest
encode.CHUNK_DOCUMENTS, p.NOTE_SECONDS = 5, 0.0
moment, count = sys.argv[3], int(sys.argv[4])

def kill_at(module, name):
    original = getattr(module, name)
    def wrapper(*args, **kwargs):
        global count
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(module, name, wrapper)

if __name__ == "__main__":
    target, _, name = moment.rpartition(".")
    kill_at({"p": p, "os": os, "run": p._Run}[target], name)
    p.prepare(p.PrepareOptions((sys.argv[1],), tokenizer="train:300", context=16), Path(sys.argv[2]))
"""

MOMENTS = [
    ("p.write_json", 1), ("p.write_json", 2), ("p.write_json", 9), ("p._append", 1), ("p._append", 33),
    ("os.fsync", 20), ("os.fsync", 21), ("p.sha256_of", 2), ("run._check_sizes", 1), ("p.train_tokenizer", 1),
]  # fmt: skip


@pytest.mark.parametrize(("moment", "count"), MOMENTS)
def test_kill_minus_nine_and_go_on(corpus, tmp_path, moment, count, monkeypatch):
    monkeypatch.setattr(encode, "CHUNK_DOCUMENTS", 5)
    monkeypatch.setattr(prepare_module, "NOTE_SECONDS", 0.0)
    prepare(options(corpus), tmp_path / "whole")
    done = subprocess.run([sys.executable, "-c", KILLED, corpus, tmp_path / "out", moment, str(count)])
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists(), "nothing stands under the final name before it is whole"
    began = []
    prepare(options(corpus), tmp_path / "out", tell=lambda phase, done, total, note: began.append((phase, done)))
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")
    if (moment, count) == ("p._append", 33):
        assert min(n for phase, n in began if phase == "tokenizing") > 100, "it went on, and did not begin anew"


def test_kill_minus_nine_from_outside_with_workers(tmp_path):
    """The whole command, killed when it has written something, then run again."""
    corpus = write_jsonl(tmp_path / "big.jsonl", invented(12000))
    command = [sys.executable, "-m", "gmt", "prepare", str(corpus), "--tokenizer", TOKENIZER, "--workers", "2"]
    victim = subprocess.Popen([*command, "--out", str(tmp_path / "out")], start_new_session=True)
    stream = tmp_path / "out.partial" / "train.bin"
    while victim.poll() is None and not (stream.exists() and stream.stat().st_size > 0):
        time.sleep(0.005)
    os.killpg(victim.pid, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL and not (tmp_path / "out").exists()
    subprocess.run([*command, "--out", str(tmp_path / "out")], check=True, capture_output=True)
    prepare(options(corpus, context=1024), tmp_path / "whole")
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["json.gz", "jsonl.gz", "jsonl.zst", "parquet"])
def test_every_format_gives_the_same_streams(corpus, tmp_path, kind):
    prepare(options(corpus), tmp_path / "a")
    prepare(options(compressed(tmp_path, kind, invented(400))), tmp_path / "b")
    for name in ("train.bin", "val.bin", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_folders_and_globs_are_read_in_order(tmp_path):
    texts = [t or "x" for t in invented(40)]
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for n, text in enumerate(texts):
        (tmp_path / "in" / ("sub" if n > 30 else "") / f"{n:02}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "in" / "notes.md").write_text("not a document")
    write_jsonl(tmp_path / "same.jsonl", texts)
    prepare(options(tmp_path / "same.jsonl"), tmp_path / "a")
    prepare(options(tmp_path / "in"), tmp_path / "b")
    prepare(options(tmp_path / "in" / "*.txt", tmp_path / "in" / "sub" / "*.txt"), tmp_path / "c")
    assert tokens(tmp_path / "a", "train").tolist() == tokens(tmp_path / "b", "train").tolist()
    assert tokens(tmp_path / "a", "val").tolist() == tokens(tmp_path / "c", "val").tolist()


def test_skipping_counts_and_lists(tmp_path):
    good = b'{"text": "good enough for a document, and long enough for a window of sixteen"}\n'
    bad = [b'{"text": "caf\xe9"}\n', b"{}\n"]
    first = write_file(tmp_path, "1.jsonl", good * 30 + bad[0] + good * 30)
    second = truncated(compressed(tmp_path, "jsonl.zst", [good.decode()] * 99))
    third = write_file(tmp_path, "3.jsonl", good * 50 + bad[1] + good)
    manifest = prepare(options(first, second, third, on_error="skip"), tmp_path / "out")
    assert manifest.documents["skipped"] == len(manifest.skipped) == 3
    assert [line.split(": ")[1] for line in sorted(manifest.skipped)] == [
        "byte 14 is not UTF-8", "there is no field 'text', only ", "the file is cut short",
    ]  # fmt: skip
    kept = manifest.documents["train"] + manifest.documents["val"]
    assert kept == manifest.documents["found"] - 2 and kept > 111
    assert verify(tmp_path / "out") == []


def test_a_small_corpus_is_refused_with_what_is_missing(tmp_path):
    path = write_jsonl(tmp_path / "small.jsonl", ["one two"] * 10)
    tokenizer = _small_tokenizer(tmp_path)
    with pytest.raises(DataError, match=r"has 10 documents with 30 tokens; --context 16 needs 34"):
        prepare(options(path, tokenizer=str(tokenizer)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _small_tokenizer(folder: Path, extra: dict[str, int] | None = None) -> Path:
    from tokenizers import models, pre_tokenizers

    vocabulary = {"[UNK]": 0, "one": 1, "two": 2, "three": 3, "<|endoftext|>": 4} | (extra or {})
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "words.json"))
    return folder / "words.json"


def test_types_of_ids(tmp_path):
    path = write_jsonl(tmp_path / "c.jsonl", ["one two three far"] * 400)
    far = str(_small_tokenizer(tmp_path, {"far": 70000}))
    manifest = prepare(options(path, tokenizer=far), tmp_path / "out")
    assert manifest.dtype == "uint32" and tokens(tmp_path / "out", "train").max() == 70000
    with pytest.raises(DataError, match="largest id is 70000, which uint16 cannot hold"):
        prepare(options(path, tokenizer=far, dtype="uint16"), tmp_path / "other")
    broken = json.loads(Path(far).read_text())
    del broken["model"]["vocab"]["<|endoftext|>"]
    endless = write_file(tmp_path, "endless.json", json.dumps(broken).encode())
    with pytest.raises(DataError, match="the tokenizer has no end-of-text token"):
        prepare(options(path, tokenizer=str(endless)), tmp_path / "x")


def test_a_full_disk_and_an_occupied_folder(corpus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:

        def full(*args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(prepare_module, "_append", full)
        with pytest.raises(DataError, match=r"cannot write .*No space left on device; run again to go on"):
            prepare(options(corpus), out)
        assert not out.exists()
    prepare(options(corpus), out)
    before = folder_bytes(out)
    prepare(options(corpus), out)  # the same again is no work
    with pytest.raises(DataError, match="or was prepared from other text or with other options"):
        prepare(options(corpus, context=8), out)
    write_jsonl(corpus, invented(401))
    with pytest.raises(DataError, match="or was prepared from other text or with other options"):
        prepare(options(corpus), out)
    assert folder_bytes(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(DataError, match="or was prepared from other text or with other options"):
        prepare(options(corpus), tmp_path / "mine")


def test_a_file_given_twice_is_read_and_counted_twice(tmp_path):
    path = compressed(tmp_path, "parquet", invented(200))
    manifest = prepare(options(path, path), tmp_path / "out")
    assert manifest.documents["found"] == manifest.documents["train"] + manifest.documents["val"] == 400


def test_a_partial_folder_of_somebody_else_is_left(corpus, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match=r"out\.partial contains thesis\.txt, which `gmt prepare` did not write"):
        prepare(options(corpus), tmp_path / "out")
    assert (tmp_path / "out.partial" / "thesis.txt").exists()


def test_changed_options_begin_anew(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module._Run, "_finish", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(options(corpus), tmp_path / "out")
    monkeypatch.undo()
    prepare(options(corpus, tokenizer="train:400"), tmp_path / "out")
    prepare(options(corpus, tokenizer="train:400"), tmp_path / "fresh")
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda d: (d / "train.bin").write_bytes(b"\xff" * (d / "train.bin").stat().st_size), "another sha256"),
        (lambda d: os.truncate(d / "val.bin", 10), r"val.bin has 10 bytes, not"),
        (lambda d: (d / "val.bin").unlink(), r"val\.bin is missing"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), r"tokenizer\.json is missing or another"),
    ],
)
def test_verify_sees_damage(corpus, tmp_path, damage, told):
    prepare(options(corpus), tmp_path / "out")
    damage(tmp_path / "out")
    problems = "; ".join(verify(tmp_path / "out"))
    assert re.search(told, problems)
    if "sha256" in told:
        assert "holds the id 65535; the vocabulary ends at" in problems


def test_manifests_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"there is no manifest\.json"):
        verify(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="is not a manifest"):
        verify(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(DataError, match="is of format 99; this version reads format 1"):
        verify(tmp_path)


@pytest.mark.parametrize("spec", ["train:256", "train:many", "no/such/tokenizer.json"])
def test_bad_tokenizers(corpus, tmp_path, spec):
    with pytest.raises(DataError, match=r"at least 257|how many entries|cannot read the tokenizer"):
        prepare(options(corpus, tokenizer=spec), tmp_path / "out")


def test_python_docs_from_end_to_end(tmp_path):
    """The embedded corpus by the command itself, with no network and no download."""
    out = tmp_path / "docs"
    command = [sys.executable, "-m", "gmt"]
    run = {"check": True, "capture_output": True, "text": True}
    done = subprocess.run([*command, "prepare", "--out", out, "--tokenizer", "train:1024", "--context", "128"], **run)
    assert "1,024 entries (train:1024) as uint16" in done.stdout
    manifest = Manifest.load(out)
    assert 1.5e6 < sum(manifest.text_bytes.values()) < 6e6
    assert verify(out) == []
    shown = subprocess.run(
        [*command, "data", "show", out, "--step", "2", "--context", "128", "--micro-batch", "2", "--accumulation", "3"],
        **run,
    ).stdout.splitlines()
    assert shown[0].startswith("step 2: epoch 0") and len(shown) == 7
    assert "is whole" in subprocess.run([*command, "data", "verify", out], **run).stdout
    (out / "train.bin").write_bytes(b"")
    damaged = subprocess.run([*command, "data", "verify", out], capture_output=True, text=True)
    assert damaged.returncode == 1 and "train.bin has 0 bytes" in damaged.stderr
