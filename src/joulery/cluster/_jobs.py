"""Jobs under a power budget: what each can do with its watts, and what it is owed."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.documents import read_text
from joulery.errors import FileError, InvalidValueError, document_errors
from joulery.frontier import SCHEMA, Frontier, OperatingPoint, Setting
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

# Share of its speed that a job of each flexibility tier may lose in a grid event
# (Colangelo et al., Turning AI Data Centers into Grid-Interactive Assets, 2025).
_FLEXIBILITY = {"flex-0": 0.0, "flex-1": 0.10, "flex-2": 0.25, "flex-3": 0.50}


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """Performance of one GPU's share of a job for each power: concave, increasing, in [0, 1].

    A frontier keeps the points that no other beats in time and energy; a power budget also needs
    the slow, inefficient points below the one of least energy. Alternating between two settings
    reaches every point of the line between them, so the curve is the upper concave hull.

    Attributes:
        watts: Mean power of one GPU at each knot, strictly increasing.
        performance: Throughput at each knot as a fraction of the highest.
        idle_watts: Power of one GPU while the job is paused.
        clocks_hertz: Locked clock under which each knot was measured; empty for power limits.

    Examples:
        >>> curve = PowerCurve.from_points([(100, 30), (200, 80), (300, 100)])
        >>> round(curve.at(250), 3)
        0.9
    """

    watts: tuple[float, ...]
    performance: tuple[float, ...]
    idle_watts: float = 0.0
    clocks_hertz: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.watts or len(self.watts) != len(self.performance):
            raise InvalidValueError(
                "a curve needs as many watts as performances", remedy="use PowerCurve.from_points"
            )

    @classmethod
    def from_points(
        cls, points: Iterable[tuple[float, float]], idle_watts: float = 0.0
    ) -> PowerCurve:
        """The concave hull of measured (watts, throughput) pairs of one GPU."""
        cloud = sorted(
            (finite(watts, "watts", minimum=0.0), finite(rate, "throughput", minimum=0.0))
            for watts, rate in points
        )
        if not cloud or cloud[-1][0] <= 0 or max(rate for _, rate in cloud) <= 0:
            raise InvalidValueError(
                "a curve needs at least one point with power and throughput",
                remedy="measure the job under at least one power limit",
            )
        hull: list[tuple[float, float]] = []
        for point in cloud:
            if hull and point[1] <= hull[-1][1]:
                continue  # more power for no more throughput
            while hull and (point[0] == hull[-1][0] or _is_below(hull[-2:], point)):
                hull.pop()
            hull.append(point)
        top = hull[-1][1]
        watts, rates = zip(*hull, strict=True)
        return cls(watts, tuple(rate / top for rate in rates), idle_watts)

    @classmethod
    def from_frontier(
        cls, frontier: Frontier, gpus: int | None = None, idle_watts: float = 0.0
    ) -> PowerCurve:
        """The curve of one GPU, from the frontier of a whole job on several.

        Frontiers of sweeps, tuned runs, pipeline plans, predictions and served models say on how
        many GPUs their joules were spent.

        Args:
            frontier: Time and energy of the whole job.
            gpus: Number of GPUs of the job; what the frontier says unless given, else 1.
            idle_watts: Power of one GPU while the job is paused.

        Raises:
            InvalidValueError: The frontier says that its work was done on another number of GPUs.
        """
        devices = frontier.fastest.setting.devices
        gpus = (devices or 1) if gpus is None else gpus
        if gpus < 1 or devices not in (None, gpus):
            raise InvalidValueError(
                f"{gpus} GPUs, and a frontier of {devices or 1}",
                remedy="give the number of GPUs that the frontier's joules are those of",
            )
        points = ((point.watts / gpus, 1 / point.seconds) for point in frontier)
        curve = cls.from_points(points, idle_watts)
        clocks = {point.watts / gpus: point.setting.clock_hertz for point in frontier}
        locked = tuple(hertz for watts in curve.watts if (hertz := clocks[watts]) is not None)
        return replace(curve, clocks_hertz=locked) if len(locked) == len(curve.watts) else curve

    @property
    def least_watts(self) -> float:
        """Power below which the job cannot run."""
        return self.watts[0]

    @property
    def most_watts(self) -> float:
        """Power beyond which the job gains nothing."""
        return self.watts[-1]

    def at(self, watts: float) -> float:
        """Performance under a power; 0 below the least."""
        if watts < self.least_watts * (1 - 1e-9):
            return 0.0
        return float(np.interp(watts, self.watts, self.performance))

    def clock_for(self, watts: float) -> float | None:
        """Clock of the knot at or above a power; None where no clocks were locked."""
        position = bisect_left(self.watts, watts * (1 - 1e-9))
        return self.clocks_hertz[min(position, len(self.watts) - 1)] if self.clocks_hertz else None

    def above(self, least_watts: float) -> PowerCurve:
        """The part of the curve that a GPU's least cap leaves."""
        if self.least_watts >= least_watts:
            return self
        first = min(bisect_right(self.watts, least_watts), len(self.watts) - 1)
        part = slice(first, None) if self.watts[first] > least_watts else slice(0, 0)
        return PowerCurve(
            (least_watts, *self.watts[part]),
            (self.at(least_watts), *self.performance[part]),
            self.idle_watts,
            self.clocks_hertz and (self.clocks_hertz[first], *self.clocks_hertz[part]),
        )


