"""Simulated boards behind the same protocols as real ones.

Load, limit and clock lock decide a target power by ``joulery.hardware.simulated._physics``; the
power follows it with a first-order lag, and its integral is exact. A reader sees what real boards
show: a counter in whole millijoules that refreshes periodically, a power sensor with noise and,
on demand, faults.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

from joulery.errors import DeviceError, DeviceLostError, MissingRightsError
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    PowerLimitRange,
    Telemetry,
    Throttle,
    check_clock,
    device_text,
)
from joulery.hardware.simulated import _physics as physics

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.hardware._sensors import PowerSensor
    from joulery.hardware.simulated._physics import Board, Steady, Workload

_JOULES_PER_COUNT = 1e-3  # NVML counts millijoules
_AMBIENT_CELSIUS = 30.0  # by hand: a warm server
_RISE_CELSIUS_AT_FULL_POWER = 50.0  # by hand: 80 °C at full power
_UTILISATION_SECONDS = 1 / 6  # shortest sample period that NVML's manual states


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults and their times, in seconds on the board's clock; None for never.

    Attributes:
        reset_at_seconds: The energy counter restarts from zero.
        frozen_seconds: (from, to): counter and power sensor stop refreshing.
        read_error_seconds: (from, to): reading energy, power or telemetry fails.
        lost_at_seconds: Time from which on the board is gone.
        no_permission: Setting limits and clocks is refused.
    """

    reset_at_seconds: float | None = None
    frozen_seconds: tuple[float, float] | None = None
    read_error_seconds: tuple[float, float] | None = None
    lost_at_seconds: float | None = None
    no_permission: bool = False


@dataclass(frozen=True, slots=True)
class Sensor:
    """The board's own measurement; exact unless stated otherwise.

    Attributes:
        stamped: Whether an energy reading has the time of the counter's refresh.
        noise: Relative standard deviation of a power reading.
        window_seconds: Time before a refresh that a power reading averages over; 0 for the power
            at the refresh itself. Below the refresh period the sensor misses the rest.
        lag_seconds: Time constant with which a power reading follows beyond that.
        gain: Watts read per true watt.
        offset_watts: Watts read at zero.
        counts: Whether there is an energy counter.
        counts_looks: Whether that counter adds up what the sensor looks at, instead of all energy.
        expected: Behaviour that a reader may expect of it; None for exact.
    """

    stamped: bool = True
    noise: float = 0.0
    window_seconds: float = 0.0
    lag_seconds: float = 0.0
    gain: float = 1.0
    offset_watts: float = 0.0
    counts: bool = True
    counts_looks: bool = False
    expected: PowerSensor | None = None

    @property
    def is_slow(self) -> bool:
        """Whether it shows anything else than the power at its refresh."""
        return self.window_seconds > 0 or self.lag_seconds > 0


