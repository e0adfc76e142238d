"""A second emulator of power sensors, apart from the product's simulated boards.

Power is an array in steps of half a millisecond. Sensor and counter refresh at moments of their
own, with jitter; a reading is a mean over some time before. Loads include bursts of any period and
duty, in step with the sensor or not, and the steps of a training. Gains and offsets are those of
the boards that were put behind a hardware meter. Some boards report their utilisation.
"""

import csv
import os
import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from joulery.clock import VirtualClock
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Telemetry,
    known_sensors,
    sensor_of,
)
from joulery.metering import Meter

STEP = 0.0005
SMOOTH = ("busy", "steady", "idle", "changing", "training")
BURSTS = ("in step", "any bursts", "fast bursts")
# Time over which a driver averages utilisation: NVML's manual says 1/6 s to 1 s.
_UTILISATION_SECONDS = 1 / 6


@cache
def published_spread():
    """Gain and offset of each board behind a meter, by type; of the catalog without the data."""
    folder = Path(os.environ.get("JOULERY_DATA", "../shared/data"))
    try:
        with (folder / "sensors" / "behaviour.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["gain"]]
    except OSError:
        sensors = [entry for entry in known_sensors() if entry.gains != (1.0, 1.0)]
        return [[(g, o) for g in entry.gains for o in entry.offsets_watts] for entry in sensors]
    types = {}
    for row in rows:
        types.setdefault(row["gpu"], []).append((float(row["gain"]), float(row["offset_watts"])))
    return list(types.values())


@dataclass(frozen=True)
class Drawn:
    """One window: its kind, and joules with their standard error, relative to the truth."""

    sensor: str
    counter: str
    load: str
    bursts: bool
    seconds: float
    most: float
    at_once: tuple[float, float]
    settled: tuple[float, float]


class Board:
    """A board whose power is known as an array."""

    provenance = Provenance(Origin.MEASURED, "array", 0.0)

    def __init__(self, clock, chance, watts, busy, most_watts, *, mixture, calibrated, name=None):
        sensors = known_sensors()
        entry = chance.choice(sensors) if name is None else sensor_of(name)
        self.sensor_name = entry.name

        def other():
            return chance.choice(sensors) if mixture else entry

        period, window, lag = (
            other().period_seconds * chance.choice((1.0, chance.uniform(0.99, 1.01))),
            other().window_seconds,
            other().lag_seconds,
        )
        self.power_sensor = sensor_of("") if mixture else entry
        gain, offset = chance.choice(chance.choice(published_spread()))
        if calibrated:
            gain, offset = 1.0, 0.0
            self.power_sensor = replace(self.power_sensor, gain_error=0.0, offset_error_watts=0.0)
        self.counter = chance.choice(("exact", "exact", "of looks", "none"))
        self.capabilities = frozenset(
            {
                Capability.POWER,
                *([] if self.counter == "none" else [Capability.ENERGY]),
                *([Capability.TELEMETRY] if chance.random() < 0.75 else []),
            }
        )
        self._busy = np.concatenate([[0.0], np.cumsum(busy) * STEP])
        self.info = DeviceInfo("array:0", "array", DeviceKind.GPU, "array", max_watts=most_watts)
        self.clock = clock
        self._stamped = chance.random() < 0.5
        self._times = STEP * np.arange(len(watts) + 1)
        self._joules = np.concatenate([[0.0], np.cumsum(watts) * STEP])
        jitter = chance.choice((0.0, 0.0, 0.0003, 0.002))
        self._refreshes = self._ticks(chance, period, jitter)
        means = self._mean(self._refreshes, window)
        follows = period / (period + lag)
        late = list(accumulate(means, lambda shown, mean: shown + follows * (mean - shown)))
        self._watts = np.maximum(0.0, gain * np.array(late) + offset)
        if self.counter == "exact":
            quick = chance.choice((period, 0.02, 0.1))
            self._counts = self._ticks(chance, quick, jitter)
            stated = np.maximum(0.0, gain * watts + offset)
            total = np.concatenate([[0.0], np.cumsum(stated) * STEP])
            self._counted = np.interp(self._counts, self._times, total)
        else:
            self._counts = self._refreshes
            looks = self._mean(self._refreshes, min(period, window))
            self._counted = np.cumsum(period * np.maximum(0.0, gain * looks + offset))

    def _ticks(self, chance, period, jitter):
        count = int(self._times[-1] / period) + 1
        moments = period * (chance.random() + np.arange(-1, count))
        return np.sort(moments + [chance.gauss(0.0, jitter) for _ in moments])

    def _mean(self, ends, seconds):
        starts = np.maximum(0.0, ends - seconds)
        spent = self.joules_at(np.maximum(ends, STEP)) - self.joules_at(starts)
        return spent / np.maximum(np.maximum(ends, STEP) - starts, STEP)

    def joules_at(self, moment):
        """True energy up to a moment."""
        return np.interp(moment, self._times, self._joules)

    def telemetry(self):
        """Share of the time before now in which work ran."""
        now = self.clock.now()
        busy = np.interp([now - _UTILISATION_SECONDS, now], self._times, self._busy)
        return Telemetry(utilisation=round(float(busy[1] - busy[0]) / _UTILISATION_SECONDS, 2))

    def read_power(self):
        """Value at the sensor's last refresh."""
        return float(self._watts[max(0, bisect_right(self._refreshes, self.clock.now()) - 1)])

    def read_energy(self):
        """Value at the counter's last refresh."""
        now = self.clock.now()
        last = max(0, bisect_right(self._counts, now) - 1)
        counted = np.floor(self._counted[last] * 1000.0) / 1000.0
        stamp = float(self._counts[last]) if self._stamped else None
        return EnergyReading(float(counted), now, stamp, self.read_power())


def power_of(load, chance, count, began, ended, most):
    """Watts in steps of time under a load around a window."""
    times = STEP * np.arange(count)
    idle = most * chance.uniform(0.05, 0.17)
    first, second = (most * chance.uniform(0.4, 1.0) for _ in range(2))
    watts, busy = np.full(count, idle), None
    if load == "busy":
        watts[(times >= began) & (times < ended)] = first
    elif load == "steady":
        watts[times >= began - chance.uniform(0.5, 3.0)] = first
    elif load == "idle":
        watts[(times >= began - chance.uniform(0.5, 3.0)) & (times < began)] = first
    elif load == "changing":
        watts[times >= began - 1.0] = chance.choice((idle, second))
        watts[times >= began] = first
        watts[times >= chance.uniform(began, ended)] = chance.choice((idle, second))
    elif load == "training":
        phase = (times - began) / chance.uniform(0.05, 0.5) % 1.0
        shape = np.select([phase < 0.3, phase < 0.85, phase < 0.95], [0.93, 1.0, 0.88], 0.6)
        watts = np.where(times >= began - chance.choice((0.0, 2.0)), first * shape, watts)
    else:
        period, share = {
            "in step": (0.1, 0.5),
            "any bursts": (chance.uniform(0.02, 0.5), chance.uniform(0.2, 0.8)),
            "fast bursts": (chance.uniform(0.005, 0.05), chance.uniform(0.3, 0.7)),
        }[load]
        since = began - chance.choice((0.0, chance.uniform(0.5, 2.5)))
        busy = (times >= since) & ((times - since) % period < share * period)
        watts = np.where(busy, first, idle)
    busy = watts > idle if busy is None else busy
    follows = -np.expm1(-STEP / chance.choice((1e-6, 0.003, 0.01, 0.02)))
    power = accumulate(watts, lambda now, target: now + follows * (target - now))
    return np.array(list(power)), busy


def draw(seed, seconds, *, bursts, mixture, calibrated, load=None, board_name=None):
    """Measure one window of which ``seed`` draws everything else."""
    chance = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    began = 2.5 + chance.random()
    most = chance.choice((150.0, 300.0, 400.0, 700.0))
    load = load or chance.choice(BURSTS if bursts else SMOOTH)
    count = int((began + seconds + 2.0) / STEP)
    watts, busy = power_of(load, chance, count, began, began + seconds, most)
    clock = VirtualClock()
    options = {"mixture": mixture, "calibrated": calibrated, "name": board_name}
    board = Board(clock, chance, watts, busy, most, **options)
    with Meter([board], clock=clock) as meter:
        clock.sleep(began)
        with meter.window() as window:
            clock.sleep(seconds)
        truth = float(board.joules_at(began + seconds) - board.joules_at(began))
        figures = []
        for measured in (window.measurement, window.settle()):
            error = measured.devices[0].standard_error_joules
            figures.append((measured.joules / truth, error / truth))
    kind = (board.sensor_name, board.counter, load, bursts, seconds)
    return Drawn(*kind, most * seconds / truth, *figures)
