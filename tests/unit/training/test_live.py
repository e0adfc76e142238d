"""The live state of a run: figures between two heartbeats, also while a driver hangs."""

import threading
import time

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.metering import Meter
from joulery.training import _live
from joulery.training._live import LiveReader

BOARD = catalog.board("A40")


def test_devices_of_one_kind_are_told_apart():
    """If this fails, a page shows eight lines of one name."""
    clock = VirtualClock()
    gpus = [SimulatedGpu(BOARD, clock, index=number) for number in range(2)]
    work = catalog.workload("resnet50", BOARD)
    with Meter(gpus, clock=clock) as meter:
        window = meter.begin("run")
        reader = LiveReader(meter.devices, clock, window.measurement, 0, 2)
        for _ in range(40):
            gpus[0].run(work)
        state = reader.read(window.measurement, 40, clock.now(), "training")
    busy, idle = state.devices
    assert (busy.name, idle.name) == (f"{BOARD.name} 0", f"{BOARD.name} 1")
    assert busy.watts > 2 * idle.watts > 0
    assert state.steps_per_second == pytest.approx(40 / clock.now(), rel=0.01)
    assert state.processes == 2


class HangingGpu(SimulatedGpu):
    """A board whose driver does not return until it is let go."""

    def __init__(self, board, clock):
        super().__init__(board, clock)
        self.answers = threading.Event()
        self.calls = 0

    def power_limits(self):
        """The limits, once the driver answers."""
        self.calls += 1
        self.answers.wait(120.0)
        return super().power_limits()


def test_a_driver_that_hangs_costs_its_figures_only(monkeypatch):
    """If this fails, a hanging driver costs the lease of a decision, or a thread per heartbeat."""
    monkeypatch.setattr(_live, "_WAIT_SECONDS", 0.05)
    gpu = HangingGpu(BOARD, REAL_CLOCK)
    with Meter([gpu]) as meter:
        window = meter.begin("run")
        reader = LiveReader([gpu], REAL_CLOCK, window.measurement, 0)
        began, before = time.monotonic(), threading.active_count()
        for _ in range(5):
            state = reader.read(window.measurement, 1, 1.0, "")
            assert state.devices[0].limit_watts is None
        assert time.monotonic() - began < 30.0
        assert gpu.calls == 1
        assert threading.active_count() <= before + 1
        gpu.answers.set()
        end = time.monotonic() + 60
        while state.devices[0].limit_watts is None and time.monotonic() < end:
            state = reader.read(window.measurement, 2, 2.0, "")
        assert state.devices[0].limit_watts == BOARD.default_limit_watts
        reader.close()
