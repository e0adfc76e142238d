"""Rows of a measured pipeline profile, and the file that ``joulery plan pipeline`` reads."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COLUMNS = (
    "stage",
    "instruction",
    "frequency",
    "time",
    "energy",
    "n_time_samples",
    "relative_error",
    "source",
)


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One kind of instruction at one clock, for one device.

    Attributes:
        stage: The pipeline stage.
        kind: ``forward`` and so on.
        hertz: The clock.
        seconds: Median time.
        joules: Energy.
        samples: How many times it was seen.
        relative_error: One sigma of the joules by chance; NaN when unknown.
        waiting_watts: What the device draws at that clock while it waits; NaN when unknown.
        source: How the energy was found.
    """

    stage: int
    kind: str
    hertz: float
    seconds: float
    joules: float
    samples: int
    relative_error: float = math.nan
    waiting_watts: float = math.nan
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """With the names of the file's columns."""
        error = None if math.isnan(self.relative_error) else round(self.relative_error, 6)
        return {
            "stage": self.stage,
            "instruction": self.kind,
            "frequency": round(self.hertz / 1e6, 6),
            "time": self.seconds,
            "energy": self.joules,
            "n_time_samples": self.samples,
            "relative_error": error,
            "source": self.source,
        }


def blocking_watts(rows: Sequence[ProfileRow]) -> float:
    """What a device draws while it waits, at the highest clock seen; NaN when unknown."""
    known = [row for row in rows if not math.isnan(row.waiting_watts)]
    if not known:
        return math.nan
    top = max(row.hertz for row in known)
    found = [row.waiting_watts for row in known if row.hertz == top]
    return sum(found) / len(found)


def write_profile(path: Path, rows: Sequence[ProfileRow]) -> None:
    """Write the rows of all ranks, as JSON or CSV by the file's name.

    Raises:
        InvalidValueError: There are none.
        FileError: It cannot be written.
    """
    if not rows:
        raise InvalidValueError("no instruction was measured", remedy="run more iterations")
    ordered = sorted(rows, key=lambda row: (row.stage, row.kind, -row.hertz))
    text = _json(ordered) if path.suffix == ".json" else _csv(ordered)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as refused:
        raise FileError(
            f"cannot write the profile {path}: {refused.strerror}", remedy="choose another place"
        ) from None


def _json(rows: Sequence[ProfileRow]) -> str:
    waiting = blocking_watts(rows)
    document = {
        "blocking_watts": None if math.isnan(waiting) else waiting,
        "rows": [row.to_dict() for row in rows],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _csv(rows: Sequence[ProfileRow]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.to_dict() for row in rows)
    return out.getvalue()
