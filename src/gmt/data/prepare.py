"""`gmt prepare`: documents in, two flat streams of token ids out.

Everything is written to `OUT.partial` and renamed to OUT when whole. What has been done is noted there every few
seconds, so that an interrupted run goes on where it stopped and ends with the same bytes.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from math import floor
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import numpy as np
from tokenizers import Tokenizer

from gmt import __version__
from gmt.data.encode import Encoded, Job, Workers, chunks
from gmt.data.manifest import BY_TOKENS, SPLITS, Manifest
from gmt.data.partial import NOTE, Note, check_partial, clear_partial, has_tokens, load_note
from gmt.data.sources import BrokenFileError, Raw, Source, find_sources, text_of
from gmt.data.token_split import finish_token_split, token_boundary, write_token_split
from gmt.data.tokenizer import choose_encoder, digest, end_of_text, largest_id, load_tokenizer, train_tokenizer
from gmt.errors import DataError
from gmt.utils.io import sha256_of, write_json

JUDGED_DOCUMENTS = 1000
NOTE_SECONDS = 2.0


@dataclass(frozen=True)
class PrepareOptions:
    sources: tuple[str, ...] = ("python-docs",)
    tokenizer: str = "gpt2"
    text_field: str = "text"
    train_cap: int = 3_000_000_000  # tokens; 0 for none. Validation has a tenth of it
    context: int = 1024  # the corpus must hold one window of this length in each split
    on_error: str = "stop"  # or skip
    dtype: str = "auto"  # or uint16, uint32

    @property
    def caps(self) -> dict[str, int]:
        return {"train": self.train_cap, "val": self.train_cap // 10}


# told what happens: a phase's name, documents done and to do, and the note so far
Listener = Callable[[str, int, int, Note], None]


def prepare(options: PrepareOptions, out: Path, workers: int = 1, tell: Listener = lambda *_: None) -> Manifest:
    """Run or resume a preparation; a folder that is whole and of the same options is left as it is."""
    if workers < 1:
        raise DataError(f"--workers is {workers}; it must be at least 1")
    _check_cap(options)
    run = _Run(options, out, tell)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        return run.already_there()
    try:
        with Workers(workers) as run.workers:
            return run.go()
    except OSError as error:
        where = error.filename or run.folder
        raise DataError(f"cannot write {where}: {error.strerror or error}; run again to go on from here") from None


class _Run:
    workers: Workers

    def __init__(self, options: PrepareOptions, out: Path, tell: Listener) -> None:
        self.options, self.out, self.tell = options, out, tell
        self.folder = out.with_name(out.name + ".partial")
        self.sources: list[Source] = find_sources(options.sources, options.text_field)
        # --context only checks sizes: tokens of a corpus that was too small for one context serve a smaller one
        encoding = {name: value for name, value in asdict(options).items() if name != "context"}
        fingerprint = [encoding, __version__, [source.fingerprint() for source in self.sources]]
        self.fingerprint = json.loads(json.dumps(fingerprint))  # as it will be read back

    def already_there(self) -> Manifest:
        with contextlib.suppress(DataError):
            manifest = Manifest.load(self.out)
            if self._matches(manifest):
                return manifest
        raise DataError(
            f"{self.out} contains other files, or was prepared from other text or with other options; "
            "choose another --out"
        )

    def _matches(self, manifest: Manifest) -> bool:
        return (manifest.sources, manifest.options) == (self._source_sizes(), self._plain_options())

    def _source_sizes(self) -> list[list[Any]]:
        return [[source.name, source.size()] for source in self.sources]

    def _plain_options(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self.options)))

    def go(self) -> Manifest:
        check_partial(self.folder)
        if (manifest := self._killed_at_the_end()) is not None:
            return manifest
        note = load_note(self.folder)
        if note.fingerprint != self.fingerprint:  # of another run, or none: begin anew
            if has_tokens(self.folder):
                message = f"starting again: {self.folder} contains tokens of other sources, options or versions"
                self.tell(message, 0, 0, note)
            clear_partial(self.folder)
            self.folder.mkdir(parents=True)
            note = Note(self.fingerprint)
        if note.found < 0:
            note = Note(self.fingerprint, found=self._count())
            if not note.found:
                clear_partial(self.folder)
                raise DataError(f"{', '.join(self.options.sources)} has no documents; at least 1 is needed")
            write_json(self.folder / NOTE, asdict(note))
        tokenizer = self._tokenizer(note)
        job = self._job(tokenizer, note)
        if note.split == BY_TOKENS:  # killed while the split streams were renamed
            finish_token_split(self.folder)
        else:
            self._encode(job, note)
            self._check_sizes(job, note)
        return self._finish(job, note, tokenizer)

    # --- the folder ---------------------------------------------------------------------------------------------

    def _killed_at_the_end(self) -> Manifest | None:
        """Publish the data of a run that was killed after it wrote the manifest and before it renamed the folder."""
        resumes = load_note(self.folder).fingerprint == self.fingerprint
        if resumes or not (self.folder / "manifest.json").exists():
            return None
        if self._matches(manifest := Manifest.load(self.folder)):
            self._publish()
            return manifest
        raise DataError(f"{self.folder} contains finished data of other options: rename it to keep it, or remove it")

    def _publish(self) -> None:
        (self.folder / NOTE).unlink(missing_ok=True)
        if self.out.is_dir():
            self.out.rmdir()  # it is empty; a rename needs its place
        self.folder.rename(self.out)

    # --- the documents ---------------------------------------------------------------------------------------

    def _documents(self, problems: list[str]) -> Iterator[Raw]:
        """All documents in order; a file that breaks off ends the run, or is noted and left."""
        for source in self.sources:
            try:
                yield from source.read()
            except BrokenFileError as error:
                if self.options.on_error != "skip":
                    raise
                problems.append(str(error))

    def _count(self) -> int:
        """D, before anything is tokenized: the split is by document number."""
        skip = self.options.on_error == "skip"
        known = [None if skip else source.count() for source in self.sources]
        found = sum(n for n in known if n is not None)
        unknown = [source for source, n in zip(self.sources, known, strict=True) if n is None]
        for count in self.workers.count(unknown, skip):
            found += count
            self.tell("counting documents", found, 0, Note())
        return found

    # --- the tokenizer ---------------------------------------------------------------------------------------

    def _tokenizer(self, note: Note) -> Tokenizer:
        path = self.folder / "tokenizer.json"
        if not note.encoder:
            spec = self.options.tokenizer
            tokenizer = self._train(spec, note) if spec.startswith("train:") else load_tokenizer(spec)
            aside = path.with_suffix(".tmp")
            aside.write_text(tokenizer.to_str(), encoding="utf-8")
            aside.replace(path)
        self.workers.warm(path)
        return Tokenizer.from_file(str(path))

    def _train(self, spec: str, note: Note) -> Tokenizer:
        number = spec.removeprefix("train:")
        if not number.isdigit():
            raise DataError(f"--tokenizer {spec}: say how many entries, as in train:2048")
        self.tell("training the tokenizer", 0, 0, note)
        texts = self._texts(note.train_documents)
        if note.found == 1:  # split by tokens: the end of the document validates
            texts = (text[: floor(0.95 * len(text))] for text in texts)
        return train_tokenizer(int(number), texts)

    def _texts(self, count: int) -> Iterator[str]:
        for raw in islice(self._documents([]), count):
            try:
                yield text_of(raw, self.options.text_field)
            except DataError:
                if self.options.on_error != "skip":
                    raise

    def _job(self, tokenizer: Tokenizer, note: Note) -> Job:
        if not note.encoder:
            note.encoder = list(choose_encoder(tokenizer, self._texts(min(JUDGED_DOCUMENTS, note.found))))
            write_json(self.folder / NOTE, asdict(note))
        top, dtype = largest_id(tokenizer), self.options.dtype
        if dtype == "auto":
            dtype = "uint16" if top < 1 << 16 else "uint32"
        if top > np.iinfo(dtype).max:
            raise DataError(f"the tokenizer's largest id is {top}, which {dtype} cannot hold")
        return Job(
            self.folder / "tokenizer.json",
            digest(tokenizer),
            note.encoder[0],
            end_of_text(tokenizer),
            dtype,
            self.options.text_field,
        )

    # --- the streams -----------------------------------------------------------------------------------------

    def _encode(self, job: Job, note: Note) -> None:
        item = np.dtype(job.dtype).itemsize
        with contextlib.ExitStack() as stack:
            files = {
                split: stack.enter_context(_reopen(self.folder / f"{split}.bin", note.tokens[split] * item))
                for split in SPLITS
            }
            broken: list[str] = []
            cursor = _Cursor(self._documents(broken))
            for split, end in (("train", note.train_documents), ("val", note.found)):
                if not _full(note, split, self.options.caps[split]):
                    cursor.skip_to(note.next_document)
                    self._encode_split(split, cursor.until(end), job, note, files)
                if _full(note, split, self.options.caps[split]):  # what lies beyond the cap is not tokenized
                    note.next_document = max(note.next_document, end)
            if note.next_document < note.found:
                now = note.next_document
                raise DataError(f"the sources had {note.found} documents when they were counted, and {now} now")
            cursor.skip_to(note.found + 1)  # a file that breaks off after its last whole line has its say too
            note.skipped += [line for line in broken if line not in note.skipped]
            self._note(note, files)

    def _encode_split(
        self, split: str, documents: Iterator[Raw], job: Job, note: Note, files: dict[str, BinaryIO]
    ) -> None:
        cap, noted = self.options.caps[split], monotonic()
        for result in self.workers.encode(chunks(documents), job):
            if result.problems and self.options.on_error != "skip":
                raise DataError(result.problems[0])
            _append(result, split, cap, np.dtype(job.dtype).itemsize, note, files[split])
            self.tell("tokenizing", note.next_document, note.found, note)
            if monotonic() - noted > NOTE_SECONDS:
                self._note(note, files)
                noted = monotonic()
            if _full(note, split, cap):
                break

    def _note(self, note: Note, files: dict[str, BinaryIO]) -> None:
        """First the tokens, then the word that they are there."""
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
        write_json(self.folder / NOTE, asdict(note))

    def _check_sizes(self, job: Job, note: Note) -> None:
        """Each split must hold a window. Where the documents do not allow that, the stream is split by tokens."""
        need, total = self.options.context + 1, sum(note.tokens.values())
        if all(note.tokens[split] >= need for split in SPLITS):
            return
        if total < 2 * need:
            raise DataError(_too_small(note, total, self.options))
        tokenizer = Tokenizer.from_file(str(job.tokenizer))
        parts = write_token_split(self.folder, token_boundary(total, need), job.dtype, job.end_of_text, tokenizer)
        # the note is written first: a run killed during the renames below finishes them when it is resumed
        note.split, note.tokens, note.documents, note.text_bytes = BY_TOKENS, *parts
        write_json(self.folder / NOTE, asdict(note))
        finish_token_split(self.folder)

    def _finish(self, job: Job, note: Note, tokenizer: Tokenizer) -> Manifest:
        self.tell("hashing", 0, 0, note)
        manifest = Manifest(
            sources=self._source_sizes(),
            options=self._plain_options(),
            documents=note.documents | {"found": note.found, "skipped": len(note.skipped)},
            tokens=note.tokens,
            text_bytes=note.text_bytes,
            caps=self.options.caps,
            tokenizer={
                "name": self.options.tokenizer,
                "sha256": sha256_of(self.folder / "tokenizer.json"),
                "vocab": largest_id(tokenizer) + 1,
                "end_of_text": job.end_of_text,
                "encoder": note.encoder[0],
                "encoder_reason": note.encoder[1],
            },
            dtype=job.dtype,
            sha256={split: sha256_of(self.folder / f"{split}.bin") for split in SPLITS},
            version=__version__,
            skipped=note.skipped,
            split=note.split,
        )
        manifest.save(self.folder)
        self._publish()
        return manifest


def _check_cap(options: PrepareOptions) -> None:
    """Known before anything is read: a cap can make validation too small for one window."""
    least, val = options.context + 1, options.caps["val"]
    if options.train_cap and val < least:
        raise DataError(
            f"--train-cap {options.train_cap:,} leaves {val:,} validation tokens (a tenth); --context "
            f"{options.context} needs {least:,}: use --train-cap {10 * least:,} or more, or 0 for no cap"
        )


def _too_small(note: Note, total: int, options: PrepareOptions) -> str:
    """What is missing: documents or tokens, and how many are needed."""
    need = 2 * (options.context + 1)
    where = ", ".join(options.sources)
    window = f"--context {options.context} needs {need:,} (one window and its next token for each of train and val)"
    some = "1 document" if note.found == 1 else f"{note.found:,} documents"
    capped = " after --train-cap" if options.train_cap and _full(note, "train", options.train_cap) else ""
    return (
        f"the corpus is too small: {where} has {some} with {total:,} tokens{capped}; {window}. "
        "The tokens are kept: run again with a smaller --context to use them"
    )


def _append(result: Encoded, split: str, cap: int, item: int, note: Note, file: BinaryIO) -> None:
    """A chunk's tokens to the stream, cut at the cap; the document that reaches it is counted whole."""
    room = cap - note.tokens[split] if cap else len(result.tokens)
    tokens = result.tokens[: room * item] if cap else result.tokens
    kept, total = 0, 0
    while kept < len(result.lengths) and (not cap or total < room):
        total += result.lengths[kept]
        kept += 1
    file.write(tokens)
    note.tokens[split] += len(tokens) // item
    note.documents[split] += kept
    note.text_bytes[split] += sum(result.text_bytes[:kept])
    note.next_document += result.seen
    note.skipped += result.problems


def _full(note: Note, split: str, cap: int) -> bool:
    return 0 < cap <= note.tokens[split]


class _Cursor:
    """Documents with their number: workers read ahead of what has been written, so that must be counted here."""

    def __init__(self, documents: Iterator[Raw]) -> None:
        self.documents, self.position = documents, 0

    def until(self, end: int) -> Iterator[Raw]:
        for raw in islice(self.documents, max(end - self.position, 0)):
            self.position += 1
            yield raw

    def skip_to(self, position: int) -> None:
        for _ in self.until(position):
            pass


def _reopen(path: Path, size: int) -> BinaryIO:
    """The stream as it was when last noted: what a killed run wrote after that is cut off."""
    found = path.stat().st_size if path.exists() else 0
    if found < size:
        raise DataError(f"{path} has {found:,} of the {size:,} bytes that note.json records; delete {path.parent}")
    path.touch()
    os.truncate(path, size)
    return path.open("ab")
