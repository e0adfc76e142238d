"""Align rows of text into a table."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> str:
    """A plain text table with a rule below its header.

    Args:
        headers: Column titles.
        rows: Cells as text, one sequence per row.
        align: One letter per column, ``l`` or ``r``; missing ones are left-aligned.
    """
    printable = [[_printable(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(_width, column)) for column in zip(*printable, strict=True)]
    rule = ["─" * width for width in widths]
    printable.insert(1, rule)
    return "\n".join(_line(cells, widths, align) for cells in printable)


def _line(cells: Sequence[str], widths: Sequence[int], align: str) -> str:
    padded = []
    for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        blank = " " * (width - _width(cell))
        right = align[column : column + 1] == "r"
        padded.append(blank + cell if right else cell + blank)
    return "  ".join(padded).rstrip()


def _printable(cell: str) -> str:
    """Without the line breaks and terminal codes that text from a file may hold."""
    return "".join(char if char.isprintable() else "�" for char in cell)


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
