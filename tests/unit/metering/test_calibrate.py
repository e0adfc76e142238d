"""Calibration against a node meter: gains of simulated boards whose sensors are known to be off."""

from __future__ import annotations

import math
import random

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, InfeasibleError
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Faults,
    SimulatedGpu,
    catalog,
)
from joulery.metering import NodePower, calibrate

REST_WATTS = 410.0


class OffBoard(SimulatedGpu):
    """A board whose sensor reads ``gain`` times the truth plus an offset."""

    def __init__(self, clock, index, gain, offset_watts, faults=None):
        super().__init__(
            catalog.board("A100"), clock, index=index, faults=faults or Faults(no_permission=False)
        )
        self.gain, self.offset_watts = gain, offset_watts

    def read_energy(self):
        """Reading of the sensor that is off."""
        reading = super().read_energy()
        at = reading.refreshed_at_seconds
        joules = self.gain * reading.joules + self.offset_watts * at
        return EnergyReading(joules, reading.read_at_seconds, at)


class NodeMeter:
    """A management controller: late, averaged over its period, in steps of watts."""

    info = DeviceInfo("ipmi:test", "BMC", DeviceKind.NODE, "ipmi")
    provenance = Provenance(Origin.MEASURED, "test")
    capabilities = frozenset({Capability.POWER})

    def __init__(
        self, clock, boards, *, efficiency, period=1.0, step_watts=3.0, noise_watts=2.0, fans=0.0
    ):
        self._fans, self._fan_watts = fans, 0.0
        self._clock, self._boards = clock, boards
        self._efficiency, self._period, self._step = efficiency, period, step_watts
        self._noise = noise_watts
        self._random = random.Random(1)  # noqa: S311 - noise
        self._before = (clock.now(), 0.0)
        self._shown, self._next = REST_WATTS, REST_WATTS
        clock.call_at(clock.now() + period, self._refresh)

    def _refresh(self):
        now, joules = self._clock.now(), sum(board.true_joules() for board in self._boards)
        boards = (joules - self._before[1]) / (now - self._before[0])
        self._before = now, joules
        drift = 8.0 * math.sin(now / 40.0)  # fans
        self._fan_watts += (self._fans * boards - self._fan_watts) * self._period / 10.0
        watts = REST_WATTS + drift + self._fan_watts + boards / self._efficiency
        watts += self._random.gauss(0.0, self._noise)
        # Shown one period late.
        self._shown, self._next = self._next, self._step * round(watts / self._step)
        self._clock.call_at(now + self._period, self._refresh)

    def read_power(self):
        """Watts as shown."""
        if self._random.random() < 0.02:
            raise DeviceError("busy", remedy="again")
        return self._shown


class Processor:
    """A processor whose energy can be read and does not change."""

    info = DeviceInfo("cpu:test", "CPU", DeviceKind.CPU, "test")
    provenance = Provenance(Origin.MEASURED, "test")
    capabilities = frozenset({Capability.ENERGY})

    def __init__(self, clock):
        self._clock = clock

    def read_energy(self):
        """Nothing that was used."""
        return EnergyReading(0.0, self._clock.now())


def busy(clock, boards, seconds):
    """A load that keeps all boards busy."""

    def load(on_wait):
        for board in boards:
            board.set_load(catalog.workload("resnet50", board.board))
        end = clock.now() + seconds
        while clock.now() < end:
            clock.sleep(0.5)
            on_wait()

    return load


def learned(sensors, known, seconds=240.0, faults=None, *, reads_hosts=True, **meter):
    """What a calibration of boards with these (gain, offset) finds."""
    clock = VirtualClock()
    boards = [OffBoard(clock, at, *sensor, faults) for at, sensor in enumerate(sensors)]
    node = NodeMeter(clock, boards, efficiency=0.94, **meter)
    hosts = [Processor(clock)] if reads_hosts else []
    load = busy(clock, boards, seconds)
    return calibrate(node, boards, load, hosts=hosts, supply=known, clock=clock)


