"""Simulated boards: exact energy behind a coarse counter, knobs and faults."""

import math
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, DeviceLostError, InvalidValueError, MissingRightsError
from joulery.frontier import Origin
from joulery.governor import lease
from joulery.hardware import Capability, Device, Faults, SimulatedGpu, catalog, protocol_of
from joulery.hardware.simulated import _physics as physics
from joulery.hardware.simulated._board import Sensor
from support.simulated_boards import simulated_node

BOARD = replace(catalog.board("V100"), counter_period_seconds=0.1, power_lag_seconds=0.0)
LAGGING = replace(BOARD, power_lag_seconds=0.2)
WORK = catalog.workload("resnet50", BOARD)


def full_power(board=BOARD):
    """Mean watts of the workload at the default limit."""
    return physics.settle(board, WORK, board.default_limit_watts).watts


def test_claims_what_it_implements():
    """A consumer that trusts the claimed capabilities would fail."""
    gpu = SimulatedGpu(BOARD, VirtualClock())
    assert isinstance(gpu, Device)
    assert all(isinstance(gpu, protocol_of(capability)) for capability in gpu.capabilities)
    assert gpu.capabilities == frozenset(Capability)


def test_says_who_it_is():
    """Figures from a simulation would pass for measurements."""
    gpu = SimulatedGpu(BOARD, VirtualClock(), index=3)
    assert gpu.info.id == "simulated:v100:3"
    assert gpu.info.vendor == "simulated"
    assert gpu.provenance.origin is Origin.SIMULATED
    assert gpu.read_energy().range_joules is None


def test_idle_energy_is_idle_power_times_time():
    """Nothing else may draw power on an unused board."""
    clock = VirtualClock(start_seconds=50.0)
    gpu = SimulatedGpu(BOARD, clock)
    clock.sleep(10.0)
    assert gpu.true_joules() == pytest.approx(10.0 * BOARD.idle_watts)


def test_lag_integrates_in_closed_form():
    """Energy after a load change would miss the transient."""
    clock = VirtualClock()
    gpu = SimulatedGpu(LAGGING, clock)
    gpu.set_load(WORK)
    clock.sleep(0.3)
    target, start, lag = full_power(LAGGING), LAGGING.idle_watts, 0.2
    expected = target * 0.3 + (start - target) * lag * (1 - math.exp(-0.3 / lag))
    assert gpu.true_joules() == pytest.approx(expected)


def test_counter_moves_only_at_refreshes():
    """A counter that is always fresh would hide what real windows suffer from."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock)
    gpu.set_load(WORK)
    readings = []
    for _ in range(1000):
        clock.sleep(0.001)
        readings.append(gpu.read_energy())
    distinct = {reading.joules for reading in readings}
    assert len(distinct) in (10, 11)
    ages = [reading.read_at_seconds - reading.refreshed_at_seconds for reading in readings]
    assert 0 <= min(ages) < 0.002
    assert 0.098 < max(ages) <= 0.1


def test_counter_is_the_true_energy_at_the_refresh():
    """The counter would drift from the energy it counts."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, seed=5)
    gpu.set_load(WORK)
    clock.sleep(2.345)
    reading = gpu.read_energy()
    assert reading.joules == pytest.approx(full_power() * reading.refreshed_at_seconds, abs=1e-3)
    assert (reading.joules * 1000) == pytest.approx(round(reading.joules * 1000), abs=1e-6)


def test_refresh_before_the_last_change_of_load_is_remembered():
    """Reading right after a load change would apply the new power to the past."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, seed=1)
    clock.sleep(1.0)
    clock.sleep(gpu.read_energy().refreshed_at_seconds + 0.18 - clock.now())
    before = gpu.read_energy()
    gpu.set_load(WORK)
    clock.sleep(0.01)
    gpu.set_load(None)
    clock.sleep(0.005)
    after = gpu.read_energy()
    assert (after.joules, after.refreshed_at_seconds) == (
        before.joules,
        before.refreshed_at_seconds,
    )
    clock.sleep(0.01)
    drawn = gpu.read_energy().joules - before.joules
    assert drawn == pytest.approx(0.09 * BOARD.idle_watts + 0.01 * full_power(), abs=2e-3)


def test_boards_of_one_node_refresh_out_of_step():
    """Windows over several boards would see errors that never average out."""
    clock = VirtualClock()
    node = simulated_node("V100", 4, clock)
    clock.sleep(1.0)
    assert len({gpu.read_energy().refreshed_at_seconds for gpu in node}) == 4
    assert [gpu.info.index for gpu in node] == [0, 1, 2, 3]


def test_unstamped_counter_hides_its_refresh():
    """Fallbacks for boards without a stamp could not be tested."""
    gpu = SimulatedGpu(BOARD, VirtualClock(), sensor=Sensor(stamped=False))
    assert gpu.read_energy().refreshed_at_seconds is None


def test_noise_repeats_with_its_seed_and_has_the_stated_size():
    """A replay would differ, or the noise be of another size than asked."""

    def samples(seed):
        clock = VirtualClock()
        gpu = SimulatedGpu(BOARD, clock, seed=seed, sensor=Sensor(noise=0.05))
        found = []
        for _ in range(2000):
            clock.sleep(0.1)
            found.append(gpu.read_power() / BOARD.idle_watts - 1.0)
        return found

    first = samples(7)
    assert first == samples(7) != samples(8)
    assert math.sqrt(sum(x * x for x in first) / len(first)) == pytest.approx(0.05, rel=0.1)
    assert abs(sum(first) / len(first)) < 0.005


def test_power_sensor_shows_the_last_refresh():
    """Power would be fresher than any real sensor."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, seed=1)
    clock.sleep(1.0)
    gpu.set_load(WORK)
    assert gpu.read_power() == BOARD.idle_watts
    clock.sleep(0.1)
    assert gpu.read_power() == pytest.approx(full_power())


