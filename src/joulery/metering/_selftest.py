"""A check list for one board: whether counters, sensor and knobs behave as the catalog expects.

First contact with a physical board: refresh and duty of counter and sensor by bursts, the counter
against the power that is read, limits and clocks that are set, obeyed and restored, and a short
sweep. Every check states what was expected and what was observed; none of them can fail the rest.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from joulery.clock import REAL_CLOCK
from joulery.errors import DeviceError, DeviceLostError, JouleryError
from joulery.governor import lease, lease_obstacle
from joulery.hardware import Capability, IntegratedPower, catalog, known_sensors, require
from joulery.metering._sensor_fit import (
    SensorFit,
    find_refreshes,
    fit_sensor,
    values_at_refreshes,
)
from joulery.units import HERTZ_PER_MEGAHERTZ, finite, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from joulery.clock import Clock
    from joulery.governor import Held
    from joulery.hardware import (
        ClockLock,
        Device,
        EnergyMeter,
        PowerLimit,
        PowerLimitRange,
        PowerMeter,
        PowerSensor,
        TelemetrySource,
    )

    Floats = NDArray[np.float64]

# Shares of the whole test; limits and the clock share what remains.
_IDLE_SHARE, _STEADY_SHARE, _BURST_SHARE, _RESTORED_SHARE = 0.08, 0.15, 0.35, 0.05
_LEAST_SECONDS = 5.0  # by hand: three refreshes of the slowest counter at each limit
_SETTLE_SHARE = 0.4  # of the time at a limit, after which power counts as settled
_SETTLE_LATEST = (1 + _SETTLE_SHARE) / 2  # after which most of the settled part is not
_READ_SECONDS = 0.002  # by hand: a tenth of the shortest refresh in the catalog
_CALM_READ_SECONDS = 0.02  # by hand: the shortest refresh in the catalog
_LIMITS = 4  # by hand: a curve rather than a line
# Lengths of bursts in periods of the counter: from a part of a window to the longest lag.
_BURSTS = (0.3, 12.0)
_USUAL_PERIOD_SECONDS = 0.1  # of boards without a counter
# What still agrees, by hand: above what readings every 2 ms and fits on simulated boards miss,
# below the distance between sensors of the catalog.
_PERIOD_SLACK, _WINDOW_SLACK, _LAG_SLACK = 0.1, 0.3, 0.4
_WINDOW_SLACK_SECONDS, _LAG_SLACK_SECONDS = 0.008, 0.025
_FULL_DUTY = 0.85
_RESIDUAL_SHARE = 0.15
_COUNTER_SLACK = 0.03
_LIMIT_SLACK, _LIMIT_SLACK_WATTS = 0.03, 1.0
_IDLE_SLACK, _IDLE_SLACK_WATTS = 0.3, 8.0
_CLOCK_SLACK = 0.03
_SETTLED_SECONDS = 1.0  # within which the tuner takes a limit to act
_SETTLED_BAND = 0.1  # of the change of power
_RESTORED = "restored afterwards"
_SPECS = {"lowest": "min", "highest": "max", "default": "default"}


class BurstLoad(Protocol):
    """A load of one board that can be switched."""

    def set_busy(self, busy: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Start or stop to work, at once."""
        ...

    def steps(self) -> float:
        """Steps of work done since the start; 0 where they are not counted."""
        ...


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the check list.

    Attributes:
        name: Property of the board.
        expected: Assumption about it; empty where there is none.
        observed: Observation, or the reason why there is none.
        agrees: Whether they agree; None where it could not be tried or nothing was expected.
    """

    name: str
    expected: str
    observed: str
    agrees: bool | None


@dataclass(frozen=True, slots=True)
class LimitPoint:
    """Behaviour of the load under one limit.

    Attributes:
        limit_watts: Limit that was set.
        watts: Mean power.
        steps_per_second: Rate of the load; 0 where steps are not counted.
    """

    limit_watts: float
    watts: float
    steps_per_second: float


@dataclass(slots=True)
class SelfTest:
    """Result of a check list.

    Attributes:
        board: Name of the board.
        checks: Its lines.
        counter: Behaviour of the energy counter, where it could be found.
        sensor: Behaviour of the power sensor, where it could be found.
        specs: Observed watts by their names in the specification of a board (``catalog.Specs``).
        nearest: Sensor of the catalog that is most like it.
        points: The short sweep.
        restored: Whether limit and clock are as before; None where none was changed.
        failures: Reasons why the board was lost, or does not do what its driver accepted.
        is_lost: Whether the board was lost.
    """

    board: str
    checks: list[Check] = field(default_factory=list)
    counter: SensorFit | None = None
    sensor: SensorFit | None = None
    specs: dict[str, float] = field(default_factory=dict)
    nearest: str | None = None
    points: list[LimitPoint] = field(default_factory=list)
    restored: bool | None = None
    failures: list[str] = field(default_factory=list)
    is_lost: bool = False

    def add(self, name: str, expected: str, observed: str, *, agrees: bool | None = None) -> None:
        """Add a line."""
        self.checks.append(Check(name, expected, observed, agrees))

    def fail(self, name: str, expected: str, error: JouleryError) -> None:
        """Add a line of a board that failed."""
        self.add(name, expected, f"{error.message} ({error.remedy})", agrees=False)
        if not isinstance(error, DeviceLostError):
            self.failures.append(f"{name}: {error.message}")
        elif not self.is_lost:  # which each of its later answers says once more
            self.is_lost = True
            self.failures.append(f"{name}: the board is lost")


def selftest(
    device: Device,
    load: BurstLoad | None,
    *,
    seconds: float = 600.0,
    clock: Clock = REAL_CLOCK,
    on_phase: Callable[[str], None] | None = None,
) -> SelfTest:
    """Compare a board with what the catalog and the meter assume about it.

    Limit and clock are changed through leases only, so they are restored however it ends.

    Args:
        device: The board.
        load: Load to switch; None where some other program keeps the board busy, which leaves out
            the checks that need bursts.
        seconds: Time for all of it.
        clock: Real or virtual clock.
        on_phase: Function that is told what is done next.

    Raises:
        UnsupportedError: The board has no power sensor.
        InvalidValueError: There is too little time.
    """
    require(device, Capability.POWER)
    finite(seconds, "time of a self-test in seconds", minimum=_LEAST_SECONDS)
    tester = _Tester(device, load, seconds, clock)
    phases = {
        "idle power": tester.check_idle,
        "counter against power": tester.check_steady,
        "bursts": tester.check_bursts,
        "limits and clock": tester.check_knobs,
    }
    if load is not None:
        load.set_busy(False)
    try:
        for name, check in phases.items():
            if on_phase is not None:
                on_phase(name)
            try:
                check()
            except DeviceError as error:
                tester.result.fail(name, "", error)
            except JouleryError as error:
                tester.result.add(name, "", f"{error.message} ({error.remedy})")
    finally:
        tester.switch(busy=False)
    if tester.result.restored is None:
        tester.result.add(_RESTORED, "", "no limit and no clock was changed")
    return tester.result


@dataclass(frozen=True, slots=True)
class _Readings:
    """Readings of a board over some time; joules are NaN without a counter."""

    times: Floats
    joules: Floats
    watts: Floats
    steps: float

    @property
    def seconds(self) -> float:
        """Time from the first reading to the last."""
        return float(self.times[-1] - self.times[0])

    @property
    def mean_watts(self) -> float:
        """Mean of the power readings."""
        return float(self.watts.mean())

    def settled(self) -> _Readings:
        """The later part, in which power has settled."""
        first = int(np.searchsorted(self.times, self.times[0] + _SETTLE_SHARE * self.seconds))
        return _Readings(self.times[first:], self.joules[first:], self.watts[first:], self.steps)


class _Tester:
    """The phases of a self-test, which share a board, its load and the result."""

    def __init__(
        self, device: Device, load: BurstLoad | None, seconds: float, clock: Clock
    ) -> None:
        self.result = SelfTest(device.info.name)
        self._device, self._load, self._seconds, self._clock = device, load, seconds, clock
        counts = Capability.ENERGY in device.capabilities
        self._counts = counts and not isinstance(device, IntegratedPower)
        self._period_seconds = _USUAL_PERIOD_SECONDS
        self._edges: list[float] = []  # times at which the load was switched, on first
        self._expected: PowerSensor | None = getattr(device, "power_sensor", None)

    def switch(self, *, busy: bool) -> None:
        """Switch the load, where there is one, and note when."""
        if self._load is not None and busy != bool(len(self._edges) % 2):
            before = self._clock.now()
            self._load.set_busy(busy)
            self._edges.append((before + self._clock.now()) / 2)

    def check_idle(self) -> None:
        """Power at rest against the catalog."""
        if self._load is None:
            self.result.add("idle power", "", "not tried: needs a load that can be switched")
            return
        readings = self._read(_IDLE_SHARE * self._seconds).settled()
        observed = readings.mean_watts
        self.result.specs["idle_watts"] = observed
        specs = _specs(self._device)
        idle = specs.idle_watts if specs else None
        if idle is None:
            self.result.add("idle power", "", f"{observed:.1f} W")
            return
        agrees = abs(observed - idle) <= _IDLE_SLACK * idle + _IDLE_SLACK_WATTS
        self.result.add("idle power", f"{idle:.1f} W", f"{observed:.1f} W", agrees=agrees)

    def check_steady(self) -> None:
        """The counter's refresh, and its joules against the power readings."""
        self.switch(busy=True)
        self._clock.sleep(_STEADY_SHARE * self._seconds / 4)
        readings = self._read(_STEADY_SHARE * self._seconds * 3 / 4, _READ_SECONDS)
        if not self._counts:
            self.result.add("counter", "an energy counter", "none: power readings are added up")
            return
        refreshes = find_refreshes(readings.times, readings.joules)
        if refreshes is None:
            self.result.add("counter refresh", "", "too few refreshes: give it more time")
            return
        self._period_seconds = refreshes.period_seconds
        period = self._expected.period_seconds if self._expected else None
        self._add_time("counter refresh", refreshes.period_seconds, period, _PERIOD_SLACK)
        moments, joules = values_at_refreshes(readings.times, readings.joules, refreshes)
        positions = np.flatnonzero(np.isfinite(joules))
        if len(positions) < 2:  # a busy machine that reads too rarely
            self.result.add("counter against power", "", "too few readings: give it more time")
            return
        first, last = positions[0], positions[-1]
        watts = float((joules[last] - joules[first]) / (moments[last] - moments[first]))
        ratio = watts / readings.mean_watts
        text = f"{watts:.1f} W by the counter, {readings.mean_watts:.1f} W read"
        agrees = abs(ratio - 1.0) <= _COUNTER_SLACK
        self.result.add(
            "counter against power", f"equal within {_COUNTER_SLACK:.0%}", text, agrees=agrees
        )

    def check_bursts(self) -> None:
        """Duty of the counter, and refresh, window and lag of the sensor."""
        if self._load is None:
            self.result.add("bursts", "", "not tried: needs a load that can be switched")
            return
        readings = self._read(_BURST_SHARE * self._seconds, _READ_SECONDS, bursts=True)
        self.switch(busy=False)
        if self._counts:
            self._check_counter(readings)
        refreshes = find_refreshes(readings.times, readings.watts)
        if refreshes is None:
            self.result.add("power refresh", "", "too few refreshes: give it more time")
            return
        moments, watts = values_at_refreshes(readings.times, readings.watts, refreshes)
        fit = fit_sensor(moments, watts, self._edges, refreshes.period_seconds)
        self.result.sensor = fit
        if fit is not None:
            self._check_sensor(fit)

    def _check_counter(self, readings: _Readings) -> None:
        refreshes = find_refreshes(readings.times, readings.joules)
        if refreshes is None:
            return
        moments, joules = values_at_refreshes(readings.times, readings.joules, refreshes)
        watts = np.diff(joules) / refreshes.period_seconds
        fit = fit_sensor(moments[1:], watts, self._edges, refreshes.period_seconds)
        self.result.counter = fit
        if fit is None or fit.residual_share > _RESIDUAL_SHARE:
            self.result.add(
                "counter in bursts", "all energy", "follows no pattern we know", agrees=False
            )
            return
        text = "all energy" if fit.duty >= _FULL_DUTY else f"{per_cent(fit.duty)} of the time"
        self.result.add("counter in bursts", "all energy", text, agrees=fit.duty >= _FULL_DUTY)

    def _check_sensor(self, fit: SensorFit) -> None:
        expected, add = self._expected, self._add_time
        if fit.residual_share > _RESIDUAL_SHARE:
            text = f"no window and lag explain it (residual {per_cent(fit.residual_share)})"
            self.result.add("power sensor", expected.name if expected else "", text, agrees=False)
            return
        self.result.nearest = _nearest(fit)
        window = expected.window_seconds if expected else None
        lag = expected.lag_seconds if expected else None
        period = expected.period_seconds if expected else None
        add("power refresh", fit.period_seconds, period, _PERIOD_SLACK)
        add("power averages over", fit.window_seconds, window, _WINDOW_SLACK, _WINDOW_SLACK_SECONDS)
        add("power lag", fit.lag_seconds, lag, _LAG_SLACK, _LAG_SLACK_SECONDS)
        name = expected.name if expected else ""
        self.result.add("nearest sensor of the catalog", name, self.result.nearest)

    def _add_time(
        self,
        name: str,
        observed: float,
        expected: float | None,
        slack: float,
        slack_seconds: float = 0.0,
    ) -> None:
        text = f"{1e3 * observed:.0f} ms"
        if expected is None:
            self.result.add(name, "", text)
            return
        agrees = abs(observed - expected) <= slack * expected + slack_seconds
        self.result.add(name, f"{1e3 * expected:.0f} ms", text, agrees=agrees)

    def check_knobs(self) -> None:
        """Limits and clock: set, obeyed, and restored when the lease ends."""
        device, result = self._device, self.result
        if Capability.POWER_LIMIT not in device.capabilities:
            result.add("power limits", "", "the board has none")
            return
        board = cast("PowerLimit", device)
        limits = board.power_limits()
        self._check_range(limits)
        obstacle = lease_obstacle(device)
        if obstacle is not None:
            result.add("set limits", "", f"not tried: {obstacle.reason} → {obstacle.remedy}")
            return
        self.switch(busy=True)
        phases = _IDLE_SHARE + _STEADY_SHARE + _BURST_SHARE + _RESTORED_SHARE
        seconds = (1.0 - phases) * self._seconds / (_LIMITS + 1)
        clock_hertz = self._clock_hertz()
        try:
            with lease(device) as knobs:
                self._try_knobs(knobs, limits, seconds)
        except DeviceError as error:
            result.fail("lease", "given back", error)
        self._clock.sleep(_RESTORED_SHARE * self._seconds)
        try:
            self._check_restored(limits.current_watts, clock_hertz)
        except JouleryError as error:
            result.restored = False
            result.fail(_RESTORED, f"{limits.current_watts:g} W", error)

    def _try_knobs(self, knobs: Held, limits: PowerLimitRange, seconds: float) -> None:
        """Several limits and a clock; what the board does not obey is a failure of it."""
        try:
            self._sweep(knobs, limits.min_watts, limits.current_watts, seconds)
            knobs.reset()
            self._check_clock(knobs, seconds)
        except JouleryError as error:
            self.result.fail("set limits", "read back as set", error)

    def _check_restored(self, before_watts: float, clock_hertz: float | None) -> None:
        """Limit and clock after the lease, against those before it."""
        result, board = self.result, cast("PowerLimit", self._device)
        after, clock_after = board.power_limits().current_watts, self._clock_hertz()
        same_limit = abs(after - before_watts) <= _LIMIT_SLACK_WATTS
        same_clock = (
            clock_hertz is None
            or clock_after is None
            or self._load is None
            or abs(clock_after / clock_hertz - 1.0) <= _CLOCK_SLACK
        )
        result.restored = same_limit and same_clock
        text = f"{after:g} W" + ("" if same_clock else ", but another clock")
        result.add(_RESTORED, f"{before_watts:g} W", text, agrees=result.restored)

    def _check_range(self, limits: PowerLimitRange) -> None:
        specs = _specs(self._device)
        pairs = {
            "lowest": (specs.min_limit_watts if specs else None, limits.min_watts),
            "highest": (specs.max_limit_watts if specs else None, limits.max_watts),
            "default": (specs.default_limit_watts if specs else None, limits.default_watts),
        }
        for name, (expected, observed) in pairs.items():
            agrees = None if expected is None else abs(expected - observed) <= _LIMIT_SLACK_WATTS
            text = "" if expected is None else f"{expected:g} W"
            self.result.add(f"{name} limit", text, f"{observed:g} W", agrees=agrees)
            self.result.specs[f"{_SPECS[name]}_limit_watts"] = observed

    def _sweep(self, knobs: Held, low: float, high: float, seconds: float) -> None:
        """The load under several limits, the lowest right after the highest."""
        board, points = cast("PowerLimit", self._device), self.result.points
        limits = np.linspace(high, low, _LIMITS)
        for watts in (limits[0], limits[-1], *limits[1:-1]):
            knobs.set(watts=float(watts))
            limit_watts = board.power_limits().current_watts
            if abs(limit_watts - watts) > _LIMIT_SLACK_WATTS:
                text = f"reads back {limit_watts:g} W"
                self.result.add("set limits", f"{watts:g} W", text, agrees=False)
                self.result.failures.append(f"set limits: {watts:g} W {text}")
                return
            readings = self._read(seconds)
            if len(points) == 1:
                self._check_step(readings, points[0].watts, limit_watts)
            rate = readings.steps / (readings.seconds or math.inf)
            points.append(LimitPoint(float(watts), readings.settled().mean_watts, rate))
        points.sort(key=lambda point: point.limit_watts)
        self.result.add("set limits", "read back as set", f"{_LIMITS} of {_LIMITS}", agrees=True)
        # Below the power of the lowest clock no board can follow, so the lowest limit is left out.
        excess = max(point.watts / point.limit_watts for point in points[1:])
        expected = f"at most {1 + _LIMIT_SLACK:.0%} of the limit"
        agrees = excess <= 1.0 + _LIMIT_SLACK
        self.result.add("power under limits", expected, f"{excess:.0%}", agrees=agrees)

    def _check_step(self, readings: _Readings, before_watts: float, limit_watts: float) -> None:
        """Time until power follows a lower limit."""
        # A limit that acts late leaves some of the power before it in the settled part.
        final = float(np.median(readings.settled().watts))
        change = before_watts - final
        if change <= _LIMIT_SLACK * before_watts:
            late = final > (1 + _LIMIT_SLACK) * limit_watts
            text = (
                f"not within {_SETTLE_LATEST * readings.seconds:.1f} s"
                if late
                else "the load draws no more than the lowest limit"
            )
            expected = f"{_SETTLED_SECONDS:g} s" if late else ""
            self.result.add("limit acts within", expected, text, agrees=False if late else None)
            return
        outside = np.flatnonzero(np.abs(readings.watts - final) > _SETTLED_BAND * change)
        last = outside[-1] if len(outside) else 0
        passed = float(readings.times[last] - readings.times[0])
        fit = self.result.sensor
        delay = fit.period_seconds + fit.window_seconds + 3 * fit.lag_seconds if fit else 0.0
        passed = max(0.0, passed - delay)  # the sensor's own
        text, agrees = f"{passed:.2f} s", passed <= _SETTLED_SECONDS
        self.result.add("limit acts within", f"{_SETTLED_SECONDS:g} s", text, agrees=agrees)

    def _check_clock(self, knobs: Held, seconds: float) -> None:
        if Capability.CLOCK_LOCK not in self._device.capabilities:
            self.result.add("lock a clock", "", "the board has no lockable clock")
            return
        clocks = cast("ClockLock", self._device).supported_clocks()
        hertz = clocks[len(clocks) // 2]
        knobs.set(clock_hertz=hertz)
        self._clock.sleep(seconds)
        observed = self._clock_hertz()
        if observed is None or self._load is None:
            self.result.add("lock a clock", "", "the board does not state its clock under load")
            return
        agrees = abs(observed / hertz - 1.0) <= _CLOCK_SLACK
        self.result.add("lock a clock", _megahertz(hertz), _megahertz(observed), agrees=agrees)

    def _clock_hertz(self) -> float | None:
        if Capability.TELEMETRY not in self._device.capabilities:
            return None
        return cast("TelemetrySource", self._device).telemetry().clock_hertz

    def _read(
        self, seconds: float, every_seconds: float = _CALM_READ_SECONDS, *, bursts: bool = False
    ) -> _Readings:
        """Read the board for some time, and switch the load at random meanwhile."""
        clock, rows = self._clock, []
        draw = random.Random(0)  # noqa: S311 - a pattern, no secret
        shortest, longest = (math.log(factor * self._period_seconds) for factor in _BURSTS)
        busy, steps, began = False, self._steps(), clock.now()
        due = began if bursts else math.inf
        while (now := clock.now()) < began + seconds:
            if now >= due:
                self.switch(busy=busy)
                busy, due = not busy, now + math.exp(draw.uniform(shortest, longest))
            before = clock.now()
            joules, watts = self._reading()
            rows.append(((before + clock.now()) / 2, joules, watts))
            clock.sleep(max(0.0, min(every_seconds, due - clock.now())))
        columns = np.array(rows).T
        return _Readings(columns[0], columns[1], columns[2], self._steps() - steps)

    def _reading(self) -> tuple[float, float]:
        """Joules, NaN without a counter, and watts."""
        if not self._counts:
            return math.nan, cast("PowerMeter", self._device).read_power()
        reading = cast("EnergyMeter", self._device).read_energy()
        watts = reading.watts
        return reading.joules, cast(
            "PowerMeter", self._device
        ).read_power() if watts is None else watts

    def _steps(self) -> float:
        return self._load.steps() if self._load is not None else 0.0


def _specs(device: Device) -> catalog.Specs | None:
    """Specification of a board; None where it is not in the catalog."""
    try:
        return catalog.specs(device.info.name)
    except JouleryError:
        return None


def _megahertz(hertz: float) -> str:
    return f"{hertz / HERTZ_PER_MEGAHERTZ:.0f} MHz"


def _nearest(fit: SensorFit) -> str:
    """Sensor of the catalog with the most similar period, window and lag."""

    def distance(sensor: PowerSensor) -> float:
        return (
            abs(math.log(sensor.period_seconds / fit.period_seconds))
            + abs(math.log(sensor.window_seconds / fit.window_seconds))
            + abs(sensor.lag_seconds - fit.lag_seconds) / fit.period_seconds
        )

    return min(known_sensors(), key=distance).name
