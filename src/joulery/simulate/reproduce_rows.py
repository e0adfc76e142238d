"""The data of a published figure as plain rows, apart from how it is drawn."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Rows:
    """One table of figures.

    Attributes:
        name: Of the table, and of its file without the ending.
        columns: One name per column, with its unit.
        cells: The rows.
    """

    name: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]

    def __len__(self) -> int:
        return len(self.cells)

    def column(self, name: str) -> list[Cell]:
        """Every value of one column."""
        place = self.columns.index(name)
        return [row[place] for row in self.cells]

    def numbers(self, name: str) -> list[float]:
        """Every value of one column as numbers; NaN where unknown."""
        return [
            float(cell) if isinstance(cell, int | float) else math.nan for cell in self.column(name)
        ]

    def where(self, **wanted: Cell) -> Rows:
        """Only the rows whose columns have these values."""
        places = [(self.columns.index(name), value) for name, value in wanted.items()]
        kept = (row for row in self.cells if all(row[at] == value for at, value in places))
        return replace(self, cells=tuple(kept))

    def distinct(self, name: str) -> list[Cell]:
        """The values of one column, each once, in order of appearance."""
        return list(dict.fromkeys(self.column(name)))

    def csv_text(self) -> str:
        """With a header line; unknown is empty."""
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_plain(cell) for cell in row] for row in self.cells)
        return written.getvalue()


@dataclass(frozen=True, slots=True)
class FigureData:
    """Everything that one figure shows.

    Attributes:
        name: Of the figure and its files.
        numbers: Which figures of the publication it stands for.
        title: What it shows, one line.
        tables: Its data; the first is the main one.
        remark: What a reader must know about how it came about.
    """

    name: str
    numbers: tuple[int, ...]
    title: str
    tables: tuple[Rows, ...]
    remark: str = ""

    @property
    def main(self) -> Rows:
        """The table that the drawing is mostly about."""
        return self.tables[0]

    @property
    def label(self) -> str:
        """Such as ``Fig. 1/15``."""
        return "Fig. " + "/".join(map(str, self.numbers)) if self.numbers else "Table"


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers; NaN for none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _plain(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)
