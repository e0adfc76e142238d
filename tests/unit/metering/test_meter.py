"""The meter over devices good and bad: totals, shares, faults, and its own life."""

import gc
import json
import math
import threading
import weakref
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, InvalidValueError, UnknownDeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Faults,
    Sensor,
    SimulatedGpu,
    Throttle,
    catalog,
    sensor_of,
)
from joulery.metering import Meter, SensorCalibration, save_calibrations
from joulery.metering._measurement import Flag
from support.simulated_boards import simulated_node

BOARD = replace(catalog.board("V100"), counter_period_seconds=0.1, power_lag_seconds=0.005)
WORK = catalog.workload("resnet50", BOARD)


class FakeCounter:
    """A device of constant power whose counter is always fresh."""

    def __init__(self, clock, watts, info, *, error=0.0, wraps_at=None):
        self.clock = clock
        self.watts = watts
        self.info = info
        self.wraps_at = wraps_at
        self.shift = 0.0
        self.provenance = Provenance(Origin.MEASURED, "fake counter", error)
        self.capabilities = frozenset({Capability.ENERGY})

    def read_energy(self):
        """Power times time, where it wraps."""
        joules = self.watts * self.clock.now() + self.shift
        if self.wraps_at is not None:
            joules %= self.wraps_at
        return EnergyReading(joules, self.clock.now(), range_joules=self.wraps_at)


def info(id_, kind=DeviceKind.GPU, **options):
    """A fake's identity."""
    return DeviceInfo(id_, id_, kind, "fake", **options)


def run(clock, devices, seconds=5.0, warm=2.0):
    """A window of ``seconds`` over ``devices``."""
    with Meter(devices, clock=clock) as meter:
        clock.sleep(warm)
        with meter.window("w") as window:
            clock.sleep(seconds)
    return window


def test_each_device_and_the_total():
    """A device would be missing or mixed up with another."""
    clock = VirtualClock()
    devices = [FakeCounter(clock, watts, info(f"f:{watts}")) for watts in (10.0, 200.0, 35.0)]
    window = run(clock, devices)
    assert [d.joules for d in window.devices] == pytest.approx([50.0, 1000.0, 175.0], rel=1e-6)
    assert window.joules == pytest.approx(1225.0, rel=1e-6)
    assert window.peak_watts == pytest.approx(245.0, rel=1e-3)


def test_a_node_meter_includes_its_devices():
    """Boards would be added to the node that contains them, in the sum or in the peak."""
    clock = VirtualClock()
    boards = [FakeCounter(clock, 200.0, info(f"f:{n}")) for n in range(2)]
    node = FakeCounter(clock, 700.0, info("node", DeviceKind.NODE))
    window = run(clock, [*boards, node])
    assert window.joules == pytest.approx(3500.0, rel=1e-6)
    assert window.peak_watts == pytest.approx(700.0, rel=1e-3)
    assert len(window.devices) == 3


def test_parts_are_scaled_by_their_share_and_assumed():
    """A slice would be charged its whole board, or pass for measured."""
    clock = VirtualClock()
    part = FakeCounter(clock, 200.0, info("f:0/1", parent="f:0", share=0.25))
    window = run(clock, [part])
    assert window.joules == pytest.approx(250.0, rel=1e-6)
    assert window.provenance.origin is Origin.ASSUMED
    assert window.relative_error is None
    assert "0.25 of fake counter" in window.provenance.source
    board = FakeCounter(clock, 200.0, info("f:0"))
    both = run(clock, [board, part])
    assert both.joules == pytest.approx(1000.0, rel=1e-6)
    assert both.peak_watts == pytest.approx(200.0, rel=1e-3)


def test_the_devices_own_error_enters_the_bar():
    """A 5 % sensor would be reported as exact."""
    clock = VirtualClock()
    window = run(clock, [FakeCounter(clock, 100.0, info("f"), error=0.05)], seconds=60.0)
    assert window.relative_error == pytest.approx(0.05, rel=0.1)


class FakeSensor(FakeCounter):
    """A node's power sensor that a test silences."""

    silent = False

    def __init__(self, clock, watts):
        super().__init__(clock, watts, info("node", DeviceKind.NODE), error=0.01)
        self.capabilities = frozenset({Capability.POWER})

    def read_power(self):
        """The watts, unless it is silent."""
        if self.silent:
            raise DeviceError("no answer", remedy="wait")
        return self.watts


