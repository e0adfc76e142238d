"""Data of a published figure as plain tables, apart from how it is drawn."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Cell = str | int | float | bool | None
Row = dict[str, Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """One table of figures.

    Attributes:
        name: Name of the table, and of its file without the ending.
        rows: Cells by column; all rows have the same columns.
    """

    name: str
    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Cell]:
        """All values of one column."""
        return [row[name] for row in self.rows]

    def numbers(self, name: str) -> list[float]:
        """All values of one column as numbers; NaN where unknown."""
        return [
            float(cell) if isinstance(cell, int | float) else math.nan for cell in self.column(name)
        ]

    def where(self, **cells: Cell) -> Table:
        """The rows whose columns have these values."""
        rows = (r for r in self.rows if all(r[name] == cell for name, cell in cells.items()))
        return replace(self, rows=tuple(rows))

    def distinct(self, name: str) -> list[str]:
        """The values of one column as text, each once, in order of appearance."""
        return list(dict.fromkeys(map(str, self.column(name))))

    def csv_text(self) -> str:
        """The table as CSV with a header line; unknown is empty."""
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(self.rows[0] if self.rows else ())
        writer.writerows([_plain(cell) for cell in row.values()] for row in self.rows)
        return written.getvalue()


@dataclass(frozen=True, slots=True)
class Figure:
    """The data of one figure.

    Attributes:
        name: Name of the figure and of its files.
        numbers: Numbers of the publication's figures that it stands for.
        title: Content of the figure, one line.
        tables: Data of the figure; the first table is the main one.
        remark: Note on how it was made.
    """

    name: str
    numbers: tuple[int, ...]
    title: str
    tables: tuple[Table, ...]
    remark: str = ""

    @classmethod
    def of(
        cls, name: str, numbers: tuple[int, ...], title: str, rows: Iterable[Row], remark: str = ""
    ) -> Figure:
        """A figure of one table, which has the figure's name."""
        return cls(name, numbers, title, (Table(name, tuple(rows)),), remark)

    @property
    def main(self) -> Table:
        """The table that the drawing is mostly about."""
        return self.tables[0]

    @property
    def label(self) -> str:
        """The label, such as ``Fig. 1/15``."""
        return "Fig. " + "/".join(map(str, self.numbers)) if self.numbers else "Table"


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive numbers; NaN for none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _plain(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


_NETWORKS = {
    "librispeech": "DeepSpeech2",
    "squad": "BERT (QA)",
    "sentiment140": "BERT (SA)",
    "imagenet": "ResNet-50",
    "cifar100": "ShuffleNet V2",
    "movielens-1m": "NeuMF",
}


def network(workload: str) -> str:
    """The network of a workload as the publication names it."""
    return _NETWORKS.get(workload, workload)
