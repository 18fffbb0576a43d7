"""A Markdown table, whatever stands in its cells."""

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(header), "|" + "---|" * len(header)]
    return "\n".join(lines + [_row(row) for row in rows])


def _row(cells: Sequence[str]) -> str:
    # a bar or a line's end in a cell would end it
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