def test_lower_limit_slows_the_run_and_saves_power():
    """The knob would have no effect on what it is for."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock)
    fast = gpu.run(WORK, 20)
    with lease(gpu, watts=125.0):
        assert gpu.power_limits().current_watts == 125.0
        slow = gpu.run(WORK, 20)
    assert slow > 1.1 * fast
    assert slow == pytest.approx(20 * physics.settle(BOARD, WORK, 125.0).seconds)
    assert gpu.power_limits().current_watts == BOARD.default_limit_watts


def test_limit_that_changes_during_a_run_counts_from_the_next_step():
    """A tuner that acts while training runs would not be seen."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock)
    fast = gpu.run(WORK, 1)
    slow = physics.settle(BOARD, WORK, 100.0).seconds
    clock.call_at(clock.now() + 4.5 * fast, lambda: gpu.set_power_limit(100.0))
    assert gpu.run(WORK, 10) == pytest.approx(5 * fast + 5 * slow)


def test_load_found_before_a_run_is_back_after_it():
    """A run on a busy board would leave it idle."""
    gpu = SimulatedGpu(BOARD, VirtualClock())
    gpu.set_load(WORK)
    gpu.run(catalog.workload("host-bound", BOARD), 2)
    assert gpu.steady().watts == pytest.approx(full_power())


@pytest.mark.parametrize("watts", [99.0, 251.0, float("nan")])
def test_limit_out_of_range_is_refused(watts):
    """A board would run at a limit that its driver rejects."""
    gpu = SimulatedGpu(BOARD, VirtualClock())
    with pytest.raises(InvalidValueError, match="V100"):
        gpu.set_power_limit(watts)


def test_clock_lock_holds_until_unlocked():
    """Locked clocks would not be held, or never be released."""
    gpu = SimulatedGpu(BOARD, VirtualClock())
    gpu.set_load(WORK)
    clocks = gpu.supported_clocks()
    gpu.lock_clock(clocks[50] + 1.0)
    assert gpu.telemetry().clock_hertz == clocks[50]
    gpu.unlock_clock()
    assert gpu.telemetry().clock_hertz > clocks[50]
    with pytest.raises(InvalidValueError, match="MHz"):
        gpu.lock_clock(1.0)


def test_telemetry_tells_busy_from_idle():
    """Attribution by utilisation would see no load."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock)
    idle = gpu.telemetry()
    gpu.set_load(WORK)
    clock.sleep(1.0)
    busy = gpu.telemetry()
    assert idle.utilisation == 0.0
    assert 0.8 < busy.utilisation < 1.0
    assert busy.temperature_celsius > idle.temperature_celsius


def test_reset_restarts_the_counter_from_zero():
    """A reset would go unnoticed in tests of the meter."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, faults=Faults(reset_at_seconds=5.0))
    clock.sleep(4.9)
    assert gpu.read_energy().joules > 100.0
    gpu.set_load(WORK)
    clock.sleep(1.0)
    gpu.set_load(None)
    clock.sleep(4.1)
    reading = gpu.read_energy()
    expected = full_power() * 0.9 + BOARD.idle_watts * (reading.refreshed_at_seconds - 5.9)
    assert reading.joules == pytest.approx(expected, abs=1e-3)
    assert gpu.true_joules() > reading.joules + 100.0


def test_frozen_counter_stands_still_and_then_catches_up():
    """A frozen counter would not look frozen."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, faults=Faults(frozen_seconds=(2.0, 4.0)))
    gpu.set_load(WORK)
    clock.sleep(2.5)
    gpu.set_load(None)
    frozen = gpu.read_energy()
    clock.sleep(1.0)
    still = gpu.read_energy()
    assert (still.joules, still.refreshed_at_seconds) == (
        frozen.joules,
        frozen.refreshed_at_seconds,
    )
    assert frozen.refreshed_at_seconds <= 2.0
    clock.sleep(1.0)
    assert gpu.read_energy().joules == pytest.approx(gpu.true_joules(), abs=0.11 * BOARD.idle_watts)


def test_read_errors_pass():
    """A transient driver error would be permanent, or never come."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, faults=Faults(read_error_seconds=(1.0, 2.0)))
    gpu.read_energy()
    clock.sleep(1.0)
    for read in (gpu.read_energy, gpu.read_power, gpu.telemetry):
        with pytest.raises(DeviceError):
            read()
    clock.sleep(1.0)
    gpu.read_energy()


def test_lost_board_stays_lost():
    """Code that copes with a lost board could not be tested."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, faults=Faults(lost_at_seconds=1.0))
    clock.sleep(1.0)
    for call in (gpu.read_energy, gpu.power_limits, gpu.supported_clocks, gpu.unlock_clock):
        with pytest.raises(DeviceLostError):
            call()


def test_refused_rights_leave_everything_as_it_was():
    """Code that runs without rights could not be tested."""
    gpu = SimulatedGpu(BOARD, VirtualClock(), faults=Faults(no_permission=True))
    for refused in (lambda: gpu.set_power_limit(125.0), lambda: gpu.lock_clock(900e6)):
        with pytest.raises(MissingRightsError):
            refused()
    assert gpu.power_limits().current_watts == BOARD.default_limit_watts
