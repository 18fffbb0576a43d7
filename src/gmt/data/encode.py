"""Chunks of documents to chunks of tokens, in one process or in several; results come in the order of the input."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from gmt.data.sources import BrokenFileError, Raw, Source, text_of
from gmt.data.tokenizer import Encode, encoder_named, tiktoken_encode
from gmt.errors import DataError

CHUNK_BYTES, CHUNK_DOCUMENTS = 1 << 20, 512


class Job(NamedTuple):
    """All a worker needs, as text: it loads the rest itself."""

    tokenizer: Path
    digest: str  # of the tokenizer: a path may come to hold another one
    encoder: str
    end_of_text: int
    dtype: str
    text_field: str


class Encoded(NamedTuple):
    tokens: bytes  # ids of the chunk's documents, each followed by end-of-text
    lengths: list[int]  # tokens of each good document, end-of-text included
    text_bytes: list[int]  # UTF-8 bytes of each good document
    seen: int  # documents in the chunk, good or bad
    problems: list[str]


def chunks(documents: Iterable[Raw]) -> Iterator[list[Raw]]:
    """Documents in groups of about a megabyte."""
    group: list[Raw] = []
    size = 0
    for raw in documents:
        group.append(raw)
        size += len(raw.data)
        if size >= CHUNK_BYTES or len(group) >= CHUNK_DOCUMENTS:
            yield group
            group, size = [], 0
    if group:
        yield group


def encode_chunk(group: list[Raw], job: Job) -> Encoded:
    texts, problems = [], []
    for raw in group:
        try:
            texts.append(text_of(raw, job.text_field))
        except DataError as error:
            problems.append(str(error))
    end = np.array([job.end_of_text], dtype=job.dtype)
    ids = _encoder(job)(texts)
    parts = [part for row in ids for part in (row.astype(job.dtype, copy=False), end)]
    tokens = np.concatenate(parts).tobytes() if parts else b""
    return Encoded(tokens, [len(row) + 1 for row in ids], [_utf8_length(t) for t in texts], len(group), problems)


class Workers:
    """Processes that encode, or none: with one worker the work is done where it is asked for.

    They are spawned, not forked (tokenizers' threads do not survive a fork), and started at once, so that they
    import while the documents are counted.
    """

    def __init__(self, count: int) -> None:
        self.count_of_workers = count
        self.pool = ProcessPoolExecutor(count, get_context("spawn")) if count > 1 else None
        for _ in range(count if self.pool else 0):
            self.pool.submit(int)  # pyright: ignore[reportOptionalMemberAccess]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def count(self, sources: list[Source], skip: bool) -> Iterator[int]:
        """Documents of each source; files are counted side by side."""
        if self.pool is None:
            yield from (count_documents(source, skip) for source in sources)
        else:
            tasks = [self.pool.submit(count_documents, source, skip) for source in sources]
            yield from (task.result() for task in tasks)

    def warm(self, tokenizer: Path) -> None:
        """Let the workers build the likely encoder while the choice is still being made."""
        for _ in range(self.count_of_workers if self.pool else 0):
            self.pool.submit(_warm, tokenizer)  # pyright: ignore[reportOptionalMemberAccess]

    def encode(self, groups: Iterable[list[Raw]], job: Job) -> Iterator[Encoded]:
        """Results in the order of the groups. Few are under way at a time: memory does not grow with the input."""
        if self.pool is None:
            yield from (encode_chunk(group, job) for group in groups)
            return
        waiting: deque[Future[Encoded]] = deque()
        for group in groups:
            waiting.append(self.pool.submit(encode_chunk, group, job))
            if len(waiting) > 2 * self.count_of_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@lru_cache(maxsize=1)
def _encoder(job: Job) -> Encode:
    return encoder_named(job.encoder, Tokenizer.from_file(str(job.tokenizer)))


def _warm(tokenizer: Path) -> None:
    tiktoken_encode(Tokenizer.from_file(str(tokenizer)))


def count_documents(source: Source, skip: bool) -> int:
    found = 0
    try:
        for _ in source.read():
            found += 1
    except BrokenFileError:
        if not skip:
            raise
    return found


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
