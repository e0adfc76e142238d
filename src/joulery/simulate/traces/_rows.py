"""Rows of a trace file, checked cell by cell: every error names the file, row and column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError
from joulery.grid import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The line of a table's first row of figures: below the header.
_FIRST_LINE = 2
_NOT_REACHED = ("", "nan", "none", "null", "inf")
_REMEDY = "correct or drop the row"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One row of a trace file.

    Attributes:
        path: Path of the file.
        line: Number of the line, counted from 1, the header included.
        cells: Cells by column.
    """

    path: Path
    line: int
    cells: dict[str, Any]

    def text(self, column: str) -> str:
        """The text of a cell that is not empty."""
        value = self.cells.get(column)
        if value is None or not str(value).strip():
            raise self.error(column, "is empty", "fill it in, or leave the row out")
        return str(value).strip()

    def finite(self, column: str) -> float:
        """A finite number of any sign."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"is no number: {text!r}") from None
        if not math.isfinite(value):
            raise self.error(column, f"must be finite, not {value}")
        return value

    def positive(self, column: str) -> float:
        """A positive, finite number."""
        value = self.finite(column)
        if value <= 0:
            raise self.error(column, f"must be positive, not {value:g}")
        return value

    def whole(self, column: str) -> int:
        """A positive whole number."""
        value = self.positive(column)
        if value != int(value):
            raise self.error(column, f"must be whole, not {value:g}")
        return int(value)

    def epochs(self, column: str) -> float:
        """A positive number of epochs, or NaN where the cell says that there is none."""
        value = self.cells.get(column)
        if value is None or str(value).strip().lower() in _NOT_REACHED:
            return math.nan
        return self.positive(column)

    def error(self, column: str, wrong: str, remedy: str = _REMEDY) -> FileError:
        """An error that names this row and ``column``."""
        return FileError(f"{self.path}, row {self.line}: {column} {wrong}", remedy=remedy)


def read_rows(path: Path, columns: Sequence[str]) -> list[TraceRow]:
    """All rows of a CSV or Parquet file that has at least ``columns``.

    Raises:
        FileError: The file cannot be read, lacks a column, or has no rows.
        MissingExtraError: It is a Parquet file and pyarrow is not installed.
    """
    header, records = read_table(path)
    for column in columns:
        if column not in header:
            raise FileError(
                f"{path}, row 1: column {column} is missing",
                remedy=f"the columns are {', '.join(columns)}",
            )
    if not records:
        raise FileError(f"{path} has no rows", remedy=f"its columns are {', '.join(columns)}")
    return [TraceRow(path, line, record) for line, record in enumerate(records, _FIRST_LINE)]
