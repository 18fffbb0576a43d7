"""Split a token stream by tokens, for a corpus with too few documents to split by documents."""

import os
from math import floor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gmt.data.manifest import SPLITS

COPY_TOKENS = 1 << 22


def token_boundary(total: int, least: int) -> int:
    """Tokens that train: 95 % of `total`, but at least `least` are left to validate."""
    return min(floor(0.95 * total), total - least)


def write_token_split(
    folder: Path, boundary: int, dtype: str, end_of_text: int, tokenizer: Tokenizer
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Write train.new and val.new: train.bin followed by val.bin, divided at `boundary`.

    Returns tokens, documents and bytes of text by split. A document that the boundary divides counts in both splits.
    """
    streams = [_read(folder / f"{split}.bin", dtype) for split in SPLITS]
    total = sum(len(stream) for stream in streams)
    tokens, documents, text_bytes = {}, {}, {}
    for split, start, end in (("train", 0, boundary), ("val", boundary, total)):
        ends = last = size = 0
        with (folder / f"{split}.new").open("wb") as file:
            for part in _between(streams, start, end):
                file.write(part.tobytes())
                ends += int((part == end_of_text).sum())
                last = int(part[-1])
                size += _bytes_of(tokenizer, part)
            file.flush()
            os.fsync(file.fileno())
        tokens[split], text_bytes[split] = end - start, size
        documents[split] = ends + (last != end_of_text)
    return tokens, documents, text_bytes


def finish_token_split(folder: Path) -> None:
    """Rename the streams of `write_token_split`; those that are renamed already stay as they are."""
    for split in SPLITS:
        new = folder / f"{split}.new"
        if new.exists():
            new.replace(folder / f"{split}.bin")


def _read(path: Path, dtype: str) -> NDArray[np.integer]:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")


def _between(streams: list[NDArray[np.integer]], start: int, end: int):
    """The tokens [start, end) of all streams in order, in parts."""
    offset = 0
    for stream in streams:
        low, high = max(start - offset, 0), min(end - offset, len(stream))
        for at in range(low, high, COPY_TOKENS):
            yield stream[at : min(at + COPY_TOKENS, high)]
        offset += len(stream)


def _bytes_of(tokenizer: Tokenizer, part: NDArray[np.integer]) -> int:
    return len(tokenizer.decode(part.tolist(), skip_special_tokens=True).encode())
