"""A signal of the grid over time in equal steps: yearly means by region, and files."""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import FileError, InvalidValueError, MissingExtraError, document_errors
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterable

_CENTURY_SECONDS = 100 * 365.25 * 86400.0  # long enough for a value that does not change
_MOST_SECONDS = 2.5e11  # of the year 9892; calendars end soon after
_TIME_COLUMNS = ("utc", "timestamp", "datetime", "time", "date", "t_s", "seconds")
# gCO2/kWh over a year. CISO, ERCO, PJM, DE, ES and SE: lifecycle means of 2021, computed from
# CarbonCast's published series. All others: lifecycle, about 2023, rounded to tens, as remembered
# from Ember's Yearly Electricity Data and not checked against it. Good enough to compare places.
# States of the US have the value of their operator: CISO for US-CA, ERCO for US-TX. WORLD: the mean
# of 2024 (IEA, Electricity 2025), which predictions assume as well (`prediction/economics.toml`).
REGIONS = {
    "AT": 110.0, "AU": 550.0, "BE": 140.0, "BR": 100.0, "CA": 170.0, "CH": 40.0, "CN": 580.0,
    "DE": 346.0, "DK": 150.0, "ES": 168.0, "FI": 80.0, "FR": 60.0, "GB": 240.0, "IE": 290.0,
    "IN": 710.0, "IS": 30.0, "IT": 330.0, "JP": 490.0, "KR": 430.0, "NL": 270.0, "NO": 30.0,
    "PL": 660.0, "SE": 39.0, "SG": 470.0, "TW": 640.0, "US": 370.0, "ZA": 710.0,
    "CISO": 268.0, "ERCO": 361.0, "PJM": 375.0, "US-CA": 268.0, "US-TX": 361.0, "WORLD": 445.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signal:
    """Values of a signal, each valid for one step.

    Attributes:
        start: Time of the first step, in seconds since 1970 UTC.
        step_seconds: Length of every step.
        values: Value of each step, such as gCO2/kWh or money per kWh.
        source: Source of the values, in words.
    """

    start: float
    step_seconds: float
    values: tuple[float, ...]
    source: str = ""

    def __post_init__(self) -> None:
        if not self.values or not self.step_seconds > 0:
            raise InvalidValueError(
                "a series needs values and a positive step", remedy="give at least one value"
            )

    @property
    def end(self) -> float:
        """Time at which the last step ends."""
        return self.start + self.step_seconds * len(self.values)

    def at(self, time: float) -> float:
        """Value at a time.

        Raises:
            InvalidValueError: The series does not cover the time.
        """
        return float(self.window(time, time)[2][0])

    def window(self, start: float, end: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts, lengths and values of the steps between two times, the first and last cut."""
        if not self.start <= start <= end <= self.end or (start == end == self.end):
            raise InvalidValueError(
                f"the signal covers {_text(self.start)} to {_text(self.end)}, "
                f"not {_text(start)} to {_text(end)}",
                remedy="give a longer series, or an earlier deadline",
            )
        first = int((start - self.start) // self.step_seconds)
        last = max(first + 1, math.ceil((end - self.start) / self.step_seconds - 1e-9))
        edges = self.start + self.step_seconds * np.arange(first, last + 1)
        edges[0], edges[-1] = start, end
        return edges[:-1], np.diff(edges), np.array(self.values[first:last])

    @classmethod
    def from_rows(
        cls, rows: Iterable[tuple[float, float]], source: str = "", most_gap_steps: int = 0
    ) -> Signal:
        """A series from (seconds, value) rows in any order.

        Args:
            rows: Times since 1970 UTC, and values.
            source: Source of the values, for messages.
            most_gap_steps: Longest gap, in steps, to fill with straight lines.

        Raises:
            FileError: Two rows have the same time, or a gap is too long; says where.
        """
        ordered = sorted(rows)
        if not ordered:
            raise FileError(f"no rows in {source or 'the series'}", remedy="give at least one row")
        steps = Counter(b[0] - a[0] for a, b in itertools.pairwise(ordered))
        # The most common one, and of equally common ones the shortest.
        step = (
            min(steps, key=lambda step_seconds: (-steps[step_seconds], step_seconds))
            if steps
            else 3600.0
        )
        values = [ordered[0][1]]
        for (before, old), (time, new) in itertools.pairwise(ordered):
            if time == before:
                raise FileError(
                    f"{source}: {_text(time)} is there twice",
                    remedy="give UTC, and each forecast in a file of its own",
                )
            missing = round((time - before) / step) - 1 if step > 0 else -1
            if missing < 0 or abs(time - before - (missing + 1) * step) > 0.01 * step:
                raise FileError(
                    f"{source}: times {_text(before)} and {_text(time)} are not "
                    f"a multiple of {step:g} s apart",
                    remedy="give UTC (a clock change repeats or skips an hour), equal steps",
                )
            if missing > most_gap_steps:
                raise FileError(
                    f"{source}: {missing} steps are missing after {_text(before)}",
                    remedy="complete the series",
                )
            values += [old + (new - old) * n / (missing + 1) for n in range(1, missing + 1)]
            values.append(new)
        return cls(ordered[0][0], step, tuple(values), source)


def static_intensity(region: str) -> Signal:
    """A constant carbon intensity in gCO2/kWh, from the built-in table."""
    name = region.strip().upper()
    if name not in REGIONS:
        raise InvalidValueError(
            f"no built-in carbon intensity for {region!r}",
            remedy=f"use one of {', '.join(sorted(REGIONS))}, or give a series",
        )
    return Signal(0.0, _CENTURY_SECONDS, (REGIONS[name],), f"built-in yearly mean of {name}")


def carbon_intensity(source: str, *, zone: tzinfo | None = None) -> Signal:
    """Carbon intensity in gCO2/kWh from a number, a region, a file or a provider.

    Args:
        source: Number such as ``380``, region of the built-in table such as ``DE``, path of a
            series that ends in ``.csv`` or ``.parquet``, or provider with its region such as
            ``electricitymaps:DE``, ``watttime:CAISO_NORTH``, ``entsoe:DE`` or ``eia:CISO``, whose
            keys are in the environment.
        zone: Time zone of a file's times that state none.

    Examples:
        >>> carbon_intensity("380").at(0.0)
        380.0
    """
    if source.lower().endswith((".csv", ".parquet")):
        return read_signal(Path(source), zone=zone)
    from joulery.grid._providers import provider_signal

    if (signal := provider_signal(source)) is not None:
        return signal
    try:
        grams = float(source)
    except ValueError:
        return static_intensity(source)
    return Signal(0.0, _CENTURY_SECONDS, (finite(grams, "gCO2/kWh", minimum=0.0),), "as given")


def read_signal(
    path: Path | str, column: str | None = None, *, zone: tzinfo | None = None
) -> Signal:
    """Read a series from a CSV or Parquet file with one column of times.

    Args:
        path: CSV with a header, or Parquet.
        column: Name of the values' column; default: the first that is not the time.
        zone: Time zone of times that do not state one; a column named ``utc`` needs none.

    Raises:
        FileError: The file has gaps, unreadable rows or times without a zone; says where.
    """
    return Signal.from_rows(read_rows(path, column, zone=zone), Path(path).name)


def read_rows(
    path: Path | str, column: str | None = None, *, zone: tzinfo | None = None
) -> list[tuple[float, float]]:
    """Times and finite values of a column, as ``read_signal`` reads them, of any spacing."""
    path = Path(path)
    names, table = read_table(path)
    time_column = next((n for n in names if n.strip().lower().split(" ")[0] in _TIME_COLUMNS), None)
    values = [name for name in names if name != time_column]
    if time_column is None or not values or column not in (None, *values):
        raise FileError(
            f"{path} has the columns {', '.join(names)}",
            remedy=f"name one of them like {', '.join(_TIME_COLUMNS)}, and choose another",
        )
    value_column = column or values[0]
    assumed = UTC if time_column.lower() == "utc" else zone
    rows = []
    for number, row in enumerate(table, 2):
        remedy = "give a time and a number in every row"
        with document_errors(f"{path}, line {number}", remedy=remedy):
            time, value = _seconds(row[time_column], assumed), float(row[value_column])
            if not abs(time) < _MOST_SECONDS:
                raise ValueError(f"{time:g} s is not a time")
        if math.isfinite(value):
            rows.append((time, value))
    return rows


def read_table(path: Path | str) -> tuple[list[str], list[dict[str, Any]]]:
    """Column names and rows of a CSV or Parquet file."""
    path = Path(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            return list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"cannot read {path}: {error}", remedy="give a CSV file") from None


def _read_parquet(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingExtraError(
            "reading Parquet needs pyarrow", remedy="pip install pyarrow, or convert to CSV"
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise FileError(f"cannot read {path}: {error}", remedy="give a Parquet file") from None
    return list(table.column_names), table.to_pylist()


def _seconds(value: Any, zone: tzinfo | None) -> float:
    """A time as seconds since 1970 UTC."""
    try:
        return float(value)
    except (TypeError, ValueError):
        time = value if isinstance(value, datetime) else _parse_time(str(value).strip())
    if time.tzinfo is None:
        if zone is None:
            raise ValueError(f"time {value!r} does not state its zone; name the zone of the file")
        time = time.replace(tzinfo=zone)
    return float(time.timestamp())


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.strptime(text, "%m/%d/%y %H:%M")  # noqa: DTZ007 - the caller adds the zone


def _text(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M")
