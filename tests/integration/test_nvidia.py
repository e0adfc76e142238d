"""NVIDIA boards through the real binding, on the emulated driver."""

import os
import threading
import time
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, InvalidValueError, MissingRightsError
from joulery.frontier import Origin
from joulery.governor import lease
from joulery.hardware import Capability, Device, Workload, catalog, nvidia, protocol_of
from joulery.hardware._visibility import cuda_visible_ids
from joulery.testing.emulator import BoardSpec, EmulatedNode, build

BOARD = replace(
    catalog.board("A100"),
    min_limit_watts=100.0,
    max_limit_watts=400.0,
    default_limit_watts=400.0,
    counter_period_seconds=0.1,
)
WORKLOAD = Workload("step", compute_seconds=0.08, memory_seconds=0.03, host_seconds=0.01)


@pytest.fixture
def start(tmp_path):
    """Start a node in this process; it ends with the test."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    started = []

    def begin(*boards, **options):
        node = EmulatedNode(boards or [BoardSpec(BOARD)], directory=tmp_path, **options)
        started.append(node.__enter__())
        node.load_in_process()
        return node

    yield begin
    for node in started:
        node.__exit__(None, None, None)


def test_boards_are_found_with_what_they_can_do(start):
    """A machine's boards would be missed, or promise too much or too little."""
    start(BoardSpec(BOARD), "V100")
    found = nvidia.survey().devices
    assert [device.info.index for device in found] == [0, 1]
    first = found[0]
    assert isinstance(first, Device)
    assert first.info.id.startswith("GPU-")
    assert "A100" in first.info.name
    assert first.info.max_watts == 400.0
    assert first.capabilities == frozenset(Capability)
    assert all(isinstance(first, protocol_of(capability)) for capability in Capability)
    assert first.provenance.origin is Origin.SIMULATED
    assert "emulated NVML" in first.provenance.source


def test_readings_follow_the_counter(start):
    """The joules of every window come from here."""
    node = start(BoardSpec(BOARD, counter_start_joules=50.0), time_held=True)
    clock = VirtualClock()
    node.hold_time(clock.wall())
    gpu = nvidia.survey(clock).devices[0]
    node.set_load(0, WORKLOAD)
    for seconds in (0.05, 1.23, 7.0):
        clock.sleep(seconds)
        node.advance(seconds)
        reading, shown = gpu.read_energy(), node.shown(0)
        assert reading.joules == pytest.approx(shown.joules, abs=1e-3)
        assert reading.watts == pytest.approx(shown.watts, abs=1e-3)
        assert reading.read_at_seconds == clock.now()
        assert reading.refreshed_at_seconds == pytest.approx(shown.refreshed_at_seconds, abs=2e-6)
        assert gpu.read_power() == pytest.approx(shown.watts, abs=1e-3)
    assert gpu.read_energy().range_joules is None


def test_readings_on_the_real_clock(start):
    """A stamp in microseconds since 1970 would not land on the monotonic clock."""
    start()
    gpu = nvidia.survey().devices[0]
    before = time.monotonic()
    reading = gpu.read_energy()
    assert before <= reading.read_at_seconds <= time.monotonic()
    age = reading.read_at_seconds - reading.refreshed_at_seconds
    assert 0 <= age < BOARD.counter_period_seconds + 0.05


def test_a_stepped_wall_clock_gives_no_refresh_time(start):
    """After an NTP step a reading would be extrapolated by the step."""
    node = start(time_held=True)
    clock = VirtualClock()
    node.hold_time(clock.wall())
    gpu = nvidia.survey(clock).devices[0]
    clock.step_wall(5.0)
    reading = gpu.read_energy()
    assert reading.refreshed_at_seconds is None
    assert reading.joules > 0


def test_one_reading_is_one_call_of_the_driver(start):
    """Overhead doubles with every call."""
    node = start()
    gpu = nvidia.survey().devices[0]
    before = node.calls()
    gpu.read_energy()
    assert node.calls() - before == 1


