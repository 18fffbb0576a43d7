import gzip
import json
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from gmt.data.prepare import PrepareOptions

TOKENIZER = "train:300"

WORDS = [
    *("the", "cat", "sat", "on", "a", "mat", "while", "café", "owners", "in", "Łódź", "counted", "12", "or", "345"),
    *("naïve", "日本", "stars,", "didn't", "they?", "\n\t"),
]


def invented(count: int, seed: int = 0) -> list[str]:
    """Documents of different lengths; every seventh is empty, which is no error."""
    random.seed(seed)
    return ["" if n % 7 == 3 else " ".join(random.choices(WORDS, k=random.randint(1, 60))) for n in range(count)]


def write_jsonl(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: t, "n": n}) + "\n" for n, t in enumerate(texts)), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_jsonl(tmp_path / "corpus.jsonl", invented(400))


def options(*sources, **kwargs) -> PrepareOptions:
    return PrepareOptions(tuple(map(str, sources)), **{"tokenizer": TOKENIZER, "context": 16, **kwargs})


def compressed(path: Path, kind: str, texts: list[str]) -> Path:
    lines = write_jsonl(path / "plain", texts).read_bytes()
    target = path / f"corpus.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "n": list(range(len(texts)))}), target)
    elif kind == "jsonl.zst":  # two frames: files are often joined
        frames = [zstandard.ZstdCompressor().compress(part) for part in (lines[:1000], lines[1000:])]
        target.write_bytes(b"".join(frames))
    else:
        target.write_bytes(gzip.compress(lines))
    return target


def truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-20])
    return path


def write_file(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name