def _is_below(edge: list[tuple[float, float]], point: tuple[float, float]) -> bool:
    """Whether the second point of an edge lies on or below the line from its first to a third."""
    if len(edge) < 2:
        return False
    (x0, y0), (x1, y1) = edge
    return (y1 - y0) * (point[0] - x0) <= (point[1] - y0) * (x1 - x0)


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job that shares a power budget.

    Attributes:
        id: Name of the job.
        curve: Performance of one of its GPUs for each power.
        gpus: Number of GPUs; all run at the same power.
        weight: Importance of the whole job.
        floor: Least performance that the job must keep.
        limit_watts: Most power of one GPU; None for what the curve allows.
        node: Name of the smallest part of the budget tree that holds all its GPUs.
        credit: Performance the job is owed from earlier intervals; see
            ``joulery.cluster.DeficitLedger``.
    """

    id: str
    curve: PowerCurve
    gpus: int = 1
    weight: float = 1.0
    floor: float = 0.0
    limit_watts: float | None = None
    node: str = ""
    credit: float = 0.0

    def __post_init__(self) -> None:
        finite(self.weight, f"weight of job {self.id}", minimum=0.0)
        finite(self.floor, f"floor of job {self.id}", minimum=0.0)
        if finite(self.gpus, f"GPUs of job {self.id}") < 1 or self.floor > 1:
            raise InvalidValueError(
                f"job {self.id} has {self.gpus} GPUs and a floor of {self.floor:g}",
                remedy="give at least one GPU and a floor between 0 and 1",
            )
        if (
            self.limit_watts is not None
            and finite(self.limit_watts, f"limit of job {self.id}") < self.curve.least_watts
        ):
            raise InvalidValueError(
                f"job {self.id} needs {self.curve.least_watts:g} W per GPU, "
                f"more than its limit of {self.limit_watts:g} W",
                remedy="raise the limit, or leave the job out",
            )


def flexibility_floor(tier: str) -> float:
    """Least performance of a flexibility tier: ``flexibility_floor("flex-2")`` is 0.75."""
    name = tier.strip().lower().replace(" ", "-")
    if name not in _FLEXIBILITY:
        raise InvalidValueError(
            f"unknown flexibility tier {tier!r}", remedy=f"use one of {', '.join(_FLEXIBILITY)}"
        )
    return 1.0 - _FLEXIBILITY[name]


class Fleet:
    """Jobs as columns, with the GPUs of equal jobs merged into one row.

    A job of several GPUs is as many GPUs that share its weight. GPUs that are equal in everything
    get equal watts, so one row stands for all of them. Knots of curves are arrays of knots × rows.

    Args:
        curves: Distinct curves.
        curve: Index into ``curves`` for each job.
        gpus: Number of GPUs of each job.
        weight: Importance of each job.
        floor: Least performance of each job.
        limit_watts: Most power per GPU of each job; infinite where there is none.
        node: Index of each job's node in the budget tree.
        credit: Performance owed to each job.
    """

    def __init__(  # noqa: PLR0913 - one argument for each column
        self,
        curves: Sequence[PowerCurve],
        curve: Any,
        *,
        gpus: Any = 1,
        weight: Any = 1.0,
        floor: Any = 0.0,
        limit_watts: Any = np.inf,
        node: Any = 0,
        credit: Any = 0.0,
    ) -> None:
        index = np.atleast_1d(np.asarray(curve, dtype=np.int64))
        size = len(index)
        self.gpus = np.broadcast_to(np.asarray(gpus, dtype=float), size)
        self.weights = np.broadcast_to(np.asarray(weight, dtype=float), size)
        columns = (index, self.weights / self.gpus, floor, limit_watts, node, credit)
        keys = np.stack([np.broadcast_to(np.asarray(c, dtype=float), size) for c in columns])
        rows, self.row = _distinct(keys)
        self.count = np.bincount(self.row, self.gpus, minlength=rows.shape[1])
        of_curve, self.weight, self.floor, limit, node_of, self.credit = rows
        self.node = node_of.astype(np.int64)
        self.watts, self.performance = _knots(curves, of_curve.astype(np.int64))
        self.idle_watts = np.array([c.idle_watts for c in curves])[of_curve.astype(np.int64)]
        self.widths, self.heights = np.diff(self.watts, axis=0), np.diff(self.performance, axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.slope = np.where(self.widths > 0, self.heights / self.widths, 0.0)
            self.rise = np.where(self.slope > 0, 1.0 / self.slope, 0.0)
        highest = at_watts(self, limit)
        self.floor_performance = np.clip(self.floor, self.performance[0], highest)
        self.most_performance = highest

    @classmethod
    def from_jobs(cls, jobs: Sequence[ClusterJob], nodes: Sequence[str] = ("",)) -> Fleet:
        """The columns of a list of jobs; ``nodes`` are the names of the tree's nodes."""
        if not jobs:
            raise InvalidValueError("there are no jobs", remedy="give at least one job")
        curves = {job.curve: None for job in jobs}
        rows = {curve: position for position, curve in enumerate(curves)}
        positions = {name: position for position, name in enumerate(nodes)}
        missing = next((job for job in jobs if job.node and job.node not in positions), None)
        if missing is not None:
            raise InvalidValueError(
                f"job {missing.id} is on {missing.node!r}, which the budget does not name",
                remedy="name every node in the budget tree",
            )
        return cls(
            list(curves),
            [rows[job.curve] for job in jobs],
            gpus=[job.gpus for job in jobs],
            weight=[job.weight for job in jobs],
            floor=[job.floor for job in jobs],
            limit_watts=[np.inf if j.limit_watts is None else j.limit_watts for j in jobs],
            node=[positions.get(job.node, 0) for job in jobs],
            credit=[job.credit for job in jobs],
        )


