"""Do a fixed amount of work by a deadline when the grid is greenest or cheapest.

One planner: every step of the signal offers work at prices (signal × watts per unit of work along
the curve), and the cheapest offers that add up to the work are taken. The price of the last one
is what a further second of work costs. Known policies are special cases of the curve:

- pause or full power (Wait Awhile): a curve of one point, with pauses;
- caps that follow the signal (Chase): the measured curve, without pauses;
- more or fewer workers (CarbonScaler): a curve over numbers of workers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joulery.cluster._jobs import ClusterJob, PowerCurve
from joulery.errors import InfeasibleError, InvalidValueError
from joulery.grid import Signal
from joulery.units import JOULES_PER_KILOWATT_HOUR, finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.cluster._allocate import Allocation


_WATTS_PER_MEGAWATT = 1e6
# The error of a forecast in the current hour fades over the next ones. On two weeks of CarbonCast's
# forecasts for California 6 and 12 hours did alike, 1 and 3 hours a little worse.
_ERROR_LASTS_SECONDS = 6 * 3600.0
_DAY_SECONDS = 86400.0
# A plan without pauses tries this many ends between the earliest and the deadline;
# by hand.
_ENDS = 32


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """Power of one GPU in every step of a signal.

    Attributes:
        starts: Start of each step, in seconds since 1970 UTC.
        seconds: Length of each step.
        watts: Mean power in each step.
        performance: Mean performance in each step; 0 while paused.
        amount: Cost of the energy in the signal's unit (grams of CO2, or money).
        price: Cost of one more second of work at full speed.
    """

    starts: np.ndarray
    seconds: np.ndarray
    watts: np.ndarray
    performance: np.ndarray
    amount: float
    price: float

    @property
    def end(self) -> float:
        """Time at which the work is done."""
        last = int(np.flatnonzero(self.performance > 0)[-1])
        return float(self.starts[last] + self.seconds[last])

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, as ``joulery cluster shape`` prints it."""
        names = ("start", "seconds", "watts", "performance")
        columns = (self.starts, self.seconds, self.watts, self.performance)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {
            "amount": self.amount,
            "end": self.end,
            "amount_of_one_more_hour": 3600 * self.price,
            "steps": [dict(zip(names, row, strict=True)) for row in rows],
        }

    def budget(self, step_seconds: float = 3600.0) -> Signal:
        """The power as a series in equal steps, which the agent takes as its budget."""
        edge = self.starts[1:2].sum()  # where a step of the signal begins, or 1970
        first = self.starts[0] - (self.starts[0] - edge) % step_seconds
        times = np.arange(first, self.starts[-1] + self.seconds[-1], step_seconds)
        position = np.clip(np.searchsorted(self.starts, times, side="right") - 1, 0, None)
        return Signal(float(first), step_seconds, tuple(self.watts[position].tolist()))


def plan_work(
    curve: PowerCurve,
    work_seconds: float,
    signal: Signal,
    start: float,
    deadline: float,
    *,
    may_pause: bool = True,
) -> WorkPlan:
    """The plan of least carbon or cost that does the work between two times.

    Args:
        curve: Performance of one GPU for each power.
        work_seconds: Work, as seconds at full speed.
        signal: Carbon intensity or price per kWh.
        start: Earliest time, in seconds since 1970 UTC.
        deadline: Time by which the work must be done.
        may_pause: Whether the job may stop for a while.

    Raises:
        InfeasibleError: Not even full speed meets the deadline.
    """
    if not finite(work_seconds, "work in seconds") > 0:
        raise InvalidValueError(f"{work_seconds:g} s of work", remedy="give a positive amount")
    _check_fits(work_seconds, start, deadline)
    if may_pause:
        return _cheapest(curve, work_seconds, signal, (start, deadline), may_pause=True)
    # Running without a pause, even at least power, may do the work before the deadline.
    slowest = min(deadline, start + work_seconds / curve.performance[0])
    plans = [
        _cheapest(curve, work_seconds, signal, (start, end), may_pause=False)
        for end in np.linspace(start + work_seconds, slowest, _ENDS).tolist()
    ]
    return min(plans, key=lambda plan: plan.amount)


def follow_forecasts(  # noqa: PLR0913 - a plan, and what it is corrected by
    curve: PowerCurve,
    work_seconds: float,
    actual: Signal,
    forecasts: Sequence[Signal],
    start: float,
    deadline: float,
    *,
    may_pause: bool = True,
) -> WorkPlan:
    """The plan that results when forecasts are corrected on the way, at its actual cost.

    Args:
        curve: Performance of one GPU for each power.
        work_seconds: Work, as seconds at full speed.
        actual: Signal as it turned out; only its current step is used for planning.
        forecasts: Forecasts in order of their start, which is when each becomes known.
        start: Earliest time.
        deadline: Time by which the work must be done.
        may_pause: Whether the job may stop for a while.

    Raises:
        InvalidValueError: No forecast is known at the start.
        InfeasibleError: Not even full speed meets the deadline.
    """
    steps: list[tuple[float, ...]] = []
    now, remaining = start, work_seconds
    issued = [forecast.start for forecast in forecasts]
    while remaining > 1e-6:
        newest = bisect_right(issued, now) - 1
        if newest < 0:
            raise InvalidValueError(
                "no forecast is known at the start", remedy="begin with one that starts by then"
            )
        signal = correct_forecast(forecasts[newest], actual.at(now), now, deadline)
        plan = plan_work(curve, remaining, signal, now, deadline, may_pause=may_pause)
        steps.append((now, *(float(c[0]) for c in (plan.seconds, plan.watts, plan.performance))))
        remaining -= steps[-1][1] * steps[-1][3]
        now += steps[-1][1]
    starts, seconds, watts, performance = np.array(steps).T
    values = np.array([actual.at(time) for time in starts.tolist()])
    amount = float((watts * seconds) @ values) / JOULES_PER_KILOWATT_HOUR
    return WorkPlan(starts, seconds, watts, performance, amount, plan.price)


