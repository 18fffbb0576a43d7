"""A view: a figure, the plain sentence that states its numbers, and the table behind it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gmt.utils.io import write_atomic
from gmt.utils.tables import csv_text


@dataclass(frozen=True)
class View:
    name: str  # of its files: lower case, words joined by hyphens
    title: str
    caption: str  # in plain language, with the numbers that the figure shows
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    draw: Callable[[], Any] | None  # a matplotlib figure; None where the table is all there is

    def write_table(self, folder: Path) -> Path:
        path = folder / f"{self.name}.csv"
        write_csv(path, self.header, self.rows)
        return path


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    short = ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_atomic(path, csv_text(header, short, "\r\n"))