def at_watts(fleet: Fleet, watts: np.ndarray) -> np.ndarray:
    """Performance of each row under a power of one GPU, within the curve's range."""
    steps = np.clip(watts - fleet.watts[:-1], 0.0, fleet.widths)
    values: np.ndarray = fleet.performance[0] + (steps * fleet.slope).sum(axis=0)
    return values


def at_performance(fleet: Fleet, performance: np.ndarray) -> np.ndarray:
    """Power of one GPU at which each row reaches a performance, within the curve's range."""
    steps = np.clip(performance - fleet.performance[:-1], 0.0, fleet.heights)
    values: np.ndarray = fleet.watts[0] + (steps * fleet.rise).sum(axis=0)
    return values


def segment_watts(fleet: Fleet, floor: np.ndarray) -> np.ndarray:
    """Watts of every segment of each row between a floor and the most that the row may have."""
    highest = np.maximum(floor, fleet.most_performance)
    values: np.ndarray = np.diff(np.clip(fleet.performance, floor, highest), axis=0) * fleet.rise
    return values


def read_jobs(path: Path) -> list[ClusterJob]:
    """Read jobs from a JSON file.

    ``{"jobs": [{"id": "a", "gpus": 4, "weight": 1, "tier": "flex-2", "points": [[100, 0.2],
    [200, 0.8]]}]}``: ``points`` are (watts of one GPU, throughput) pairs; a ``frontier`` of the
    whole job may stand in their place, as a document or the path of a file with one. ``floor``
    (least performance), ``limit_watts``, ``idle_watts`` and ``node`` are optional.
    """
    text = read_text(path, "jobs")
    remedy = 'write {"jobs": [{"id": "a", "points": [[watts, throughput], …]}]}'
    with document_errors(f"{path} holds no jobs", remedy=remedy):
        document = json.loads(text)
        if isinstance(document, dict) and (unknown := sorted(document.keys() - {"jobs"})):
            raise FileError(f"{path} has an unknown member {unknown[0]!r}", remedy="give jobs only")
        entries = document["jobs"] if isinstance(document, dict) else document
        jobs = [_job(entry, path.parent) for entry in entries]
    names: set[str] = set()
    for job in jobs:
        if job.id in names:
            raise FileError(f"job {job.id!r} is in {path} twice", remedy="give each its own id")
        names.add(job.id)
    return jobs


