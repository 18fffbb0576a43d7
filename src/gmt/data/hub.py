"""Datasets of the Hugging Face hub, streamed. The one file that imports `datasets`."""

import json
import re
from collections.abc import Iterator
from typing import Any

from gmt.data.sources import BrokenFileError, Raw
from gmt.errors import DataError, first_line

# OpenWebText's loading script no longer runs; the hub keeps a parquet copy of the same rows
KNOWN = {"openwebtext": ("Skylion007/openwebtext", "refs/convert/parquet")}


def is_hub_name(name: str) -> bool:
    return name in KNOWN or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None


class HubSource:
    """The training split of a dataset."""

    def __init__(self, name: str, text_field: str) -> None:
        self.name, self.text_field = name, text_field
        repo, self.revision = KNOWN.get(name, (name, None))
        try:
            from datasets import load_dataset  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise DataError(
                f"{name} is no local file; to stream it from the hub: pip install 'graph-memory-transformer[hub]'"
            ) from None
        try:
            self._rows: Any = load_dataset(repo, split="train", streaming=True, revision=self.revision)
        except Exception as error:  # the hub's errors are of many kinds, and all mean the same here
            raise DataError(f"{name}: no local file, and not to be had from the hub: {first_line(error)}") from None

    def fingerprint(self) -> Any:
        return [self.name, self.revision]

    def size(self) -> int | None:
        return None

    def count(self) -> int | None:
        splits = getattr(self._rows.info, "splits", None) or {}
        return getattr(splits.get("train"), "num_examples", None)

    def read(self) -> Iterator[Raw]:
        number = 0
        try:
            for number, row in enumerate(self._rows, 1):
                text = row.get(self.text_field)
                # a row without text becomes a JSON document, which the worker finds at fault like any other
                plain = isinstance(text, str)
                data = text.encode("utf-8", "surrogatepass") if plain else json.dumps(dict.fromkeys(row)).encode()
                yield Raw(self.name, number, data, not plain)
        except OSError as error:
            raise BrokenFileError(f"{self.name}:{number + 1}: the stream broke off: {first_line(error)}") from None


def hub_rows(repo: str, subset: str, split: str) -> list[dict[str, Any]]:
    """All rows of a small dataset."""
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(
            f"to read {repo} from the hub: pip install 'graph-memory-transformer[hub]', or give a local file"
        ) from None
    try:
        return list(load_dataset(repo, subset, split=split))  # pyright: ignore
    except Exception as error:
        raise DataError(f"{repo} is not to be had from the hub: {first_line(error)}; give a local file") from None