def correct_forecast(forecast: Signal, value: float, now: float, until: float) -> Signal:
    """A forecast from now on, moved by its error in the current step, which fades.

    Give ``plan_work`` what it returns, again in each step. Beyond the forecast's end its last
    day repeats.

    Args:
        forecast: Newest forecast.
        value: Value of the signal now.
        now: Time in seconds since 1970 UTC.
        until: Time up to which values are needed.
    """
    step = forecast.step_seconds
    first = int((now - forecast.start) // step)
    count = math.ceil((until - forecast.start) / step) + 1
    values = np.array(forecast.values)
    if len(values) < count:
        day = values[-max(1, round(_DAY_SECONDS / step)) :]
        values = np.concatenate([values, np.resize(day, count - len(values))])
    values = values[first:]
    fading = np.exp(-step * np.arange(len(values)) / _ERROR_LASTS_SECONDS)
    values = np.maximum(values + (value - values[0]) * fading, 0.0)
    return Signal(forecast.start + first * step, step, tuple(values.tolist()))


class StartPlan(NamedTuple):
    """Start time of work that runs without a pause."""

    start: float  # best time, in seconds since 1970 UTC
    value: float  # mean of the signal while it runs
    value_at_once: float  # mean of the signal if it ran at once


def best_start(signal: Signal, work_seconds: float, now: float, deadline: float) -> StartPlan:
    """The start of least carbon or cost for work at constant power that cannot pause.

    Args:
        signal: Carbon intensity or price per kWh, at least until the deadline.
        work_seconds: Duration of the work.
        now: Earliest start, in seconds since 1970 UTC.
        deadline: Time by which the work must be done.

    Raises:
        InfeasibleError: The work takes longer than until the deadline.
        InvalidValueError: The signal does not cover the time until the deadline.
    """
    finite(work_seconds, "duration in seconds", minimum=1.0)
    _check_fits(work_seconds, now, deadline)
    starts, seconds, values = signal.window(now, deadline)
    cost = np.concatenate([[0.0], np.cumsum(seconds * values)])
    edges = np.append(starts, deadline)
    # The sum over the work is linear between starts at which either end of it meets a step.
    latest = max(now, deadline - work_seconds)
    tries = np.unique(np.clip(np.concatenate([edges, edges - work_seconds]), now, latest))
    means = np.interp(tries + work_seconds, edges, cost) - np.interp(tries, edges, cost)
    means /= work_seconds
    best = int(means.argmin())  # the earliest of equals
    return StartPlan(float(tries[best]), float(means[best]), float(means[0]))


def _check_fits(work_seconds: float, start: float, deadline: float) -> None:
    if start + work_seconds > deadline * (1 + 1e-12) + 1e-6:
        raise InfeasibleError(
            f"{work_seconds:.0f} s of work do not fit into {max(0.0, deadline - start):.0f} s",
            remedy="allow a later deadline",
        )


def flexibility_price(jobs: Sequence[ClusterJob], shares: Allocation) -> float:
    """GPU-hours of delay that each MWh not used costs, against all jobs at full speed."""
    savings = sum(job.gpus * job.curve.most_watts for job in jobs) - float(shares.watts.sum())
    losses = sum(j.gpus * (1 - p) for j, p in zip(jobs, shares.performance.tolist(), strict=True))
    return losses / savings * _WATTS_PER_MEGAWATT if savings > 0 else 0.0


def _cheapest(
    curve: PowerCurve, work: float, signal: Signal, window: tuple[float, float], *, may_pause: bool
) -> WorkPlan:
    """Take the cheapest offers of all steps until they add up to the work."""
    starts, seconds, values = signal.window(*window)
    watts, performance = _knots(curve, may_pause=may_pause)
    rises, gains = np.diff(watts), np.diff(performance)
    amounts_used = np.zeros((len(gains), len(starts)))
    price = 0.0
    if len(gains):
        # Where power costs nothing the order along the curve still holds.
        prices = np.maximum(values, 1e-9) * (rises / gains)[:, None]
        offered = gains[:, None] * seconds
        order = np.argsort(prices, axis=None, kind="stable")
        amounts = offered.ravel()[order]
        after = np.cumsum(amounts)
        remaining = work - performance[0] * float(seconds.sum())
        portion = np.clip(remaining - (after - amounts), 0.0, amounts)
        amounts_used.ravel()[order] = portion
        last = min(int(np.searchsorted(after, remaining)), len(order) - 1)
        price = float(prices.ravel()[order[last]]) / JOULES_PER_KILOWATT_HOUR
    speed = performance[0] + amounts_used.sum(axis=0) / seconds
    power = watts[0] + (amounts_used * (rises / gains)[:, None]).sum(axis=0) / seconds
    if may_pause:  # after the end nothing waits
        power[int(np.flatnonzero(speed > 0).max(initial=-1)) + 1 :] = 0.0
    amount = float((power * seconds) @ values) / JOULES_PER_KILOWATT_HOUR
    return WorkPlan(starts, seconds, power, speed, amount, price)


def _knots(curve: PowerCurve, *, may_pause: bool) -> tuple[np.ndarray, np.ndarray]:
    """Knots of the curve, with a pause as the first where it is allowed."""
    if not may_pause:
        return np.array(curve.watts), np.array(curve.performance)
    paused = (curve.idle_watts, 0.0)
    pairs = zip(curve.watts, curve.performance, strict=True)
    hull = PowerCurve.from_points([paused, *pairs])
    return np.array(hull.watts), np.array(hull.performance)
