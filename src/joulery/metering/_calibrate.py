"""Gains and offsets of board sensors, learned against a meter of the whole node.

A node draws what its boards draw, divided by the efficiency of its power supplies, plus the rest:

    node watts = rest + Σ true watts / efficiency,   read watts = gain · true watts + offset

So node watts rise by 1 / (gain · efficiency) per watt that a board reads, which a regression over
changes of load finds. The rest may drift slowly, as fans do. Node meters are late and average;
delay and averaging time are those that explain the readings best. The slopes have a prior
(published gains scatter by 7 %), so that boards that the load moves together get the gain that
they share. The intercept holds the rest of the node and all offsets: offsets can be told from it
only where the power of the rest is known.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import numpy as np

from joulery.background import PeriodicTask
from joulery.clock import REAL_CLOCK
from joulery.errors import InfeasibleError, InvalidValueError, JouleryError
from joulery.hardware import with_energy
from joulery.metering._calibration import SensorCalibration
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from joulery.clock import Clock
    from joulery.governor import Held
    from joulery.hardware import Device, EnergyMeter, PowerLimit, PowerMeter

    Floats = NDArray[np.float64]

# One sigma of gains and offsets: above the 0.056 and 8 W of the 17 types that Yang et al. (SC'24)
# put behind a hardware meter, since a board here is one more type.
_GAIN_SIGMA = 0.07
_OFFSET_SIGMA_WATTS = 10.0
_REST_ERROR_WATTS = 3.0  # one sigma of the rest of a node that is stated
_READ_SECONDS = 0.1  # by hand: ten times a controller's rate
# By hand: those of the controllers on simulated nodes.
_DELAYS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.5, 7.0)
_AVERAGES = (1.0, 2.0, 4.0, 8.0)  # as the delays
_UNSETTLED_SHARE = 0.3  # error of a reading, as a share of what changed before it
_READING_WATTS = 3.0  # one sigma of a settled reading of a management controller
_DRIFT_SECONDS = 40.0  # on simulated nodes: fans drift more slowly
# Relative error of a gain whose meter is timed to half a second, and of one that is 5 s slow.
_TIMING_ERROR, _SLOW_SECONDS = 0.004, 5.0
_HOLD_SECONDS = 12.0  # by hand: twice what the slowest controller averages over
# Residuals are compared over one hold of the limits and longer, as other jobs come and go.
_BLOCKS_SECONDS = (12.0, 24.0, 48.0)
# By hand: fans follow the boards within some 15 s and by up to a tenth of their power; what is seen
# of that slowly, half as much may come at once.
_FOLLOWING_SECONDS, _FOLLOWING_SIGMA, _LEAST_FOLLOWING, _AT_ONCE = 15.0, 0.1, 0.02, 0.5
# One sigma of what processors whose energy cannot be read draw at once of what the boards draw.
_UNREAD_HOSTS = 0.05  # by hand
_QUIET_WATTS = 6.0  # by hand: twice the residuals of simulated nodes in which nothing else runs
_IDLE_SECONDS = 20.0  # by hand: some readings of the slowest controller
_FEWEST_SECONDS = 20  # by hand: fewer readings fit anything
_LEAST_CHANGE_WATTS = 15.0  # by hand: twice the step of the coarsest controller
_LEAST_READING_WATTS = 0.3  # one sigma of a reading in whole watts


@dataclass(frozen=True, slots=True)
class NodePower:
    """Known properties of a node besides its readings.

    Attributes:
        efficiency: Share of the node's watts that arrives at its boards.
        efficiency_error: One sigma of ``efficiency``.
        rest_watts: Node watts without the boards, where known.
    """

    efficiency: float = 0.95
    efficiency_error: float = 0.025
    rest_watts: float | None = None

    def __post_init__(self) -> None:
        if finite(self.efficiency, "efficiency", minimum=0.5) > 1.0:
            raise InvalidValueError(
                f"efficiency must be at most 1, not {self.efficiency:g}",
                remedy="write 94 % as 0.94; 1 where the meter sits behind the power supplies",
            )
        if self.rest_watts is not None:
            finite(self.rest_watts, "watts of the rest of the node", minimum=0.0)


Readings = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class CalibrationTrace:
    """Readings of a node meter and of the devices in the node, while their load changed.

    Attributes:
        node: (seconds, watts) of the node meter.
        boards: (seconds, joules) of each board by its id.
        hosts: (seconds, joules) of processors and memory, whose counters are taken as true.
    """

    node: Readings = field(default_factory=list)
    boards: Mapping[str, Readings] = field(default_factory=dict)
    hosts: Mapping[str, Readings] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LearnedCalibration:
    """Result of a calibration.

    Attributes:
        calibrations: One for each board whose load changed enough.
        unchanged: Ids of the other boards.
        delay_seconds: Delay of the node meter behind the boards.
        averaging_seconds: Time over which the node meter averages.
        residual_watts: Standard deviation of the node's readings from the fit.
        warnings: Reasons to doubt it, in one sentence each.
    """

    calibrations: tuple[SensorCalibration, ...]
    unchanged: tuple[str, ...]
    delay_seconds: float
    averaging_seconds: float
    residual_watts: float
    warnings: tuple[str, ...] = ()


def calibrate(
    node: Device,
    boards: Sequence[Device],
    load: Callable[[Callable[[], None]], object],
    *,
    hosts: Sequence[Device] = (),
    supply: NodePower | None = None,
    clock: Clock = REAL_CLOCK,
) -> LearnedCalibration:
    """Run a load, step the boards' power limits where that is possible, and learn from both.

    Args:
        node: Meter of the whole node.
        boards: Boards to calibrate.
        load: Function that keeps the boards busy, some minutes long; it calls the function that
            it is given about twice a second.
        hosts: Processors and memory with counters, whose power is taken as read.
        supply: Efficiency of the power supplies, and the power of the rest of the node.
        clock: Real or virtual clock.

    Raises:
        InfeasibleError: There are too few readings, or no board's power changed.
    """
    from joulery.governor import held, lease_obstacle
    from joulery.hardware import Capability, require

    require(node, Capability.POWER)
    stepped = [
        board
        for board in boards
        if Capability.POWER_LIMIT in board.capabilities and lease_obstacle(board) is None
    ]
    recorder = CalibrationRecorder(cast("PowerMeter", node), boards, hosts, clock)
    with held(stepped) as leases, recorder:
        steps = LimitSteps([cast("PowerLimit", board) for board in stepped], leases)
        if len(stepped) < len(boards):
            clock.sleep(_IDLE_SECONDS)  # then the load's own start is a step
        began = clock.now()
        load(lambda: steps.advance(clock.now() - began))
    return learn_calibrations(recorder.trace, node.info.name, supply, clock)


def learn_calibrations(
    trace: CalibrationTrace, meter: str, supply: NodePower | None = None, clock: Clock = REAL_CLOCK
) -> LearnedCalibration:
    """Gain and offset of every board whose power changed.

    Args:
        trace: Readings while the load changed.
        meter: Name of the node meter.
        supply: Efficiency of the power supplies, and the power of the rest of the node.
        clock: Clock for the date.

    Raises:
        InfeasibleError: There are too few readings, or no board's power changed.
    """
    node = supply or NodePower()
    names = [name for name, readings in trace.boards.items() if _changed(readings)]
    if not names:
        raise InfeasibleError(
            f"no board's power changed by {_LEAST_CHANGE_WATTS:g} W",
            remedy="give a command that uses the boards: joulery calibrate -- python train.py",
        )
    candidates = [
        rows
        for delay in _DELAYS
        for average in _AVERAGES
        if len((rows := _Rows.of(trace, names, node.efficiency, delay, average)).times)
        >= _FEWEST_SECONDS
    ]
    if not candidates:
        raise InfeasibleError(
            f"the node meter gave readings in fewer than {_FEWEST_SECONDS} seconds",
            remedy="run a longer load, with --duration, and see that `joulery doctor` lists it",
        )
    rows = min(candidates, key=lambda candidate: _fitted(candidate, node.efficiency).residual_watts)
    fit = _fitted(rows, node.efficiency, rows.settled_weights())
    when = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="seconds")
    return LearnedCalibration(
        tuple(fit.calibrations(rows, names, node, meter, when, reads_hosts=bool(trace.hosts))),
        tuple(name for name in trace.boards if name not in names),
        rows.delay,
        rows.average,
        fit.residual_watts,
        _warnings(trace, fit),
    )


def _warnings(trace: CalibrationTrace, fit: _Fit) -> tuple[str, ...]:
    warnings = []
    if fit.follows:
        share = f"{100.0 * fit.following:.0f} %"
        warnings.append(f"the rest of the node draws another {share} of what the boards draw")
    if not trace.hosts:
        warnings.append("no processor was read: if its power follows the boards', gains are low")
    if fit.residual_watts > _QUIET_WATTS:
        watts = f"{fit.residual_watts:.0f} W"
        warnings.append(f"something beside the boards moved the node by {watts}: let it rest")
    return tuple(warnings)


def _changed(readings: Readings) -> bool:
    """Whether a board's power over whole seconds changed enough."""
    seconds, _ = _arrays(readings)
    if len(seconds) < _FEWEST_SECONDS:
        return False
    watts = _mean_watts(readings, np.arange(seconds[0] + 1.0, seconds[-1], 1.0), 1.0)
    return len(watts) > 0 and float(np.ptp(watts)) >= _LEAST_CHANGE_WATTS