_NO_FAULTS = Faults()
_SENSOR = Sensor()


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Energy and power at one moment; and what holds from there on."""

    at_seconds: float
    joules: float
    watts: float
    target_watts: float = 0.0
    utilisation: float = 0.0


@dataclass(slots=True)
class _Sensed:
    """Values of the sensor at one of its refreshes."""

    tick: int
    watts: float
    joules: float = 0.0


class SimulatedGpu:
    """One simulated board for any thread, with every capability that its sensor leaves it.

    Args:
        board: Constants of its type, from ``joulery.hardware.simulated.catalog.board``.
        clock: Clock of the board; a virtual one replays exactly.
        index: Position among the boards of its node.
        seed: Seed of the phase of the counter's refreshes and of the sensor's noise.
        sensor: Its own measurement.
        faults: Faults and their times.
    """

    capabilities = frozenset(Capability)

    def __init__(
        self,
        board: Board,
        clock: Clock,
        *,
        index: int = 0,
        seed: int = 0,
        sensor: Sensor = _SENSOR,
        faults: Faults = _NO_FAULTS,
    ) -> None:
        self.board = board
        self.clock = clock
        self.sensor = sensor
        self.faults = faults
        self.power_sensor = sensor.expected
        if not sensor.counts:
            self.capabilities = self.capabilities - {Capability.ENERGY}
        self._seed = (seed << 16) ^ index
        self.info = DeviceInfo(
            id=f"simulated:{board.name.lower()}:{index}",
            name=board.name,
            kind=DeviceKind.GPU,
            vendor="simulated",
            index=index,
            max_watts=board.max_limit_watts,
        )
        # Exact up to the counter's refresh.
        self.provenance = Provenance(Origin.SIMULATED, f"{board.name} model: {board.source}", 0.0)
        now = clock.now()
        self._phase_seconds = now - _uniform(self._seed, -1) * board.counter_period_seconds
        self._limit_watts = board.default_limit_watts
        self._locked_hertz: float | None = None
        self._load: Workload | None = None
        self._steady = physics.idle(board)
        # Starts of the intervals of constant target power that the sensor may still refer to.
        self._intervals = [_Drawn(now, 0.0, board.idle_watts, board.idle_watts)]
        self._sensed = _Sensed(self._tick(now), board.idle_watts)
        self._lock = threading.RLock()

    __repr__ = device_text

    def set_load(self, workload: Workload | None) -> None:
        """Run ``workload`` repeatedly from now on; None for idle."""
        with self._lock:
            self._load = workload
            self._retarget()

    def run(self, workload: Workload, steps: int = 1) -> float:
        """Run ``steps`` steps on the board's clock, each under the limit in force as it starts.

        The original load is restored afterwards.

        Returns:
            The seconds that the steps took.
        """
        previous = self._load
        self.set_load(workload)
        started = due = self.clock.now()
        for _ in range(steps):
            due += self.steady().seconds
            # Against the due time rather than step by step, so that a real clock's late
            # wake-ups do not add up.
            self.clock.sleep(max(0.0, due - self.clock.now()))
        self.set_load(previous)
        return self.clock.now() - started

    def steady(self) -> Steady:
        """Steady state of the present load."""
        return self._steady

    def true_joules(self) -> float:
        """Energy since the board was made, exact at this moment; for tests."""
        with self._lock:
            return self._drawn_at(self.clock.now()).joules

    def read_energy(self) -> EnergyReading:
        """Counter value at its last refresh."""
        with self._lock:
            now = self._readable_now()
            state = self._seen(now)
            reset, base = self.faults.reset_at_seconds, 0.0
            if reset is not None and state.at_seconds >= reset:
                base = self._drawn_at(reset).joules
            counts = math.floor((self._counted(state) - base) / _JOULES_PER_COUNT + 1e-6)
            return EnergyReading(
                joules=counts * _JOULES_PER_COUNT,
                read_at_seconds=now,
                refreshed_at_seconds=state.at_seconds if self.sensor.stamped else None,
                watts=self._sensed_watts(state),
            )

    def read_power(self) -> float:
        """Watts at the sensor's last refresh, with its noise."""
        with self._lock:
            return self._sensed_watts(self._seen(self._readable_now()))

    def power_limits(self) -> PowerLimitRange:
        """Range of limits, and the limit in force."""
        self._present_now()
        board = self.board
        return PowerLimitRange(
            board.min_limit_watts,
            board.max_limit_watts,
            board.default_limit_watts,
            self._limit_watts,
        )

    def set_power_limit(self, watts: float) -> None:
        """Set the limit, unless the board has the fault ``no_permission``."""
        self._permitted("power limit")
        self.power_limits().check(watts, self.board.name)
        with self._lock:
            self._limit_watts = float(watts)
            self._retarget()

    def supported_clocks(self) -> tuple[float, ...]:
        """Clocks in hertz that the board accepts, ascending."""
        self._present_now()
        return self.board.clocks()

    def lock_clock(self, hertz: float) -> None:
        """Pin the core clock to the highest supported one at or below ``hertz``."""
        self._permitted("clock")
        check_clock(hertz, self.board.clocks(), self.board.name)
        with self._lock:
            self._locked_hertz = float(hertz)
            self._retarget()

    def unlock_clock(self) -> None:
        """Return the clock to the board's own control."""
        self._permitted("clock")
        with self._lock:
            self._locked_hertz = None
            self._retarget()

    def telemetry(self) -> Telemetry:
        """Utilisation, temperature and clock of the steady state."""
        with self._lock:
            now = self._readable_now()
            rise = self._drawn_at(now).watts / self.board.max_limit_watts
            return Telemetry(
                utilisation=self._utilisation(now),
                temperature_celsius=_AMBIENT_CELSIUS + _RISE_CELSIUS_AT_FULL_POWER * rise,
                clock_hertz=self._steady.clock_hertz,
                throttles=self._throttles(),
            )

    def _throttles(self) -> frozenset[Throttle]:
        """Whether the power limit lowers the clock."""
        highest = self._locked_hertz or self.board.max_clock_hertz
        capped = self._load is not None and self._steady.clock_hertz < highest
        return frozenset([Throttle.POWER_CAP] if capped else [])

    def _utilisation(self, now: float) -> float:
        """Busy fraction of the last sixth of a second, as NVML states it."""
        end, busy = now, 0.0
        for since in reversed(self._intervals):
            start = max(since.at_seconds, now - _UTILISATION_SECONDS)
            busy += since.utilisation * max(0.0, end - start)
            end = min(end, start)
        return busy / _UTILISATION_SECONDS

    def _retarget(self) -> None:
        """Start the next interval of constant target power."""
        now, load = self.clock.now(), self._load
        self._sense(now)
        state = self._drawn_at(now)
        if load is None:
            self._steady, busy = physics.idle(self.board), 0.0
        else:
            states = _states(self.board, load)
            self._steady = physics.settle_in(states, self._limit_watts, self._locked_hertz)
            busy = 1.0 - load.host_seconds / self._steady.seconds
        since = replace(state, target_watts=self._steady.watts, utilisation=busy)
        window = max(_UTILISATION_SECONDS, self.sensor.window_seconds)
        oldest = now - window - self.board.counter_period_seconds
        first = self._position(min([oldest, *self._fault_moments()]))
        self._intervals = [*self._intervals[first:], since]

    def _position(self, seconds: float) -> int:
        """Position of the interval that a moment lies in; the first one for earlier moments."""
        return max(0, bisect_right(self._intervals, seconds, key=attrgetter("at_seconds")) - 1)

    def _drawn_at(self, seconds: float) -> _Drawn:
        """Energy and power at a moment in an interval that is still remembered."""
        since, lag = self._intervals[self._position(seconds)], self.board.power_lag_seconds
        target = since.target_watts
        elapsed = seconds - since.at_seconds
        if lag <= 0 or elapsed < 0:  # before the first moment it was as at that moment
            return _Drawn(seconds, since.joules + target * elapsed, target)
        excess = since.watts - target
        # expm1 keeps a short interval exact where 1 - exp would cancel.
        approach = -math.expm1(-elapsed / lag)
        return _Drawn(
            seconds,
            since.joules + target * elapsed + excess * lag * approach,
            target + excess * (1.0 - approach),
        )

    def _sense(self, now: float) -> _Sensed:
        """Let the sensor refresh up to ``now``."""
        sensed, sensor, period = self._sensed, self.sensor, self.board.counter_period_seconds
        last = self._refresh_before(now)
        if not sensor.is_slow:
            return sensed
        while sensed.tick < last:
            sensed.tick += 1
            at = self._tick_seconds(sensed.tick)
            follows = period / (period + sensor.lag_seconds)  # late by that time on average
            sensed.watts += follows * (self._mean(at, sensor.window_seconds) - sensed.watts)
            looked = self._mean(at, min(period, sensor.window_seconds))
            sensed.joules += period * self._stated(looked, sensed.tick)
        return sensed

    def _mean(self, at: float, seconds: float) -> float:
        """Mean power over the ``seconds`` before ``at``; the power then, of none."""
        if not seconds:
            return self._drawn_at(at).watts
        return (self._drawn_at(at).joules - self._drawn_at(at - seconds).joules) / seconds

    def _stated(self, watts: float, tick: int) -> float:
        """Reading of a sensor that sees ``watts``."""
        sensor = self.sensor
        noise = sensor.noise * _normal(self._seed, tick) if sensor.noise else 0.0
        return max(0.0, sensor.gain * watts * (1.0 + noise) + sensor.offset_watts)

    def _counted(self, state: _Drawn) -> float:
        """Joules that the counter shows for ``seen``."""
        sensor = self.sensor
        if sensor.counts_looks:
            return self._sense(self.clock.now()).joules
        return sensor.gain * max(0.0, state.joules) + sensor.offset_watts * max(
            0.0, state.at_seconds
        )

    def _seen(self, now: float) -> _Drawn:
        """State at the sensor's last refresh."""
        return self._drawn_at(self._tick_seconds(self._refresh_before(now)))

    def _refresh_before(self, now: float) -> int:
        """Number of the sensor's and counter's last refresh."""
        tick = self._tick(now)
        if self.faults.frozen_seconds is not None:
            start, end = self.faults.frozen_seconds
            if start <= self._tick_seconds(tick) < end:
                return self._tick(start)
        return tick

    def _sensed_watts(self, state: _Drawn) -> float:
        tick = self._tick(state.at_seconds + 0.5 * self.board.counter_period_seconds)
        sensed = self._sense(self.clock.now()) if self.sensor.is_slow else state
        return self._stated(sensed.watts, tick)

    def _tick(self, seconds: float) -> int:
        """Number of the last refresh at or before a moment."""
        tick = math.floor((seconds - self._phase_seconds) / self.board.counter_period_seconds)
        # Rounding may yield a refresh that is still slightly in the future.
        return tick if self._tick_seconds(tick) <= seconds else tick - 1

    def _tick_seconds(self, tick: int) -> float:
        return self._phase_seconds + tick * self.board.counter_period_seconds

    def _fault_moments(self) -> list[float]:
        """Moments whose state a fault refers to later."""
        moments = []
        if self.faults.reset_at_seconds is not None:
            moments.append(self.faults.reset_at_seconds)
        if self.faults.frozen_seconds is not None:
            last = self._tick_seconds(self._tick(self.faults.frozen_seconds[0]))
            moments.append(last - self.sensor.window_seconds - self.board.counter_period_seconds)
        return moments

    def _present_now(self) -> float:
        now = self.clock.now()
        lost_at = self.faults.lost_at_seconds
        if lost_at is not None and now >= lost_at:
            raise DeviceLostError(
                f"{self.info.id} fell off the bus", remedy="restart the simulated node"
            )
        return now

    def _readable_now(self) -> float:
        now = self._present_now()
        if self.faults.read_error_seconds is not None:
            start, end = self.faults.read_error_seconds
            if start <= now < end:
                raise DeviceError(f"{self.info.id}: the driver timed out", remedy="try again later")
        return now

    def _permitted(self, knob: str) -> None:
        self._present_now()
        if self.faults.no_permission:
            raise MissingRightsError(
                f"{self.info.id}: no permission to set the {knob}",
                remedy="simulate a board without the no_permission fault",
            )


@lru_cache(maxsize=256)
def _states(board: Board, workload: Workload) -> tuple[Steady, ...]:
    return physics.clock_states(board, workload)


_MASK = (1 << 64) - 1  # 64 bits


def _uniform(seed: int, tick: int) -> float:
    """A number in [0, 1) that depends on seed and tick only (the splitmix64 mixing steps)."""
    word = (seed * 0x9E3779B97F4A7C15 + tick * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((word ^ (word >> 31)) >> 11) / (1 << 53)


def _normal(seed: int, tick: int) -> float:
    """A standard normal number that depends on seed and tick only (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - _uniform(seed, 2 * tick)))
    return radius * math.cos(2.0 * math.pi * _uniform(seed, 2 * tick + 1))
