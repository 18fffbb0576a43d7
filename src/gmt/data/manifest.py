"""What stands beside the streams: manifest.json, and the checks that the streams are what it says."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gmt.errors import DataError
from gmt.utils.io import sha256_of, write_json

FORMAT = 1
SPLITS = ("train", "val")
BY_DOCUMENTS = "the first floor(0.95 D) documents train, the rest validate"
BY_TOKENS = "the first 95 % of the tokens train, the rest validate"


@dataclass
class Manifest:
    """The facts of one prepared folder. Deterministic: no times, no machine, no number of workers."""

    sources: list[list[Any]]  # name and size in bytes, where a source has one
    options: dict[str, Any]  # as `gmt prepare` was told
    documents: dict[str, int]  # per split, those that are in the stream; `found` counts all, `skipped` the bad ones
    tokens: dict[str, int]
    text_bytes: dict[str, int]
    caps: dict[str, int]
    tokenizer: dict[str, Any]  # name, sha256 of tokenizer.json's content, vocab, end_of_text, encoder
    dtype: str
    sha256: dict[str, str]
    split: str = BY_DOCUMENTS
    format: int = FORMAT
    version: str = ""
    skipped: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        write_json(folder / "manifest.json", asdict(self))

    @classmethod
    def load(cls, folder: str | Path) -> "Manifest":
        path = Path(folder) / "manifest.json"
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            if tree["format"] != FORMAT:
                raise DataError(f"{path} is of format {tree['format']}; this version reads format {FORMAT}")
            return cls(**tree)
        except OSError:
            raise DataError(f"{folder} holds no prepared data: there is no manifest.json in it") from None
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} is not a manifest of prepared data") from None

    def digest(self) -> str:
        """One hash for the data set: the same streams of the same tokenizer have the same."""
        return hashlib.sha256(json.dumps([self.sha256, self.tokenizer["sha256"], self.dtype]).encode()).hexdigest()


def verify(folder: str | Path) -> list[str]:
    """Every way in which the folder is not what its manifest says; an empty list is a whole folder."""
    root, manifest = Path(folder), Manifest.load(folder)
    problems = []
    for split in SPLITS:
        path = root / f"{split}.bin"
        if not path.exists():
            problems.append(f"{path} is missing")
            continue
        size, wanted = path.stat().st_size, manifest.tokens[split] * np.dtype(manifest.dtype).itemsize
        if size != wanted:
            problems.append(f"{path} has {size:,} bytes, not {wanted:,}")
        if sha256_of(path) != manifest.sha256[split]:
            problems.append(f"{path} has another sha256 than its manifest")
        if (top := _largest(path, manifest.dtype)) >= manifest.tokenizer["vocab"]:
            problems.append(f"{path} holds the id {top}; the vocabulary ends at {manifest.tokenizer['vocab'] - 1}")
    tokenizer = root / "tokenizer.json"
    if not tokenizer.exists() or sha256_of(tokenizer) != manifest.tokenizer["sha256"]:
        problems.append(f"{tokenizer} is missing or another than its manifest's")
    return problems


def _largest(path: Path, dtype: str) -> int:
    whole = path.stat().st_size // np.dtype(dtype).itemsize
    if whole == 0:
        return -1
    tokens = np.memmap(path, dtype=dtype, mode="r", shape=(whole,))
    return max(int(tokens[at : at + (1 << 22)].max()) for at in range(0, whole, 1 << 22))
