"""Chunks of documents to chunks of tokens, in one process or in several; results come in the order of the input."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from gmt.data.sources import Raw, text_of
from gmt.data.tokenizer import Encode, encoder_named
from gmt.errors import DataError

CHUNK_BYTES, CHUNK_DOCUMENTS = 1 << 20, 512


class Job(NamedTuple):
    """All a worker needs, as text: it loads the rest itself."""

    tokenizer: Path
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


def encode_chunk(group: list[Raw], job: Job, encode: Encode) -> Encoded:
    texts, problems = [], []
    for raw in group:
        try:
            texts.append(text_of(raw, job.text_field))
        except DataError as error:
            problems.append(str(error))
    end = np.array([job.end_of_text], dtype=job.dtype)
    ids = encode(texts)
    parts = [part for row in ids for part in (row.astype(job.dtype, copy=False), end)]
    tokens = np.concatenate(parts).tobytes() if parts else b""
    return Encoded(tokens, [len(row) + 1 for row in ids], [_utf8_length(t) for t in texts], len(group), problems)


def encode_all(groups: Iterable[list[Raw]], job: Job, workers: int) -> Generator[Encoded, None, None]:
    if workers == 1:
        encode = encoder_named(job.encoder, Tokenizer.from_file(str(job.tokenizer)))
        yield from (encode_chunk(group, job, encode) for group in groups)
        return
    # spawned, not forked: tokenizers' threads do not survive a fork. Few chunks are under way at a time, so that
    # memory does not grow with the input.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start_worker, initargs=(job,))
    waiting: deque[Future[Encoded]] = deque()
    try:
        for group in groups:
            waiting.append(pool.submit(_work, group))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_JOB: tuple[Job, Encode] | None = None


def _start_worker(job: Job) -> None:
    global _JOB
    _JOB = job, encoder_named(job.encoder, Tokenizer.from_file(str(job.tokenizer)))


def _work(group: list[Raw]) -> Encoded:
    assert _JOB is not None
    job, encode = _JOB
    return encode_chunk(group, job, encode)


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
