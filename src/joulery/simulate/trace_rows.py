"""Rows of a trace file, checked cell by cell: every complaint names the file, row and column."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The line of a table's first row of figures: below the header.
_FIRST_LINE = 2
_NOT_REACHED = ("", "nan", "none", "null", "inf")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a trace file.

    Attributes:
        path: Of the file.
        line: Counted from 1, the header included.
        cells: By column.
    """

    path: Path
    line: int
    cells: dict[str, Any]

    def text(self, column: str) -> str:
        """What the cell says."""
        value = self.cells.get(column)
        if value is None or not str(value).strip():
            raise self.complaint(column, "is empty", "fill it in, or leave the row out")
        return str(value).strip()

    def number(self, column: str) -> float:
        """A positive, finite number."""
        value = self._float(column)
        if not (math.isfinite(value) and value > 0):
            raise self.complaint(
                column, f"must be positive and finite, not {value:g}", "correct or drop the row"
            )
        return value

    def whole(self, column: str) -> int:
        """A positive whole number."""
        value = self.number(column)
        if value != int(value):
            raise self.complaint(column, f"must be whole, not {value:g}", "correct or drop the row")
        return int(value)

    def metric(self, column: str) -> float:
        """A finite number of any sign."""
        value = self._float(column)
        if not math.isfinite(value):
            raise self.complaint(column, f"must be finite, not {value}", "correct or drop the row")
        return value

    def epochs(self, column: str) -> float:
        """A positive number of epochs, or NaN where the cell says that there is none."""
        value = self.cells.get(column)
        if value is None or str(value).strip().lower() in _NOT_REACHED:
            return math.nan
        return self.number(column)

    def complaint(self, column: str, wrong: str, remedy: str) -> FileError:
        """An error that names this row and ``column``."""
        return FileError(f"{self.path}, row {self.line}: {column} {wrong}", remedy=remedy)

    def _float(self, column: str) -> float:
        text = self.text(column)
        try:
            return float(text)
        except ValueError:
            raise self.complaint(
                column, f"is no number: {text!r}", "correct or drop the row"
            ) from None


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """All rows of a CSV or Parquet file that has at least ``columns``.

    Raises:
        FileError: It cannot be read, lacks a column, or has no rows.
        MissingExtraError: A Parquet file without pyarrow.
    """
    header, records = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    missing = [column for column in columns if column not in header]
    if missing:
        raise FileError(
            f"{path}, row 1: column {missing[0]} is missing",
            remedy=f"the columns are {', '.join(columns)}",
        )
    if not records:
        raise FileError(f"{path} has no rows", remedy=f"its columns are {', '.join(columns)}")
    return [Row(path, line, record) for line, record in enumerate(records, _FIRST_LINE)]


def _csv(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            # Cells beyond the header would be filed under None; no column of ours is.
            return list(reader.fieldnames or []), list(reader)
    except OSError as refused:
        raise FileError(
            f"cannot read {path}: {refused.strerror}", remedy="check the path and its rights"
        ) from None
    except (UnicodeDecodeError, csv.Error) as wrong:
        raise FileError(
            f"{path} is no CSV file: {wrong}", remedy="write it as comma-separated UTF-8 text"
        ) from None


def _parquet(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    try:
        arrow = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError(
            f"{path} is a Parquet file, which needs pyarrow",
            remedy="run `pip install pyarrow`, or write the table as CSV",
        ) from None
    try:
        frame = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as wrong:
        reason = str(wrong).splitlines()[0]
        raise FileError(
            f"cannot read {path}: {reason}", remedy="write it anew as Parquet or CSV"
        ) from None
    return list(frame.column_names), frame.to_pylist()