def test_a_gap_between_power_samples_is_flagged_and_widens_the_bar():
    """Interpolated energy would pass for measured."""
    clock = VirtualClock()
    sensor = FakeSensor(clock, 300.0)
    with Meter([sensor], clock=clock) as meter:
        clock.sleep(10.0)
        with meter.window("dense") as dense:
            clock.sleep(60.0)
        with meter.window("gap") as gap:
            clock.sleep(10.0)
            sensor.silent = True
            clock.sleep(40.0)
            sensor.silent = False
            clock.sleep(10.0)
        clock.sleep(10.0)
        with meter.window("after") as after:
            clock.sleep(60.0)
    assert dense.relative_error < 0.02
    assert Flag.GAP in gap.flags
    assert gap.relative_error > 0.2
    assert gap.joules == pytest.approx(18000.0, rel=0.01)
    assert not dense.flags
    assert not after.flags
    assert after.relative_error < 0.02


def test_idle_energy_is_counted_apart():
    """Waste while waiting would be invisible."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, seed=3)
    with Meter([gpu], clock=clock) as meter:
        clock.sleep(2.0)
        with meter.window() as window:
            clock.sleep(20.0)
            gpu.set_load(WORK)
            clock.sleep(10.0)
    idle = window.measurement.idle_joules
    assert idle == pytest.approx(20.0 * BOARD.idle_watts, rel=0.35)
    assert idle < window.joules
    silent = run(clock, [FakeCounter(clock, 10.0, info("f"))])
    assert math.isnan(silent.measurement.idle_joules)


def test_no_devices_is_unknown_and_not_zero():
    """A machine without counters would seem to cost nothing."""
    clock = VirtualClock()
    window = run(clock, [])
    assert math.isnan(window.joules)
    assert window.relative_error is None
    assert window.seconds == pytest.approx(5.0)
    json.dumps(window.measurement.to_dict(), allow_nan=False)


def test_a_device_without_a_sensor_is_unknown_until_it_refreshes():
    """The very first moments would cost zero."""
    clock = VirtualClock()
    with (
        Meter([FakeCounter(clock, 10.0, info("f"))], clock=clock) as meter,
        meter.window() as window,
    ):
        pass
    assert math.isnan(window.joules)
    assert math.isnan(window.peak_watts)
    json.dumps(window.measurement.to_dict(), allow_nan=False)


def test_the_sampling_rate_must_make_sense():
    """Zero looks per second would divide by zero."""
    with pytest.raises(InvalidValueError):
        Meter([], sample_hertz=0.0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"devices": 5},
        {"devices": [5]},
        {"synchronize": 5},
        {"clock": 5},
        {"sample_hertz": "fast"},
    ],
)
def test_wrong_arguments_are_refused_when_a_meter_is_made(arguments):
    """A mistake shows up in the middle of a training, as an error of Python's own."""
    with pytest.raises(InvalidValueError, match=r"\(give|\(leave"):
        Meter(**arguments)


@pytest.mark.parametrize("open_window", [Meter.window, Meter.begin, Meter.end])
def test_a_window_needs_a_name(open_window):
    """A number for a name fails later, where windows are sorted or written to a log."""
    meter = Meter([], clock=VirtualClock())
    with pytest.raises(InvalidValueError, match="name of a window"):
        open_window(meter, 5)


def test_a_device_that_is_not_here_is_named():
    """A typo in a device name would measure something else, or nothing."""
    with pytest.raises(UnknownDeviceError, match="no-such-board"):
        Meter(["no-such-board"], clock=VirtualClock())  # when it is made, not at the first window
    with pytest.raises(UnknownDeviceError, match="'board-77'"):  # one name, not its letters
        Meter("board-77", clock=VirtualClock())


def test_devices_without_any_counter_are_left_out():
    """A knob-only device would be unreadable in every window."""
    clock = VirtualClock()
    silent = FakeCounter(clock, 1.0, info("knob"))
    silent.capabilities = frozenset()
    with Meter([silent, FakeCounter(clock, 1.0, info("f"))], clock=clock) as meter:
        assert [device.info.id for device in meter.devices] == ["f"]


