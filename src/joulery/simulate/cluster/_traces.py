"""Cluster traces: jobs with their time of submission, work and number of GPUs.

Traces carry no power, so every job gets a curve by a stated rule: the workload's own where the
trace names one that was given, else one of the given curves, chosen by the job's number.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from joulery.errors import FileError
from joulery.grid import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from joulery.cluster import PowerCurve

# GPU-hours of the applications of the Pollux workloads, which state no duration: the geometric
# middle of the size class that the paper (OSDI'21, Table 1) puts each into.
_POLLUX_GPU_HOURS = {
    "cifar10": 0.3,
    "ncf": 0.3,
    "bert": 3.2,
    "deepspeech2": 3.2,
    "yolov3": 32.0,
    "imagenet": 316.0,
}


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs of a trace as columns, in order of submission.

    Attributes:
        submit: Time of submission of each job, in seconds from the first.
        work_seconds: Duration at full speed.
        gpus: Number of GPUs.
        curve: Index of the job's curve.
        curves: Distinct curves.
        weight: Importance.
        floor: Least performance while running.
        pool: Type of GPU that the job needs; empty for any.
        origin: Time of the first submission, in seconds since 1970 UTC, where the trace has dates.
        skipped: Number of rows left out, by reason.
    """

    submit: np.ndarray
    work_seconds: np.ndarray
    gpus: np.ndarray
    curve: np.ndarray
    curves: tuple[PowerCurve, ...]
    weight: np.ndarray
    floor: np.ndarray
    pool: tuple[str, ...]
    origin: float = 0.0
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.submit)


@dataclass(slots=True)
class TracedJob:
    """One row of a trace; see ``Trace``."""

    submit: float
    seconds: float
    gpus: int
    workload: str = ""
    weight: float = 1.0
    floor: float = 0.0
    pool: str = ""
    owner: str = ""


def read_trace(path: Path, curves: Mapping[str, PowerCurve]) -> Trace:
    """Read a trace, see ``read_traced_jobs``, and give every job one of ``curves``."""
    if not curves:
        raise FileError("no curves for the jobs of a trace", remedy="give a curve or more")
    return _trace(*read_traced_jobs(path), curves)


def read_traced_jobs(path: Path) -> tuple[list[TracedJob], dict[str, int]]:
    """Jobs of a trace; its format is known by its columns.

    - Philly: ``timestamp, duration, num_gpus, …``
    - Alibaba PAI as prepared by GAIA: ``arrival_time, length, cpus``; in hours where any of
      the two is a fraction, else in seconds
    - Pollux: ``name, time, application, num_replicas, …``; durations by application
    - one's own, CSV or Parquet: ``submit_seconds, duration_seconds, gpus`` and, if wanted,
      ``workload`` (name of a curve), ``weight``, ``floor``, ``gpu_type``; a curve named
      ``workload@gpu_type`` is for that type only

    Invalid rows are left out and counted by reason.
    """
    names, table = read_table(path)
    reader = _reader(set(names), table)
    if reader is None:
        raise FileError(
            f"{path} is not a known trace: columns {', '.join(names) or 'none'}",
            remedy="name the columns submit_seconds, duration_seconds, gpus",
        )
    rows, skipped = [], Counter[str]()
    for entry in table:
        try:
            row = reader(entry)
            _check(row)
        except (ValueError, OverflowError) as flaw:
            skipped[str(flaw)] += 1
        else:
            rows.append(row)
    if not rows:
        raise FileError(f"no usable row in {path}", remedy=f"see its rows: {dict(skipped)}")
    return rows, dict(skipped)


def _check(row: TracedJob) -> None:
    numbers = (row.submit, row.seconds, row.weight, row.floor)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    if row.seconds <= 0:
        raise ValueError("no duration")
    if row.gpus < 1:
        raise ValueError("no GPU")
    if row.weight < 0 or not 0 <= row.floor <= 1:
        raise ValueError("weight or floor out of range")


def _reader(
    names: set[str], table: list[dict[str, Any]]
) -> Callable[[dict[str, Any]], TracedJob] | None:
    if {"submit_seconds", "duration_seconds", "gpus"} <= names:
        return _own
    if {"timestamp", "duration", "num_gpus"} <= names:
        return _philly
    if {"time", "application", "num_replicas"} <= names:
        return _pollux
    if {"arrival_time", "length", "cpus"} <= names:
        cells = (str(row.get(name)) for row in table for name in ("arrival_time", "length"))
        is_hours = any(cell.partition(".")[2].strip("0") for cell in cells)
        scale = 3600.0 if is_hours else 1.0
        return lambda row: TracedJob(
            scale * _number(row, "arrival_time"),
            scale * _number(row, "length"),
            int(_number(row, "cpus")),
        )
    return None


def _number(row: dict[str, Any], name: str, default: float | None = None) -> float:
    """A number in a column, or what is wrong with it in words that many rows share."""
    value = row.get(name)
    if value in (None, ""):
        if default is None:
            raise ValueError(f"{name} is missing")
        return default
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is not a number") from None


def _own(row: dict[str, Any]) -> TracedJob:
    return TracedJob(
        _number(row, "submit_seconds"),
        _number(row, "duration_seconds"),
        int(_number(row, "gpus")),
        str(row.get("workload") or ""),
        _number(row, "weight", 1.0),
        _number(row, "floor", 0.0),
        str(row.get("gpu_type") or ""),
    )


def _philly(row: dict[str, Any]) -> TracedJob:
    try:
        time = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp()
    except (TypeError, ValueError):
        raise ValueError("timestamp is not a time") from None
    gpus, owner = int(_number(row, "num_gpus")), str(row.get("cluster") or "")
    return TracedJob(time, _number(row, "duration"), gpus, owner=owner)


def _pollux(row: dict[str, Any]) -> TracedJob:
    gpus, application = int(_number(row, "num_replicas")), row["application"]
    if application not in _POLLUX_GPU_HOURS or gpus < 1:
        raise ValueError("unknown application or no replicas")
    seconds = 3600.0 * _POLLUX_GPU_HOURS[application] / gpus
    return TracedJob(_number(row, "time"), seconds, gpus, application)


def _trace(
    rows: list[TracedJob], skipped: dict[str, int], curves: Mapping[str, PowerCurve]
) -> Trace:
    rows.sort(key=lambda row: row.submit)
    places = {name: number for number, name in enumerate(curves)}

    def curve_of(number: int, row: TracedJob) -> int:
        named = (f"{row.workload}@{row.pool}", row.workload)
        column = next((places[name] for name in named if name in places), None)
        # A job's number mixed well, so that neighbours do not take curves in turn.
        return crc32(str(number).encode()) % len(places) if column is None else column

    chosen = [curve_of(number, row) for number, row in enumerate(rows)]
    first = rows[0].submit
    return Trace(
        submit=np.array([row.submit - first for row in rows]),
        work_seconds=np.array([row.seconds for row in rows]),
        gpus=np.array([row.gpus for row in rows]),
        curve=np.array(chosen),
        curves=tuple(curves.values()),
        weight=np.array([row.weight for row in rows]),
        floor=np.array([row.floor for row in rows]),
        pool=tuple(row.pool for row in rows),
        origin=first,
        skipped=skipped,
    )