def test_a_processor_that_nobody_reads_may_follow_the_boards():
    """Its watts pass for the boards', and the gain is stated as if it were known."""
    found = learned([(0.945, -1.2)], NodePower(0.94, 0.005), reads_hosts=False)
    assert found.calibrations[0].gain_error >= 0.045
    assert any("no processor" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "sensors",
    [[(0.945, -1.2)], [(1.045, -22.6), (0.873, 15.7)]],
    ids=["a100", "4090 and a5000"],
)
def test_gains_are_found_through_a_slow_coarse_meter(sensors):
    """If this fails, calibrated boards are as wrong as before, or wronger."""
    found = learned(sensors, NodePower(0.94, 0.005))
    for calibration, (gain, _) in zip(found.calibrations, sensors, strict=True):
        assert calibration.gain == pytest.approx(gain, rel=0.012)
        assert abs(calibration.gain - gain) < 3 * calibration.gain_error
        assert calibration.gain_error < 0.015
    assert found.calibrations[0].meter == "BMC"
    assert found.calibrations[0].learned_at.endswith("+00:00")
    assert found.delay_seconds <= 2.0


def test_offsets_are_learned_only_where_the_rest_of_the_node_is_known():
    """If this fails, an offset is made up, or stays unknown although it could be known."""
    sensor = (0.95, 12.0)
    (unknown,) = learned([sensor], NodePower(0.94, 0.005)).calibrations
    assert unknown.offset_watts == 0.0
    assert unknown.offset_error_watts == pytest.approx(10.0, rel=0.1)
    (known,) = learned([sensor], NodePower(0.94, 0.005, REST_WATTS)).calibrations
    assert abs(known.offset_watts - 12.0) < 3 * known.offset_error_watts
    assert known.offset_error_watts < 5.0


def test_doubt_about_the_power_supplies_stays_in_the_error():
    """If this fails, an assumed efficiency passes for a measured gain."""
    (found,) = learned([(0.945, 0.0)], None).calibrations
    assert found.gain_error > 0.02
    assert abs(found.gain - 0.945) < 2 * found.gain_error


def test_boards_whose_limits_cannot_be_set_share_what_the_load_shows():
    """If this fails, boards that rise together get wild gains of their own."""
    found = learned(
        [(0.95, 0.0), (0.95, 0.0)], NodePower(0.94, 0.005), faults=Faults(no_permission=True)
    )
    assert {one.device_id for one in found.calibrations} | set(found.unchanged) == {
        "simulated:a100:0",
        "simulated:a100:1",
    }
    for one in found.calibrations:
        assert abs(one.gain - 0.95) < 3 * one.gain_error


def test_an_idle_node_teaches_nothing():
    """If this fails, noise passes for a calibration."""
    clock = VirtualClock()
    boards = [OffBoard(clock, 0, 1.0, 0.0)]
    node = NodeMeter(clock, boards, efficiency=0.94)
    with pytest.raises(InfeasibleError, match="no board's power changed"):
        calibrate(node, boards, lambda _: clock.sleep(60.0), clock=clock)
    with pytest.raises(InfeasibleError, match="fewer than 20 seconds"):
        calibrate(node, boards, busy(clock, boards, 15.0), clock=clock)
    node.read_power = lambda: math.nan
    with pytest.raises(InfeasibleError, match="fewer than 20 seconds"):
        calibrate(node, boards, busy(clock, boards, 60.0), clock=clock)
    assert boards[0].power_limits().current_watts == boards[0].board.default_limit_watts


def test_a_rest_that_follows_the_boards_is_noticed():
    """Fans that speed up with the boards would make a gain wrong that is stated as certain."""
    quiet, windy = (
        learned([(0.945, -1.2)], NodePower(0.94, 0.005), fans=share) for share in (0.0, 0.08)
    )
    (calibration,) = windy.calibrations
    assert abs(calibration.gain - 0.945) < 2 * calibration.gain_error
    assert calibration.gain_error > quiet.calibrations[0].gain_error
    assert any("rest of the node" in warning for warning in windy.warnings)
    assert not any("rest of the node" in warning for warning in quiet.warnings)