def faulty(faults, *, load=WORK, seconds=10.0, stamped=True):
    """A busy board with ``faults``, measured from second 3 on; (window, true joules)."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, seed=11, sensor=Sensor(stamped=stamped), faults=faults)
    gpu.set_load(load)
    with Meter([gpu], clock=clock) as meter:
        clock.sleep(3.0)
        before = gpu.true_joules()
        with meter.window() as window:
            clock.sleep(seconds)
        truth = gpu.true_joules() - before
        assert not window.joules < 0.0
    return window, truth


def covers(window, truth):
    """Whether the 95 % interval holds the truth."""
    low, high = window.measurement.interval_joules
    return low <= truth <= high


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize(
    ("faults", "flag"),
    [
        pytest.param(Faults(reset_at_seconds=7.03), Flag.RESET, id="reset"),
        pytest.param(Faults(frozen_seconds=(6.0, 9.0)), Flag.FROZEN, id="frozen"),
        pytest.param(Faults(read_error_seconds=(6.0, 9.0)), Flag.READ_ERROR, id="read errors"),
        pytest.param(Faults(read_error_seconds=(8.0, 99.0)), Flag.READ_ERROR, id="no more reads"),
        pytest.param(Faults(frozen_seconds=(8.0, 99.0)), Flag.FROZEN, id="frozen for good"),
    ],
)
def test_faults_are_flagged_and_repaired(faults, flag, stamped):
    """Broken counters would give wrong, negative or unmarked energy, or raise."""
    window, truth = faulty(faults, stamped=stamped)
    assert flag in window.flags
    assert window.joules == pytest.approx(truth, rel=0.03)
    assert covers(window, truth)
    json.dumps(window.measurement.to_dict(), allow_nan=False)


def test_faults_before_a_window_are_not_its_own():
    """One hiccup would mark every window of the run."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, seed=2, faults=Faults(reset_at_seconds=1.5))
    with Meter([gpu], clock=clock) as meter:
        clock.sleep(3.0)
        with meter.window() as window:
            clock.sleep(2.0)
    assert window.flags == frozenset()


def test_a_lost_device_has_unknown_error():
    """Energy after a board fell off the bus would be stated with confidence."""
    window, _ = faulty(Faults(lost_at_seconds=8.0))
    assert Flag.LOST in window.flags
    assert window.joules > 0
    assert window.relative_error is None


def test_a_device_lost_before_the_window_is_flagged():
    """A dead board would be reported as if it were alive."""
    window, _ = faulty(Faults(lost_at_seconds=2.0))
    assert Flag.LOST in window.flags
    assert window.relative_error is None


def test_an_unreadable_device_is_nan():
    """A board that never answers would cost nothing."""
    window, _ = faulty(Faults(read_error_seconds=(0.0, 99.0)))
    assert math.isnan(window.joules)
    assert Flag.UNREADABLE in window.flags
    assert window.relative_error is None


def test_one_unreadable_device_does_not_hide_the_others():
    """One dead board would make the whole node unmeasurable, or its total exact."""
    clock = VirtualClock()
    dead = SimulatedGpu(BOARD, clock, index=1, faults=Faults(read_error_seconds=(0.0, 99.0)))
    window = run(clock, [FakeCounter(clock, 100.0, info("f")), dead])
    assert window.joules == pytest.approx(500.0, rel=1e-6)
    assert window.relative_error is None
    assert Flag.UNREADABLE in window.flags


def test_a_wrapping_counter_goes_on():
    """Energy would jump back at every wrap."""
    clock = VirtualClock()
    window = run(clock, [FakeCounter(clock, 100.0, info("f"), wraps_at=333.0)], seconds=20.0)
    assert window.joules == pytest.approx(2000.0, rel=1e-4)
    assert window.flags == {Flag.WRAPPED}
    assert covers(window, 2000.0)


def test_an_implausible_jump_is_repaired():
    """One wild reading would dwarf the run."""
    clock = VirtualClock()
    device = FakeCounter(clock, 100.0, info("f", max_watts=150.0))

    def jump():
        device.shift = 1e6

    clock.call_at(5.0, jump)
    window = run(clock, [device], seconds=10.0)
    assert Flag.JUMPED in window.flags
    assert window.joules == pytest.approx(1000.0, rel=0.02)
    assert covers(window, 1000.0)


