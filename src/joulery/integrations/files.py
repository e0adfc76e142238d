"""Sinks that write figures to a file: CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

FIGURES = (
    "joulery/joules",
    "joulery/kwh",
    "joulery/co2_grams",
    "joulery/seconds",
    "joulery/relative_error",
    "joulery/watts",
    "joulery/joules_per_step",
    "joulery/boards",
    "joulery/nodes",
    "joulery/measured_share",
    "joulery/energy_saving",
)


class FileSink:
    """Figures of a training, a line each, appended to a file and flushed.

    Args:
        path: File to append to; ``.csv`` or ``.jsonl``.

    Raises:
        InvalidValueError: The name ends in neither.
    """

    def __init__(self, path: str | Path) -> None:
        if not isinstance(path, str | Path):
            raise InvalidValueError(f"{path!r} is not a path", remedy='write "energy.csv"')
        self._path = Path(path)
        if self._path.suffix not in {".csv", ".jsonl"}:
            raise InvalidValueError(
                f"cannot tell the format of {self._path}", remedy="name it .csv or .jsonl"
            )
        self._file: Any = None

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Append a line."""
        new = self._file is None
        if new:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", newline="", encoding="utf-8")
        row = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "step": step}
        if self._path.suffix == ".jsonl":
            self._file.write(json.dumps({**row, **figures}) + "\n")
        else:
            writer = csv.DictWriter(self._file, [*row, *FIGURES], extrasaction="ignore")
            if new and self._file.tell() == 0:
                writer.writeheader()
            writer.writerow({**row, **figures})
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
