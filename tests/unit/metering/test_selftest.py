"""The check list for a board, where something is missing or breaks a promise."""

import numpy as np
import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError, UnsupportedError
from joulery.hardware import IntegratedPower, Sensor, SimulatedGpu, catalog
from joulery.metering import selftest
from joulery.metering._sensor_fit import find_refreshes, fit_sensor
from support.first_contact import SimulatedLoad


def _board(**sensor):
    clock = VirtualClock()
    return SimulatedGpu(catalog.board("V100"), clock, sensor=Sensor(**sensor)), clock


def _checks(result):
    return {check.name: check for check in result.checks}


def test_without_a_load_that_switches_the_rest_is_checked():
    """A user without PyTorch learns nothing at all, or waits for bursts that never come."""
    gpu, clock = _board(window_seconds=0.1)
    gpu.set_load(catalog.workload("bert", gpu.board))
    result = selftest(gpu, None, seconds=20.0, clock=clock)
    checks = _checks(result)
    assert checks["counter against power"].agrees
    assert "not tried" in checks["bursts"].observed
    assert len(result.points) == 4
    assert result.restored


def test_added_up_power_is_not_taken_for_a_counter():
    """A sum of our own readings is compared with the same readings, and agrees of course."""
    gpu, clock = _board(window_seconds=0.1, counts=False)
    result = selftest(IntegratedPower(gpu, clock), SimulatedLoad(gpu), seconds=20.0, clock=clock)
    assert "added up" in _checks(result)["counter"].observed
    assert result.counter is None
    assert result.sensor.window_seconds == pytest.approx(0.1, rel=0.2)


def test_a_limit_that_does_not_come_back_is_said(monkeypatch):
    """A board that keeps a test's limit passes the check list."""
    gpu, clock = _board(window_seconds=0.1)
    real = gpu.set_power_limit
    monkeypatch.setattr(gpu, "set_power_limit", lambda watts: real(min(watts, 200.0)))
    result = selftest(gpu, SimulatedLoad(gpu), seconds=20.0, clock=clock)
    assert result.restored is False
    assert _checks(result)["set limits"].agrees is False


def test_a_board_without_a_power_sensor_is_refused():
    """A check list without any reading looks like one that was passed."""
    gpu, clock = _board()
    gpu.capabilities = frozenset()
    with pytest.raises(UnsupportedError):
        selftest(gpu, None, clock=clock)


def test_too_little_time_is_refused():
    """A test of a second finds differences that are none."""
    gpu, clock = _board()
    with pytest.raises(InvalidValueError):
        selftest(gpu, None, seconds=1.0, clock=clock)


def test_the_load_is_stopped_when_the_test_is_interrupted():
    """Ctrl-C leaves a board at full power, or at the lowest limit."""
    gpu, clock = _board(window_seconds=0.1)

    def interrupt(phase):
        if phase.startswith("limits"):
            clock.call_at(clock.now() + 2.0, _raise)

    def _raise():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        selftest(gpu, SimulatedLoad(gpu), seconds=20.0, clock=clock, on_phase=interrupt)
    assert gpu.steady().watts == gpu.board.idle_watts
    assert gpu.power_limits().current_watts == gpu.board.default_limit_watts


def test_refreshes_are_found_among_late_readings():
    """A busy machine that reads late makes a counter look slower than it is."""
    draw = np.random.default_rng(0)
    times = np.cumsum(draw.choice([0.002, 0.03], size=4000, p=[0.98, 0.02]))
    refreshes = find_refreshes(times, np.floor(times / 0.1))
    assert refreshes.period_seconds == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_values_that_never_change_have_no_fit(value):
    """A frozen sensor gets a window and a lag."""
    moments, values = np.arange(100.0), np.full(100, value)
    assert fit_sensor(moments, values, [0.0, 1.0], 1.0) is None
    assert find_refreshes(moments, np.ones(100)) is None


def test_a_machine_that_reads_too_rarely_is_told_so():
    """A driver that takes a second for each call ends the check list with an error."""
    gpu, clock = _board(window_seconds=0.1)
    read = gpu.read_energy

    def read_slowly():
        clock.sleep(0.7)
        return read()

    gpu.read_energy = read_slowly
    result = selftest(gpu, SimulatedLoad(gpu), seconds=10.0, clock=clock)
    assert result.restored
    assert "more time" in str(result.checks)