def test_a_freeze_that_does_not_catch_up_is_filled():
    """A counter that stood still would lose the energy for good."""
    clock = VirtualClock()
    device = FakeCounter(clock, 100.0, info("f", max_watts=150.0))
    device.capabilities |= {Capability.POWER}
    device.read_power = lambda: 100.0
    healthy = device.read_energy

    def read():
        now = clock.now()
        stuck = min(max(now - 5.0, 0.0), 4.0)
        return replace(healthy(), joules=100.0 * (now - stuck))

    device.read_energy = read
    window = run(clock, [device], seconds=10.0)
    assert Flag.FROZEN in window.flags
    assert window.joules == pytest.approx(1000.0, rel=0.05)
    assert covers(window, 1000.0)


def test_nodes_of_boards_add_up():
    """Eight boards would be measured as one."""
    clock = VirtualClock()
    boards = simulated_node("V100", 8, clock, seed=1)
    window = run(clock, boards, seconds=10.0)
    assert len(window.devices) == 8
    truth = 8 * 10.0 * boards[0].board.idle_watts
    assert window.joules == pytest.approx(truth, rel=1e-3)
    assert covers(window, truth)


def test_closed_windows_outlive_the_meter():
    """Figures would vanish with the meter that took them."""
    clock = VirtualClock()
    window = run(clock, [FakeCounter(clock, 100.0, info("f"))])
    assert window.joules == pytest.approx(500.0, rel=1e-6)


def test_a_closed_meter_starts_again_with_the_next_window():
    """Code that measures in phases would have to keep the meter open."""
    clock = VirtualClock()
    meter = Meter([FakeCounter(clock, 100.0, info("f"))], clock=clock)
    for _ in range(2):
        with meter.window() as window:
            clock.sleep(5.0)
        assert window.joules == pytest.approx(500.0, rel=0.02)
        meter.close()


def test_constructing_touches_nothing():
    """A meter in a module's top level would probe hardware on import."""

    class Untouchable:
        info = None

        def __getattr__(self, name):
            raise AssertionError(name)

    Meter([Untouchable()])


def joulery_threads():
    """Threads that sample."""
    return [thread for thread in threading.enumerate() if thread.name == "joulery"]


class RealCounter(FakeCounter):
    """A fake on the machine's clock."""

    def __init__(self, clock, **options):
        super().__init__(clock, 100.0, info("real"), **options)


def test_closing_ends_the_thread(real_clock):
    """Every meter would leave a thread behind."""
    meter = Meter([RealCounter(real_clock)]).start()
    assert len(joulery_threads()) == 1
    meter.close()
    assert joulery_threads() == []
    meter.close()


def test_a_forgotten_meter_is_collected_and_its_thread_ends(real_clock):
    """Meters made in a loop would pile up threads and memory."""
    meter = Meter([RealCounter(real_clock)], sample_hertz=100.0).start()
    (thread,) = joulery_threads()
    alive = weakref.ref(meter)
    del meter
    for _ in range(50):  # the thread holds the sampler for the moment of a look
        gc.collect()
        if alive() is None:
            break
    assert alive() is None
    thread.join(timeout=60.0)
    assert not thread.is_alive()


def test_a_driver_that_raises_does_not_kill_the_thread(real_clock):
    """One error in the background would end all measurement."""
    device = RealCounter(real_clock)
    healthy, calls = device.read_energy, []

    def read():
        calls.append(None)
        if len(calls) == 2:
            raise DeviceError("hiccup", remedy="none")
        return healthy()

    device.read_energy = read
    with Meter([device], sample_hertz=200.0) as meter:
        deadline = real_clock.now() + 2.0
        while len(calls) < 5 and real_clock.now() < deadline:
            real_clock.sleep(0.005)
        assert len(calls) >= 5
        assert meter.devices == (device,)


@pytest.fixture
def real_clock():
    """The machine's clock."""
    from joulery.clock import REAL_CLOCK

    return REAL_CLOCK


