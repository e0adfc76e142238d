"""Windows on boards with any power sensor of the catalog, or any mixture of their constants.

Simulated boards know their true energy, so each trial tells how far off a window was and whether
its error bar held.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulery.clock import VirtualClock
from joulery.hardware import Sensor, SimulatedGpu, catalog, known_sensors, sensor_of
from joulery.metering import Meter

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.hardware import PowerSensor, Workload
    from joulery.metering import Measurement, Window

BOARDS = ("V100", "A100", "RTX4090", "H100")
COUNTERS = ("exact", "of looks", "none")
_SIGMAS_95 = 1.96
_BURST_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Figure:
    """One statement about a window's energy.

    Attributes:
        error: Deviation from the truth, relative to it.
        bar: One standard error, relative to the truth.
    """

    error: float
    bar: float

    @property
    def held(self) -> bool:
        """Whether the truth lies within the bar of 95 %."""
        return abs(self.error) <= _SIGMAS_95 * self.bar


@dataclass(frozen=True, slots=True)
class Trial:
    """One window.

    Attributes:
        sensor: Sensor of the board.
        counter: Kind of its energy counter: ``exact``, ``of looks`` or ``none``.
        period_seconds: Time between two refreshes.
        load: Kind of load.
        seconds: Length of the window.
        at_once: Figure read as the window closed.
        settled: Figure after settling.
    """

    sensor: Sensor
    counter: str
    period_seconds: float
    load: str
    seconds: float
    at_once: Figure
    settled: Figure

    @property
    def bursts(self) -> bool:
        """Whether the load came in bursts."""
        return self.load.startswith("bursts")

    @property
    def kind(self) -> str:
        """``slow`` for sensors that lag, ``part time`` and ``full time`` for the others."""
        if self.sensor.lag_seconds > 0 or self.sensor.window_seconds > 1.5 * self.period_seconds:
            return "slow"
        return (
            "part time" if self.sensor.window_seconds < 0.9 * self.period_seconds else "full time"
        )


def trial(seed: int, seconds: float, *, mixture: bool = False, calibrated: bool = False) -> Trial:
    """Measure one window on a board, sensor and load that ``seed`` draws.

    Args:
        seed: Seed of everything that is drawn.
        seconds: Length of the window.
        mixture: Whether every constant is drawn from another sensor, none of which the meter is
            told about; else the meter knows the sensor by its name.
        calibrated: Whether gain and offset are known to be 1 and 0.
    """
    chance = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    sensor, period = draw_sensor(chance, mixture=mixture, calibrated=calibrated)
    loads = _BURSTS if chance.random() < _BURST_SHARE else _SMOOTH
    name = chance.choice(sorted(loads))
    bench = Bench(chance, sensor, period)
    window, truth = loads[name](bench, seconds)
    at_once = _figure(window.measurement, truth)
    settled = _figure(window.settle(), truth)
    counter = COUNTERS[2 if not sensor.counts else 1 if sensor.counts_looks else 0]
    return Trial(sensor, counter, period, name, seconds, at_once, settled)


def draw_sensor(chance: random.Random, *, mixture: bool, calibrated: bool) -> tuple[Sensor, float]:
    """A sensor of the catalog or a mixture of several, and its refresh period in seconds."""
    sensors = known_sensors()
    measured = [entry for entry in sensors if entry.gains != (1.0, 1.0)]
    entry = chance.choice(sensors)

    def other() -> PowerSensor:
        return chance.choice(sensors) if mixture else entry

    period, window, lag = other().period_seconds, other().window_seconds, other().lag_seconds
    source = entry if entry in measured and not mixture else chance.choice(measured)
    gain = chance.uniform(*source.gains)
    offset = chance.uniform(*source.offsets_watts)  # of the same board: the two are correlated
    expected = sensor_of("") if mixture else entry
    if calibrated:
        gain, offset = 1.0, 0.0
        expected = replace(expected, gain_error=0.0, offset_error_watts=0.0)
    counter = chance.choice(COUNTERS)
    sensor = Sensor(
        stamped=chance.random() < 0.5,
        noise=chance.choice((0.0, 0.01)),
        window_seconds=window,
        lag_seconds=lag,
        gain=gain,
        offset_watts=offset,
        counts=counter != "none",
        counts_looks=counter == "of looks",
        expected=expected,
    )
    return sensor, period


class Bench:
    """A board with a sensor, under a meter that has run for a while."""

    def __init__(self, chance: random.Random, sensor: Sensor, period_seconds: float) -> None:
        self.chance = chance
        self.clock = VirtualClock()
        name = chance.choice(BOARDS)
        board = replace(catalog.board(name), counter_period_seconds=period_seconds)
        self.gpu = SimulatedGpu(board, self.clock, seed=chance.randrange(2**16), sensor=sensor)
        self.loads = [catalog.workload(load, board) for load in catalog.workload_names()]
        self.meter = Meter([self.gpu], clock=self.clock).start()
        self.clock.sleep(2.0 + chance.random())

    def some_load(self, *, maybe_idle: bool = False) -> Workload | None:
        """Any workload, or none."""
        return self.chance.choice([*self.loads, None] if maybe_idle else self.loads)

    def after(self, load: Workload | None) -> None:
        """Run a load for a while."""
        self.gpu.set_load(load)
        self.clock.sleep(self.chance.uniform(0.5, 1.5))

    def window(self, *stretches: tuple[Workload | None, float]) -> tuple[Window, float]:
        """A window over loads and their seconds, and its true joules."""
        before = self.gpu.true_joules()
        with self.meter.window() as window:
            for load, seconds in stretches:
                self.gpu.set_load(load)
                self.clock.sleep(seconds)
        return window, self.gpu.true_joules() - before

    def bursts(
        self, busy_seconds: float, idle_seconds: float, seconds: float
    ) -> tuple[Window, float]:
        """A window in the middle of bursts of work, or as they begin."""
        load, ended = self.some_load(), False

        def switch(busy: bool) -> None:  # noqa: FBT001 - a state, not an option
            if not ended:
                self.gpu.set_load(load if busy else None)
                due = self.clock.now() + (busy_seconds if busy else idle_seconds)
                self.clock.call_at(due, lambda: switch(not busy))

        switch(True)  # noqa: FBT003
        self.clock.sleep(self.chance.choice((0.0, self.chance.uniform(0.5, 1.5))))
        before = self.gpu.true_joules()
        with self.meter.window() as window:
            self.clock.sleep(seconds)
        truth = self.gpu.true_joules() - before
        ended = True
        self.gpu.set_load(None)
        return window, truth


def _busy_after_idle(bench: Bench, seconds: float) -> tuple[Window, float]:
    result = bench.window((bench.some_load(), seconds))
    bench.gpu.set_load(None)
    return result


def _steady(bench: Bench, seconds: float) -> tuple[Window, float]:
    load = bench.some_load()
    bench.after(load)
    return bench.window((load, seconds))


def _idle_after_busy(bench: Bench, seconds: float) -> tuple[Window, float]:
    bench.after(bench.some_load())
    result = bench.window((None, seconds))
    bench.gpu.set_load(bench.some_load())
    return result


def _changing(bench: Bench, seconds: float) -> tuple[Window, float]:
    bench.after(bench.some_load(maybe_idle=True))
    moment = bench.chance.random() * seconds
    last = bench.some_load(maybe_idle=True)
    return bench.window((bench.some_load(), moment), (last, seconds - moment))


def _back_to_back(bench: Bench, seconds: float) -> tuple[Window, float]:
    bench.after(bench.some_load(maybe_idle=True))
    bench.window((bench.some_load(), seconds))
    result = bench.window((bench.some_load(), seconds))
    bench.gpu.set_load(bench.some_load())
    return result


def _even_bursts(bench: Bench, seconds: float) -> tuple[Window, float]:
    return bench.bursts(0.05, 0.05, seconds)


def _any_bursts(bench: Bench, seconds: float) -> tuple[Window, float]:
    period, share = bench.chance.uniform(0.02, 0.25), bench.chance.uniform(0.3, 0.7)
    return bench.bursts(period * share, period * (1 - share), seconds)


_SMOOTH: dict[str, Callable[[Bench, float], tuple[Window, float]]] = {
    "busy after idle": _busy_after_idle,
    "steady": _steady,
    "idle after busy": _idle_after_busy,
    "changing": _changing,
    "back to back": _back_to_back,
}
_BURSTS: dict[str, Callable[[Bench, float], tuple[Window, float]]] = {
    "bursts of 50 ms every 100 ms": _even_bursts,
    "bursts of any length": _any_bursts,
}


def _figure(measured: Measurement, truth: float) -> Figure:
    sigma = (measured.relative_error or 0.0) * measured.joules
    return Figure((measured.joules - truth) / truth, sigma / truth)