def _arrays(readings: Readings) -> tuple[Floats, Floats]:
    table = np.array(readings, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _mean_watts(readings: Readings, ends: Floats, average: float) -> Floats:
    """Mean power over ``average`` seconds before each of ``ends``; NaN outside the readings."""
    seconds, joules = _arrays(readings)
    later, earlier = (
        np.interp(at, seconds, joules, left=np.nan, right=np.nan) for at in (ends, ends - average)
    )
    watts: Floats = (later - earlier) / average
    return watts


@dataclass(frozen=True, slots=True)
class _Rows:
    """Node watts second by second, beside what each board drew before at one delay.

    Attributes:
        delay: Delay of the node meter in seconds.
        average: Time over which it averages, in seconds.
        times: Middle of each second with readings.
        node: Node watts less those of processors and memory.
        boards: Watts by second and board.
        changes: Range of the boards' total in what the node meter averaged over, and around.
    """

    delay: float
    average: float
    times: Floats
    node: Floats
    boards: Floats
    changes: Floats

    @classmethod
    def of(
        cls,
        trace: CalibrationTrace,
        names: Sequence[str],
        efficiency: float,
        delay: float,
        average: float,
    ) -> _Rows:
        times, node = _by_second(*_arrays(trace.node)) if trace.node else _arrays([])
        ends = times - delay + 0.5  # readings of a second are from its middle on average
        # A mean over a second of means over ``average`` seconds.
        width = max(1.0, average)
        boards = [_mean_watts(trace.boards[name], ends, width) for name in names]
        for readings in trace.hosts.values():
            node = node - _mean_watts(readings, ends, width) / efficiency
        around = ends + 1.0 - np.arange(0.0, average + 3.5, 1.0)[:, None]
        total = sum(_mean_watts(trace.boards[name], around, 1.0) for name in names)
        parts = (times, node, np.column_stack(boards), np.ptp(total, axis=0))
        finite_rows = np.isfinite(node + parts[3] + parts[2].sum(axis=1))
        return cls(delay, average, *(part[finite_rows] for part in parts))

    def settled_weights(self) -> Floats:
        """Weights by which readings count less the more the power changed around them."""
        weights: Floats = 1.0 / (_READING_WATTS**2 + (_UNSETTLED_SHARE * self.changes) ** 2)
        return weights * _READING_WATTS**2


def _by_second(times: Floats, watts: Floats) -> tuple[Floats, Floats]:
    """Mean of the readings of every second that has any, at its middle."""
    seconds = np.floor(times - times[0]).astype(np.int64)
    counts = np.bincount(seconds)
    filled = counts > 0
    means = np.bincount(seconds, watts)[filled] / counts[filled]
    return times[0] + 0.5 + np.flatnonzero(filled), means


def _fitted(rows: _Rows, efficiency: float, weights: Floats | None = None) -> _Fit:
    """Least squares with a prior on the slopes; readings far off are left out."""
    boards, expected = rows.boards.shape[1], 1.0 / efficiency
    columns = np.hstack([rows.boards, _following(rows), _drift(rows.times)])
    precision = np.zeros(columns.shape[1])
    precision[:boards] = 1.0 / (_GAIN_SIGMA * expected) ** 2
    precision[boards] = 1.0 / _FOLLOWING_SIGMA**2
    weight = np.ones(len(columns)) if weights is None else weights.copy()
    variance = _READING_WATTS**2
    for _ in range(3):
        scaled = columns.T * (weight / variance)
        covariance = np.linalg.pinv(scaled @ columns + np.diag(precision))
        prior = np.where(np.arange(len(precision)) < boards, expected, 0.0)
        solution = covariance @ (scaled @ rows.node + precision * prior)
        residuals = rows.node - columns @ solution
        weighted = residuals * np.sqrt(weight)
        variance = _effective_variance(weighted, rows.times, columns.shape[1])
        if weights is not None:
            weight = np.where(np.abs(weighted) > 5.0 * _typical(weighted), 0.0, weight)
    return _Fit(
        solution[:boards],
        covariance[:boards, :boards],
        float(np.mean(solution[boards + 1 :])),
        math.sqrt(float(np.mean(covariance[boards + 1 :, boards + 1 :]))),
        math.sqrt(float(np.mean(weighted**2))),
        float(solution[boards]),
        math.sqrt(float(covariance[boards, boards])),
    )


def _following(rows: _Rows) -> Floats:
    """Column of what a rest that follows the boards' total slowly, as fans do, would follow."""
    total = rows.boards.sum(axis=1)
    follower = np.empty((len(total), 1))
    level, before = total[0], rows.times[0]
    for row, (watts, at) in enumerate(zip(total, rows.times, strict=True)):
        level += (watts - level) * -math.expm1((before - at) / _FOLLOWING_SECONDS)
        follower[row, 0], before = level, at
    return follower


def _drift(times: Floats) -> Floats:
    """Columns of a line with a bend every so often: the rest of the node changes slowly."""
    bends = np.linspace(times[0], times[-1], 2 + int(np.ptp(times) / _DRIFT_SECONDS))
    return np.column_stack([np.interp(times, bends, row) for row in np.eye(len(bends))])


def _typical(residuals: Floats) -> float:
    return 1.4826 * float(np.median(np.abs(residuals))) + _LEAST_READING_WATTS


def _effective_variance(residuals: Floats, times: Floats, unknowns: int) -> float:
    """Variance of residuals as the error bars need it: larger the longer they stay alike."""
    variance = float(np.mean(residuals**2)) + _LEAST_READING_WATTS**2
    for seconds in _BLOCKS_SECONDS:
        blocks = np.floor((times - times[0]) / seconds).astype(np.int64)
        count = int(blocks[-1]) + 1
        sums = np.bincount(blocks, residuals)
        free = max(1.0, count - unknowns * _BLOCKS_SECONDS[0] / seconds)
        variance = max(variance, float(np.sum(sums**2)) / len(residuals) * count / free)
    return variance


@dataclass(frozen=True, slots=True)
class _Fit:
    """Regression of node watts on board watts."""

    slopes: Floats
    covariance: Floats
    intercept: float
    intercept_error: float
    residual_watts: float
    following: float
    following_error: float

    @property
    def follows(self) -> bool:
        """Whether the rest of the node is seen to draw more when the boards do."""
        return self.following > max(_LEAST_FOLLOWING, 2.0 * self.following_error)

    def calibrations(
        self,
        rows: _Rows,
        names: Sequence[str],
        node: NodePower,
        meter: str,
        when: str,
        *,
        reads_hosts: bool,
    ) -> list[SensorCalibration]:
        """Gains from slopes; offsets from the intercept where the rest of the node is known."""
        offsets, offset_error = self._offsets(node)
        timing = _TIMING_ERROR * (1.0 + ((rows.delay + rows.average) / _SLOW_SECONDS) ** 2)
        hosts = 0.0 if reads_hosts else _UNREAD_HOSTS
        learned = []
        for at, name in enumerate(names):
            slope, error = float(self.slopes[at]), math.sqrt(float(self.covariance[at, at]))
            gain = 1.0 / (node.efficiency * slope)
            # A rest that follows slowly may follow at once as well, which looks like a gain.
            follows = _AT_ONCE * max(0.0, self.following) / slope if self.follows else 0.0
            supply = node.efficiency_error / node.efficiency
            relative = math.hypot(error / slope, timing, supply, follows, hosts)
            # In the fit an offset counts in node watts, which are slope times read watts.
            learned.append(
                SensorCalibration(
                    name,
                    gain,
                    float(offsets[at]) / slope,
                    gain * relative,
                    offset_error / slope,
                    meter,
                    when,
                )
            )
        return learned

    def _offsets(self, node: NodePower) -> tuple[Floats, float]:
        """Offset of each board in node watts, and its one sigma."""
        count, prior = len(self.slopes), _OFFSET_SIGMA_WATTS / node.efficiency
        if node.rest_watts is None:
            return np.zeros(count), prior
        noise = self.intercept_error**2 + _REST_ERROR_WATTS**2
        weight = prior**2 / (count * prior**2 + noise)
        total = node.rest_watts - self.intercept
        return np.full(count, weight * total), prior * math.sqrt(max(0.0, 1.0 - weight))


class CalibrationRecorder:
    """Records the readings of a node meter and of the devices in the node while a block runs."""

    def __init__(
        self,
        node: PowerMeter,
        boards: Sequence[Device],
        hosts: Sequence[Device] = (),
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.trace = CalibrationTrace(
            [],
            {device.info.id: [] for device in boards},
            {device.info.id: [] for device in hosts},
        )
        self._node, self._clock = node, clock
        readings = {**self.trace.boards, **self.trace.hosts}
        self._counters = [
            (cast("EnergyMeter", with_energy(device, clock)), readings[device.info.id])
            for device in (*boards, *hosts)
        ]
        # A call to a management controller takes up to seconds, so it has a thread of its own.
        self._tasks = (
            PeriodicTask(self._read_node, seconds=_READ_SECONDS, clock=clock, name="joulery-node"),
            PeriodicTask(self._read_boards, seconds=_READ_SECONDS, clock=clock, name="joulery"),
        )

    def __enter__(self) -> Self:
        for task in self._tasks:
            task.start()
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._tasks:
            task.stop()

    def _read_node(self) -> None:
        try:
            watts = self._node.read_power()
        except JouleryError:
            return  # the next reading is soon enough
        if math.isfinite(watts):
            self.trace.node.append((self._clock.now(), watts))

    def _read_boards(self) -> None:
        for device, readings in self._counters:
            try:
                reading = device.read_energy()
            except JouleryError:
                continue
            at = reading.refreshed_at_seconds or reading.read_at_seconds
            if not readings or at > readings[-1][0]:
                readings.append((at, reading.joules))


class LimitSteps:
    """Lowers and restores the limits of boards, each in an order of its own.

    The order is random, so that neither slow changes nor other boards look like a board's own
    changes; no board stays at a limit for more than two steps.
    """

    def __init__(self, boards: Sequence[PowerLimit], leases: Sequence[Held]) -> None:
        self._held = leases
        self._low_watts = [board.power_limits().min_watts for board in boards]
        self._random = random.Random(0)  # noqa: S311 - an order, no secret
        self._history: list[tuple[bool, bool]] = [(False, False)] * len(leases)
        self._step = 0

    def advance(self, seconds: float) -> None:
        """Set the limits that are due ``seconds`` after the start."""
        if seconds < self._step * _HOLD_SECONDS:
            return
        self._step += 1
        for at, lease in enumerate(self._held):
            before, now = self._history[at]
            low = (not now) if before == now else self._random.random() < 0.5
            self._history[at] = (now, low)
            if low:
                lease.set(watts=self._low_watts[at])
            else:
                lease.reset()