def test_a_lost_board_is_charged_until_it_went_and_no_longer():
    """A board that fell off the bus would go on costing energy for ever."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock, seed=3, faults=Faults(lost_at_seconds=5.0))
    gpu.set_load(WORK)
    with Meter([gpu], clock=clock) as meter:
        clock.sleep(3.0)
        watts = gpu.steady().watts
        with meter.window() as window:
            clock.sleep(20.0)
        with meter.window() as after:
            clock.sleep(5.0)
    assert window.joules == pytest.approx(2.0 * watts, rel=0.05)
    assert Flag.LOST in window.flags
    assert math.isnan(window.mean_watts)
    assert str(window.measurement).startswith("at least")
    assert math.isnan(after.joules)
    assert after.flags == {Flag.LOST}


def test_a_busy_window_after_idling_is_not_idle():
    """Work would be reported as waste because utilisation was looked at before it began."""
    for seed in range(10):
        clock = VirtualClock()
        gpu = SimulatedGpu(BOARD, clock, seed=seed)
        with Meter([gpu], clock=clock) as meter:
            clock.sleep(2.0 + 0.13 * seed)
            gpu.set_load(WORK)
            with meter.window() as window:
                clock.sleep(1.0)
        assert window.measurement.idle_joules <= 0.02 * window.joules


def test_a_calibrated_board_states_true_joules(tmp_path, monkeypatch):
    """What `joulery calibrate` learned would be kept and not used."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    expected = sensor_of("NVIDIA GeForce RTX 4090")
    sensor = Sensor(gain=1.04, offset_watts=-22.0, window_seconds=0.1, expected=expected)
    windows = []
    for calibrated in (False, True):
        clock = VirtualClock()
        gpu = SimulatedGpu(BOARD, clock, seed=4, sensor=sensor)
        if calibrated:
            learned = SensorCalibration(
                gpu.info.id, 1.04, -22.0, 0.004, 0.3, "plug", "2026-11-16T00:00Z"
            )
            save_calibrations([learned])
        gpu.set_load(WORK)
        with Meter([gpu], clock=clock) as meter:
            clock.sleep(2.0)
            before = gpu.true_joules()
            with meter.window() as window:
                clock.sleep(10.0)
            windows.append((window, gpu.true_joules() - before))
    (plain, truth), (corrected, _) = windows
    assert abs(plain.joules / truth - 1) > 0.03
    assert abs(plain.joules - truth) <= 1.96 * plain.relative_error * plain.joules
    assert corrected.joules == pytest.approx(truth, rel=0.002)
    assert corrected.relative_error < 0.01 < plain.relative_error
    assert "calibrated 2026-11-16 against plug" in corrected.devices[0].provenance.source


def test_a_damaged_calibration_file_is_no_disaster(tmp_path, monkeypatch, caplog):
    """A broken file would stop every training that is measured."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "joulery").mkdir()
    (tmp_path / "joulery" / "calibrations.json").write_text("{")
    window = run(VirtualClock(), [FakeCounter(VirtualClock(), 100.0, info("f"))], seconds=0.0)
    assert window.closed
    assert "without calibrations" in caplog.text


class FakeNode:
    """A node meter that shows what it is told."""

    capabilities = frozenset({Capability.POWER})
    provenance = Provenance(Origin.MEASURED, "fake controller", 0.01)

    def __init__(self):
        self.watts = 800.0
        self.info = info("node:0", DeviceKind.NODE)

    def read_power(self):
        """Watts now."""
        return self.watts


@pytest.mark.parametrize("stuck", [False, True])
def test_a_stuck_node_meter_is_named(stuck):
    """A controller that hangs would say that a training costs what idling does."""
    clock, node = VirtualClock(), FakeNode()
    board = SimulatedGpu(BOARD, clock)
    with Meter([board, node], clock=clock) as meter:
        clock.sleep(15.0)
        with meter.window("w") as window:
            board.set_load(WORK)
            for _ in range(40):
                node.watts += 0.0 if stuck else 1.0
                clock.sleep(1.0)
    assert (Flag.STUCK in window.flags) is stuck


def test_windows_carry_throttles_and_stability():
    """Windows of a throttled or restless board would be compared as if they were alike."""
    clock = VirtualClock()
    board = SimulatedGpu(BOARD, clock)
    board.set_load(WORK)
    board.set_power_limit(150.0)
    window = run(clock, [board])
    assert window.measurement.throttles == {Throttle.POWER_CAP}
    assert window.measurement.stable is True
    with Meter([board], clock=clock) as meter, meter.window("w") as restless:
        for load in (None, WORK, None):
            board.set_load(load)
            clock.sleep(2.0)
    assert restless.measurement.stable is False
    idle = run(clock, [board])
    assert idle.measurement.throttles == set()
