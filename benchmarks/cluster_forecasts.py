"""Plans that follow forecasts of a signal, corrected on the way, at their actual cost."""

from __future__ import annotations

import math
from bisect import bisect_right
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from joulery.cluster import PowerCurve, WorkPlan, plan_work
from joulery.grid import Signal, read_table
from joulery.units import JOULES_PER_KILOWATT_HOUR

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The error of a forecast in the current hour fades over the next ones. On two weeks of CarbonCast's
# forecasts for California 6 and 12 hours did alike, 1 and 3 hours a little worse.
_ERROR_LASTS_SECONDS = 6 * 3600.0
_DAY_SECONDS = 86400.0


def read_forecasts(path: Path) -> list[Signal]:
    """CarbonCast's hourly forecasts in one file, each known from its own start on."""
    names, rows = read_table(path)
    column = next(name for name in names if "forecast" in name)
    times = [datetime.fromisoformat(row["utc"]).replace(tzinfo=UTC).timestamp() for row in rows]
    values = [float(row[column]) for row in rows]
    starts = [0, *(at for at in range(1, len(rows)) if times[at] <= times[at - 1]), len(rows)]
    return [Signal(times[a], 3600.0, tuple(values[a:b])) for a, b in pairwise(starts)]


def follow_forecasts(
    curve: PowerCurve,
    work_seconds: float,
    actual: Signal,
    forecasts: Sequence[Signal],
    start: float,
    deadline: float,
) -> WorkPlan:
    """The plan that results when forecasts are corrected on the way, at its actual cost.

    Args:
        curve: Performance of one GPU for each power.
        work_seconds: Work, as seconds at full speed.
        actual: Signal as it turned out; only its current step is used for planning.
        forecasts: Forecasts in order of their start, which is when each becomes known.
        start: Earliest time.
        deadline: Time by which the work must be done.
    """
    steps: list[tuple[float, ...]] = []
    now, left = start, work_seconds
    issued = [forecast.start for forecast in forecasts]
    while left > 1e-6:
        newest = bisect_right(issued, now) - 1
        if newest < 0:
            raise ValueError("no forecast is known at the start")
        plan = plan_work(
            curve, left, _corrected(forecasts[newest], actual, now, deadline), now, deadline
        )
        steps.append((now, *(float(c[0]) for c in (plan.seconds, plan.watts, plan.performance))))
        left -= steps[-1][1] * steps[-1][3]
        now += steps[-1][1]
    starts, seconds, watts, performance = np.array(steps).T
    values = np.array([actual.at(time) for time in starts.tolist()])
    amount = float((watts * seconds) @ values) / JOULES_PER_KILOWATT_HOUR
    return WorkPlan(starts, seconds, watts, performance, amount, plan.price)


def _corrected(forecast: Signal, actual: Signal, now: float, until: float) -> Signal:
    """A forecast from now on, moved by its error in the current step.

    Beyond its end the last day repeats.
    """
    step = forecast.step_seconds
    first = int((now - forecast.start) // step)
    needed = math.ceil((until - forecast.start) / step) + 1
    values = np.array(forecast.values)
    if len(values) < needed:
        day = values[-max(1, round(_DAY_SECONDS / step)) :]
        values = np.concatenate([values, np.resize(day, needed - len(values))])
    values = values[first:]
    fading = np.exp(-step * np.arange(len(values)) / _ERROR_LASTS_SECONDS)
    moved = np.maximum(values + (actual.at(now) - values[0]) * fading, 0.0)
    return Signal(forecast.start + first * step, step, tuple(moved.tolist()))
