"""Bad input of `gmt prepare` is one sentence with file and line, and nothing stands under the final name."""

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from gmt.data.prepare import prepare
from gmt.errors import DataError
from tests.data.conftest import compressed, invented, options, truncated, write_file

BAD = {
    "not UTF-8": (lambda d: _lines(d, b'{"text": "caf\xe9"}'), r"bad\.jsonl:3: byte 14 is not UTF-8"),
    "no field": (lambda d: _lines(d, b'{"body": "x"}'), r"bad\.jsonl:3: there is no field 'text', only body"),
    "not text": (lambda d: _lines(d, b'{"text": 4}'), r"bad\.jsonl:3: the field 'text' is int, not text"),
    "not JSON": (lambda d: _lines(d, b'{"text": '), r"bad\.jsonl:3: not JSON"),
    "a list": (lambda d: _lines(d, b"[1]"), r"bad\.jsonl:3: there is no field 'text', only a list"),
    "half a surrogate": (
        lambda d: _lines(d, b'{"text": "\\ud83d"}'),
        r"bad\.jsonl:3: the text has half of a surrogate",
    ),
    "cut .zst": (lambda d: truncated(compressed(d, "jsonl.zst", invented(99))), r"zst:\d+: the file is cut short"),
    "no .zst": (
        lambda d: write_file(d, "a.jsonl.zst", b"hello"),
        r"a\.jsonl\.zst:1: cannot be read: not zstandard data",
    ),
    "cut .gz": (lambda d: truncated(compressed(d, "json.gz", invented(99))), r"gz:\d+: the file is cut short"),
    "cut .parquet": (lambda d: truncated(compressed(d, "parquet", invented(99))), r"parquet:1: not a whole parquet"),
    "another column": (lambda d: _parquet(d, {"body": ["x"]}), r"parquet:1: there is no field 'text', only body"),
    "broken .gz": (lambda d: _corrupt(compressed(d, "json.gz", invented(99))), r"gz:\d+: cannot be read: Error -3"),
    "parquet that is not UTF-8": (lambda d: _latin(d), r"latin\.parquet:2: byte 4 is not UTF-8"),
    "a null": (lambda d: _parquet(d, {"text": ["x", None]}), r"parquet:2: the field 'text' is NoneType"),
    "dangling link": (lambda d: _link(d), r"gone\.jsonl: cannot be read: No such file"),
    "unreadable": (lambda d: _folder_as_file(d), r"the folder .* holds no file"),
    "unknown ending": (lambda d: write_file(d, "a.doc", b"x"), r"a\.doc has none of the endings"),
    "nothing there": (lambda d: d / "no/such/thing.jsonl", "is no file, folder or glob"),
}


def _lines(folder: Path, bad: bytes) -> Path:
    good = b'{"text": "good enough for a document"}\n'
    return write_file(folder, "bad.jsonl", good + b"\n" + bad + b"\n" + good * 200)


def _parquet(folder: Path, columns: dict) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def _corrupt(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[200:260] = b"\xff" * 60
    path.write_bytes(data)
    return path


def _latin(folder: Path) -> Path:
    raw = pyarrow.array([b"good", b"caf\xe9"], pyarrow.binary())
    column = pyarrow.Array.from_buffers(pyarrow.string(), 2, raw.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), folder / "latin.parquet")
    return folder / "latin.parquet"


def _link(folder: Path) -> Path:
    (folder / "gone.jsonl").symlink_to(folder / "nowhere")
    return folder / "gone.jsonl"


def _folder_as_file(folder: Path) -> Path:
    (folder / "a.jsonl").mkdir()
    return folder / "a.jsonl"


# most are found before or apart from the workers; those two are not
@pytest.mark.parametrize(("case", "workers"), [*((case, 1) for case in BAD), ("not UTF-8", 2), ("cut .zst", 2)])
def test_bad_input_is_one_sentence_with_file_and_line(tmp_path, case, workers):
    make, told = BAD[case]
    with pytest.raises(DataError, match=told) as error:
        prepare(options(make(tmp_path)), tmp_path / "out", workers)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