def test_threads_read_a_board_one_at_a_time(start):
    """Threads share the buffer of the fast call; one would see another's half-written answer."""
    node = start()
    gpu = nvidia.survey().devices[0]
    node.slow(0, 4e-3, "nvmlDeviceGetFieldValues")

    def read():
        for _ in range(3):
            gpu.read_energy()

    threads = [threading.Thread(target=read) for _ in range(3)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 9 * 4e-3


def test_a_driver_without_field_values_still_counts(start):
    """Drivers from before field values would lose their energy counter."""
    node = start()
    node.fault(0, 13, "nvmlDeviceGetFieldValues")
    gpu = nvidia.survey().devices[0]
    assert Capability.ENERGY in gpu.capabilities
    reading = gpu.read_energy()
    assert reading.joules > 0
    assert reading.refreshed_at_seconds is None
    assert reading.watts is None
    assert gpu.read_power() > 0


def test_a_board_without_power_fields_takes_power_from_the_plain_call(start):
    """Boards that refuse the instant power would have no power at all."""
    node = start(BoardSpec(BOARD, has_power_fields=False), time_held=True)
    gpu = nvidia.survey().devices[0]
    node.set_load(0, WORKLOAD)
    node.advance(5.0)
    assert gpu.read_energy().watts is None
    assert gpu.read_power() == pytest.approx(node.shown(0).watts, abs=1e-3)


@pytest.mark.parametrize("has_power_fields", [True, False])
def test_zero_watts_are_unknown(start, has_power_fields):
    """A sensor that the board lacks would read as a board that costs nothing."""
    dark = replace(BOARD, idle_watts=0.0)
    start(BoardSpec(dark, has_power_fields=has_power_fields))
    gpu = nvidia.survey().devices[0]
    assert Capability.POWER not in gpu.capabilities
    assert gpu.read_energy().watts is None
    with pytest.raises(DeviceError):
        gpu.read_power()


def test_an_old_board_has_power_only(start):
    """A board without a counter would report zero joules."""
    start(BoardSpec(BOARD, has_counter=False, has_power_fields=False))
    gpu = nvidia.survey().devices[0]
    assert gpu.capabilities == {Capability.POWER, Capability.POWER_LIMIT, Capability.TELEMETRY}
    assert gpu.read_power() == pytest.approx(BOARD.idle_watts, abs=1e-3)


def test_power_limits_are_set_and_read_back(start):
    """A sweep would measure every point at the same limit."""
    node = start()
    gpu = nvidia.survey().devices[0]
    with lease(gpu, watts=187.5):
        assert node.power_limit(0) == 187.5
        assert gpu.power_limits().current_watts == 187.5
    assert node.power_limit(0) == 400.0
    for watts in (99.0, 401.0, float("nan"), float("inf")):
        with pytest.raises(InvalidValueError):
            gpu.set_power_limit(watts)


def test_a_refused_limit_is_a_matter_of_rights(start):
    """A user without rights would believe that the cap is on."""
    node = start()
    node.deny(0)
    gpu = nvidia.survey().devices[0]
    assert Capability.POWER_LIMIT in gpu.capabilities
    for act in (
        lambda: gpu.set_power_limit(200.0),
        lambda: gpu.lock_clock(gpu.supported_clocks()[0]),
        gpu.unlock_clock,
    ):
        with pytest.raises(MissingRightsError) as caught:
            act()
        assert "administrator" in caught.value.remedy


def test_a_limit_that_did_not_take_is_noticed(start):
    """A driver that says yes and does nothing would pass for a cap."""
    node = start()
    node.ignore(0, "nvmlDeviceSetPowerManagementLimit")
    gpu = nvidia.survey().devices[0]
    with pytest.raises(MissingRightsError, match="keeps 400"):
        gpu.set_power_limit(200.0)
    gpu.set_power_limit(400.0)  # what is in force already needs nothing


def test_clocks_lock_and_unlock(start):
    """A pipeline plan would run at other clocks than it asked for."""
    node = start()
    gpu = nvidia.survey().devices[0]
    clocks = gpu.supported_clocks()
    assert list(clocks) == sorted(set(clocks))
    assert clocks[-1] == pytest.approx(BOARD.max_clock_hertz, rel=1e-3)
    node.set_load(0, replace(WORKLOAD, activity=0.1))
    free = gpu.telemetry().clock_hertz
    gpu.lock_clock(clocks[3] + 0.4e6)
    assert node.truth(0).steady.clock_hertz == pytest.approx(BOARD.clocks()[3])
    assert gpu.telemetry().clock_hertz == clocks[3]
    gpu.unlock_clock()
    assert gpu.telemetry().clock_hertz == free
    for hertz in (clocks[0] - 1e6, clocks[-1] + 1e6, float("nan")):
        with pytest.raises(InvalidValueError):
            gpu.lock_clock(hertz)


def test_telemetry(start):
    """Attribution to processes starts from who holds the board."""
    node = start(time_held=True)
    gpu = nvidia.survey().devices[0]
    node.set_load(0, WORKLOAD)
    node.set_processes(0, {4321: 3 << 30})
    node.advance(5.0)
    found = gpu.telemetry()
    assert found.process_ids == (4321,)
    assert 0.5 < found.utilisation <= 1.0
    assert 30 < found.temperature_celsius <= 80
    node.fault(0, 3, "nvmlDeviceGetTemperature*")
    assert gpu.telemetry() == replace(found, temperature_celsius=None)


def test_mig_instances_stand_for_their_share(start):
    """Tenants of one board would each be billed for all of it, or for none."""
    node = start(BoardSpec(BOARD, mig_slices=(1, 2, 4)), BoardSpec(BOARD), time_held=True)
    board, *parts, other = nvidia.survey().devices
    assert [part.info.share for part in parts] == [1 / 7, 2 / 7, 4 / 7]
    assert {part.info.parent for part in parts} == {board.info.id}
    assert other.info.parent is None
    node.set_load(0, WORKLOAD)
    node.advance(3.0)
    for part in parts:
        assert part.info.id.startswith("MIG-")
        assert part.capabilities == {Capability.ENERGY, Capability.POWER, Capability.TELEMETRY}
        assert part.read_energy().joules == board.read_energy().joules
        assert part.read_power() == board.read_power()
        assert part.read_energy().range_joules is None
        assert part.provenance.relative_error is None
        assert part.provenance.origin is Origin.SIMULATED
        assert part.telemetry().utilisation is None
    ids = [part.info.id for part in parts]
    assert cuda_visible_ids(ids[1], [board.info.id, other.info.id], ids) == (ids[1],)


def test_a_lost_board_hides_no_other(start):
    """One dead board would blind a node of eight."""
    node = start(BoardSpec(BOARD), BoardSpec(BOARD))
    node.lose(0)
    assert [device.info.index for device in nvidia.survey().devices] == [1]
