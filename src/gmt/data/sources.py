"""Documents from wherever they are, undecoded, one at a time and in a fixed order.

A source is `python-docs`, a local file, folder or glob, or the name of a Hugging Face dataset. Reading yields
raw bytes with the place they came from; turning bytes into text is the workers' part (`text_of`).
"""

import glob
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gmt.errors import DataError

try:  # twice as fast as json, and as strict; it comes with the extra `data`
    import orjson as fast_json
except ImportError:
    fast_json = None

BLOCK = 1 << 20


class Raw(NamedTuple):
    """One document as it was found."""

    file: str
    line: int  # from 1; in a parquet file the row
    data: bytes
    is_json: bool

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class BrokenFileError(DataError):
    """A file that ends too early or cannot be read; what came before is good."""


class Source(Protocol):
    name: str

    def fingerprint(self) -> Any:
        """Changes when the documents do; compared when a run is resumed."""
        ...

    def size(self) -> int | None:
        """Bytes on the disk, where that means something."""
        ...

    def read(self) -> Iterator[Raw]: ...

    def count(self) -> int | None:
        """The number of documents where it is known without reading them."""
        ...


class FileSource:
    """One local file; the suffix says how it is read."""

    def __init__(self, path: Path, text_field: str) -> None:
        self.path, self.name, self.text_field = path, str(path), text_field
        self._read = _reader(path)

    def fingerprint(self) -> Any:
        try:
            stat = self.path.stat()
        except OSError as error:
            raise BrokenFileError(f"{self.name}: cannot be read: {error.strerror}") from None
        return [self.name, stat.st_size, stat.st_mtime_ns]

    def size(self) -> int | None:
        return self.path.stat().st_size

    def count(self) -> int | None:
        if self.path.suffix == ".parquet":
            return _parquet(self.path).metadata.num_rows
        return 1 if self.path.suffix == ".txt" else None

    def read(self) -> Iterator[Raw]:
        line = 0
        try:
            for line, data, is_json in self._read(self.path, self.text_field):
                yield Raw(self.name, line, data, is_json)
        except (OSError, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise BrokenFileError(f"{self.name}:{line + 1}: cannot be read: {why}") from None
        except EOFError:
            raise BrokenFileError(f"{self.name}:{line + 1}: the file is cut short") from None


def find_sources(names: Iterable[str], text_field: str) -> list[Source]:
    """Sources in the order given; the files of a folder or glob in the order of their names."""
    from gmt.data.hub import HubSource, is_hub_name
    from gmt.data.python_docs import PythonDocs

    found: list[Source] = []
    for name in names:
        if name == "python-docs":
            found.append(PythonDocs())
        elif files := _local_files(name):
            found += [FileSource(path, text_field) for path in files]
        elif is_hub_name(name):
            found.append(HubSource(name, text_field))
        else:
            raise DataError(f"{name} is no file, folder or glob with documents, and no dataset's name")
    return found


def _local_files(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
        if not files:
            raise DataError(f"the folder {name} holds no file that ends in {', '.join(SUFFIXES)}")
        return files
    if os.path.lexists(path):
        return [path]
    return sorted(p for p in map(Path, glob.glob(name, recursive=True)) if p.is_file())


Lines = Iterator[tuple[int, bytes, bool]]


def _reader(path: Path) -> Callable[[Path, str], Lines]:
    for suffix, reader in READERS.items():
        if path.name.endswith(suffix):
            return reader
    raise DataError(f"{path} has none of the endings {', '.join(SUFFIXES)}")


def _read_text(path: Path, field: str) -> Lines:
    yield 1, path.read_bytes(), False


def _json_lines(lines: Iterable[bytes]) -> Lines:
    """Blank lines are no documents, but they count in the line number."""
    for number, line in enumerate(lines, 1):
        if line and not line.isspace():
            yield number, line, True


def _read_jsonl(path: Path, field: str) -> Lines:
    with path.open("rb", buffering=BLOCK) as file:
        yield from _json_lines(file)


def _read_gzip(path: Path, field: str) -> Lines:
    with gzip.open(path, "rb") as file:
        yield from _json_lines(file)


def _read_zstd(path: Path, field: str) -> Lines:
    with path.open("rb", buffering=0) as file:
        yield from _json_lines(_split_lines(_zstd_blocks(file)))


def _zstd_blocks(file: Any) -> Iterator[bytes]:
    """Decompressed blocks of one or more frames; a frame that does not end is an error, not an end of file."""
    zstandard = _need("zstandard", "data")
    frame = None
    while data := file.read(BLOCK):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as error:
                raise OSError(f"not zstandard data ({error})") from None
            data = frame.unused_data
            if frame.eof:
                frame = None
    if frame is not None:
        raise EOFError


def _split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _read_parquet(path: Path, field: str) -> Lines:
    table = _parquet(path)
    if field not in table.schema_arrow.names:
        raise BrokenFileError(f"{path}:1: there is no field {field!r}, only {', '.join(table.schema_arrow.names)}")
    row = 0
    for batch in table.iter_batches(batch_size=256, columns=[field]):
        for value in batch.column(0):
            row += 1
            try:
                text = value.as_py()
            except UnicodeDecodeError:
                yield row, value.as_buffer().to_pybytes(), False
                continue
            # a missing or odd value becomes a JSON document, which the worker finds at fault like any other
            plain = isinstance(text, str)
            yield row, text.encode() if plain else json.dumps({field: None}).encode(), not plain


def _parquet(path: Path) -> Any:
    pyarrow = _need("pyarrow", "data")
    parquet = _need("pyarrow.parquet", "data")
    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise BrokenFileError(f"{path}:1: not a whole parquet file: {str(error).splitlines()[0]}") from None


def _need(module: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise DataError(f"{package} is missing: pip install 'graph-memory-transformer[{extra}]'") from None


READERS: dict[str, Callable[[Path, str], Lines]] = {
    ".txt": _read_text,
    ".jsonl": _read_jsonl,
    ".json.gz": _read_gzip,
    ".jsonl.gz": _read_gzip,
    ".jsonl.zst": _read_zstd,
    ".json.zst": _read_zstd,
    ".parquet": _read_parquet,
}
SUFFIXES = tuple(READERS)


def text_of(raw: Raw, text_field: str) -> str:
    """The document's text, or a DataError that names file and line."""
    if raw.is_json and fast_json is not None:
        try:
            value = fast_json.loads(raw.data)[text_field]
            if isinstance(value, str):
                return value
        except (ValueError, KeyError, TypeError):
            pass  # read once more, slowly, to say what is wrong
    try:
        text = raw.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{raw.place}: byte {error.start + 1} is not UTF-8") from None
    if not raw.is_json:
        return text
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{raw.place}: not JSON: {error}") from None
    if not isinstance(found, dict) or text_field not in found:
        names = ", ".join(found) if isinstance(found, dict) else f"a {type(found).__name__}"
        raise DataError(f"{raw.place}: there is no field {text_field!r}, only {names}")
    value = found[text_field]
    if not isinstance(value, str):
        raise DataError(f"{raw.place}: the field {text_field!r} is {type(value).__name__}, not text")
    if not value.isascii() and _has_surrogate(value):
        raise DataError(f"{raw.place}: the text has half of a surrogate pair, which no UTF-8 can hold")
    return value


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