_MEMBERS = {
    *("id", "gpus", "points", "frontier", "weight", "floor", "tier", "limit_watts", "idle_watts"),
    "node",
}


def _job(entry: dict[str, Any], folder: Path) -> ClusterJob:
    name, idle = str(entry["id"]), float(entry.get("idle_watts", 0.0))
    if unknown := sorted(entry.keys() - _MEMBERS):
        raise FileError(
            f"job {name} has an unknown member {unknown[0]!r}",
            remedy=f"use {', '.join(sorted(_MEMBERS))}",
        )
    gpus = entry.get("gpus")
    if gpus is not None and (type(gpus) is not int or gpus < 1):
        raise FileError(f"job {name} has {gpus!r} GPUs", remedy="give a whole number from 1")
    for pair in (("points", "frontier"), ("floor", "tier")):
        if {*pair} <= entry.keys():
            raise FileError(f"job {name} has {pair[0]} and {pair[1]}", remedy="give one of them")
    if "points" in entry:
        curve = PowerCurve.from_points([(watts, rate) for watts, rate in entry["points"]], idle)
    elif "frontier" in entry:
        frontier = _frontier(entry["frontier"], folder)
        gpus = frontier.fastest.setting.devices if gpus is None else gpus
        curve = PowerCurve.from_frontier(frontier, gpus, idle)
    else:
        raise FileError(
            f"job {name} has no frontier",
            remedy="give points or a frontier; `joulery sweep` measures one",
        )
    floor = flexibility_floor(entry["tier"]) if "tier" in entry else entry.get("floor", 0.0)
    return ClusterJob(
        id=name,
        curve=curve,
        gpus=gpus or 1,
        weight=entry.get("weight", 1.0),
        floor=floor,
        limit_watts=entry.get("limit_watts"),
        node=str(entry.get("node", "")),
    )


def _frontier(value: Any, folder: Path) -> Frontier:
    """A frontier, or that of a file that ``plan``, ``predict``, ``sweep`` or ``serving`` wrote."""
    document = value
    if isinstance(value, str):
        document = json.loads((folder / value).read_text(encoding="utf-8"))
    if document.get("schema") == SCHEMA:
        return Frontier.from_dict(document)
    rows = document.get("frontier", document.get("points"))
    if isinstance(rows, dict):
        return Frontier.from_dict(rows)
    devices = document.get("devices")
    points = []
    for row in rows:
        setting = Setting.from_dict(row.get("setting", {}))
        setting = replace(setting, devices=setting.devices or devices)
        points.append(OperatingPoint(row["seconds"], row["joules"], setting))
    return Frontier.from_points(points)


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct columns of a matrix, and which of them each column is."""
    order = np.lexsort(keys)
    ordered = keys[:, order]
    first = np.r_[True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)]
    inverse = np.empty(keys.shape[1], dtype=np.int64)
    inverse[order] = np.cumsum(first) - 1
    return ordered[:, first], inverse


def _knots(curves: Sequence[PowerCurve], of_curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots of each row, padded by repeating the last."""
    width = max(2, *(len(curve.watts) for curve in curves))

    def columns(knots: Iterable[tuple[float, ...]]) -> np.ndarray:
        table = np.array([[*row, *row[-1:] * (width - len(row))] for row in knots])
        # Rows lie side by side in memory, so that sums over knots run over whole columns at once.
        return np.ascontiguousarray(table.T[:, of_curve])

    return columns(c.watts for c in curves), columns(c.performance for c in curves)
