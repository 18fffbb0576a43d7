"""Tables as Markdown and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [markdown_row(header), "|" + "---|" * len(header)]
    return "\n".join(lines + [markdown_row(row) for row in rows])


def markdown_row(cells: Sequence[str]) -> str:
    # a bar or a line break would end the cell
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]], line_end: str = "\n") -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=line_end).writerows([header, *rows])
    return text.getvalue()
