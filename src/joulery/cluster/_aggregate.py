"""A whole cluster as one job: its best performance for each power.

A level above needs only this curve of each level below, never its jobs, so sites compose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.cluster._jobs import ClusterJob, Fleet, PowerCurve, at_performance, segment_watts
from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Knots of an aggregated curve; by hand.
MOST_POINTS = 64


def aggregate(
    jobs: Sequence[ClusterJob] | Fleet,
    name: str = "site",
    points: int = MOST_POINTS,
) -> tuple[ClusterJob, float]:
    """One job that stands for many, and the relative error of its weighted performance.

    The curve has at most ``points`` knots, all of them attainable: it is never above what
    the jobs can do, and below it by at most the stated error.

    Args:
        jobs: Jobs under one flat budget.
        name: Name of the job that stands for them.
        points: Most knots of the curve.
    """
    if points < 2:
        raise InvalidValueError(f"a curve of {points} points", remedy="allow at least 2")
    fleet = jobs if isinstance(jobs, Fleet) else Fleet.from_jobs(jobs)
    base = float(at_performance(fleet, fleet.floor_performance) @ fleet.count)
    watts, value = _throughput(fleet)
    keep, error = _thin(watts, value, points)
    idle = float(fleet.idle_watts @ fleet.count)
    curve = PowerCurve(
        tuple((base + watts[keep]).tolist()), tuple((value[keep] / value[-1]).tolist()), idle
    )
    return ClusterJob(name, curve, weight=float(value[-1])), error


def _throughput(fleet: Fleet) -> tuple[np.ndarray, np.ndarray]:
    """Watts above the floors, and the weighted performance that they buy at best."""
    watts = segment_watts(fleet, fleet.floor_performance) * fleet.count
    steepness = (fleet.weight * fleet.slope).ravel()
    order = np.argsort(-steepness, kind="stable")
    order = order[watts.ravel()[order] > 0]
    watts_taken = watts.ravel()[order]
    base = float((fleet.weight * fleet.floor_performance) @ fleet.count)
    value = base + np.concatenate([[0.0], np.cumsum(watts_taken * steepness[order])])
    return np.concatenate([[0.0], np.cumsum(watts_taken)]), value


def _thin(watts: np.ndarray, value: np.ndarray, points: int) -> tuple[np.ndarray, float]:
    """Knots to keep, denser where the curve bends more, and the relative error of the rest."""
    grows = np.r_[True, (np.diff(watts) > 0) & (np.diff(value) > 0)]
    knots = np.flatnonzero(grows)
    x, y = watts[knots], value[knots]
    if len(x) > points:
        slope = np.diff(y) / np.diff(x)
        # The error of a chord grows with bend times length squared; equal shares of the root of
        # bend times length make all chords equally good.
        bend = np.sqrt(np.abs(np.diff(slope, append=slope[-1])) * np.diff(x))
        share = np.concatenate([[0.0], np.cumsum(bend)])
        shares = np.linspace(0.0, share[-1], points)
        positions = np.unique(np.r_[0, np.searchsorted(share, shares[1:-1]), len(x) - 1])
        knots = knots[positions]
    inside = np.interp(watts, watts[knots], value[knots])
    return knots, float(((value - inside) / value).max())
