"""Recordings of real power sensors, replayed: the meter learns what they do, and its bars hold."""

import csv
import gzip
import os
from bisect import bisect_right
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from joulery.clock import VirtualClock
from joulery.frontier import Origin, Provenance
from joulery.hardware import Capability, DeviceInfo, DeviceKind, sensor_of
from joulery.metering import Meter

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("JOULERY_DATA", ROOT.parent / "shared" / "data")) / "sensors"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="no recordings of power sensors: set JOULERY_DATA"
)


def recording(name, column):
    """(seconds since the first row, watts) of a recording."""
    with gzip.open(DATA / f"{name}_gpudata.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    times = [
        datetime.strptime(row["timestamp"], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
        for row in rows
    ]
    watts = [float(row[f"{column} [W]"]) for row in rows]
    return [(time - times[0], value) for time, value in zip(times, watts, strict=True)]


class Replayed:
    """A board without a counter whose sensor shows what was recorded."""

    capabilities = frozenset({Capability.POWER})
    provenance = Provenance(Origin.MEASURED, "recording")

    def __init__(self, clock, rows, sensor):
        self.info = DeviceInfo("replayed:0", sensor.name, DeviceKind.GPU, "replayed", max_watts=450)
        self.power_sensor = sensor
        self._clock = clock
        self._rows = rows

    def read_power(self):
        """Value in the last row so far."""
        later = bisect_right(self._rows, self._clock.now(), key=lambda row: row[0])
        return self._rows[max(0, later - 1)][1]


def replayed(name, column, sensor):
    """Clock, meter and rows of a replay."""
    clock, rows = VirtualClock(), recording(name, column)
    return clock, Meter([Replayed(clock, rows, sensor)], clock=clock).start(), rows


def mean_of(rows, start, end):
    """Time average of a recording between two moments."""
    part = [(at, watts) for at, watts in rows if start <= at <= end]
    pairs = [(early[1], late[0] - early[0]) for early, late in pairwise(part)]
    return sum(watts * length for watts, length in pairs) / sum(length for _, length in pairs)


@pytest.mark.parametrize(
    ("name", "column", "board", "field"),
    [
        ("pwr_update_freq_A100", "power.draw.instant", "NVIDIA A100-PCIE-40GB", "instant"),
        ("pwr_update_freq_V100", "power.draw.instant", "Tesla V100-SXM2-16GB", "instant"),
        ("5050_A100", "power.draw.instant", "NVIDIA A100-PCIE-40GB", "instant"),
        ("5050_3090", "power.draw.instant", "NVIDIA GeForce RTX 3090", "instant"),
        ("5050_3090", "power.draw.average", "NVIDIA GeForce RTX 3090", "plain"),
    ],
)
def test_readings_add_up_to_what_the_sensor_stated(name, column, board, field):
    """Refreshes would be counted twice, or missed."""
    clock, meter, rows = replayed(name, column, sensor_of(board, field=field, driver="535.54"))
    end = min(20.0, rows[-1][0] - 1.0)
    clock.sleep(2.0)
    with meter.window() as window:
        clock.sleep(end - 2.0)
    assert window.mean_watts == pytest.approx(mean_of(rows, 2.0, end), rel=0.02)


@pytest.mark.parametrize(
    ("name", "column", "least", "most"),
    [
        ("Transient_Response_A100_TR", "power.draw", 0.0, 0.06),
        ("Transient_Response_4090_TR", "power.draw", 0.0, 0.06),
        ("5050_3090", "power.draw.average", 0.2, 0.6),
    ],
)
def test_the_delay_of_a_sensor_is_learned(name, column, least, most):
    """A running mean over a second would pass for the power of now, or the other way round."""
    clock, meter, rows = replayed(name, column, sensor_of(""))
    clock.sleep(rows[-1][0])
    (timeline,) = meter._timelines
    assert least <= timeline._power.lag.seconds <= most


@pytest.mark.parametrize(
    ("name", "board"),
    [("5050_A100", "NVIDIA A100-PCIE-40GB"), ("5050_3090", "NVIDIA GeForce RTX 3090")],
)
@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_windows_in_bursts_hold_their_long_run_mean(name, board, seconds):
    """Bursts of 50 ms under sensors that see some of them are stated with confidence.

    They beat with the sensor every 3 s, which takes about as long to notice.
    """
    clock, meter, rows = replayed(name, "power.draw.instant", sensor_of(board))
    mean = mean_of(rows, 3.0, 9.0)
    clock.sleep(5.0)
    held = []
    while clock.now() < 9.0:
        with meter.window() as window:
            clock.sleep(seconds)
        low, high = window.measurement.interval_joules
        held.append(low <= mean * seconds <= high)
    assert fmean(held) >= 0.93


def test_a_wave_adds_up_whichever_field_shows_it():
    """The mean over a second and the instant power of one board would be two energies."""
    found = []
    for column, field in (("power.draw.instant", "instant"), ("power.draw.average", "plain")):
        sensor = sensor_of("NVIDIA GeForce RTX 3090", field=field, driver="535.54.03")
        clock, meter, _ = replayed("5050_3090", column, sensor)
        clock.sleep(3.0)
        with meter.window() as window:
            clock.sleep(6.0)
        found.append(window.mean_watts)
    assert found[0] == pytest.approx(found[1], rel=0.02)
