"""The sampler: who looks, when, and how it stops."""

import math
import threading
import time
from dataclasses import replace

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import DeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    SimulatedGpu,
    catalog,
)
from joulery.metering import EnergyTimeline, Meter, Sampler
from joulery.metering._measurement import Flag

PERIOD = 0.1


class Counter:
    """100 W, refreshed every tenth of a second, stamped; counts its readers."""

    def __init__(self, clock, period=PERIOD):
        self.clock = clock
        self.period = period
        self.reads = []
        self.threads = set()
        self.hang = threading.Event()
        self.hang.set()
        self.info = DeviceInfo("fake:0", "Fake", DeviceKind.GPU, "fake")
        self.provenance = Provenance(Origin.MEASURED, "fake", 0.0)
        self.capabilities = frozenset({Capability.ENERGY})

    def read_energy(self):
        """The counter as of its last refresh."""
        self.hang.wait(60.0)
        now = self.clock.now()
        self.reads.append(now)
        self.threads.add(threading.current_thread().name)
        tick = math.floor(now / self.period + 1e-9) * self.period
        return EnergyReading(100.0 * tick, now, tick)


class Bench:
    """Counters under a sampler that notes its knots."""

    def __init__(self, clock, count=1, hertz=10.0, period=PERIOD):
        self.clock = clock
        self.counters = [Counter(clock, period) for _ in range(count)]
        self.tracks = [EnergyTimeline(counter, clock.now()) for counter in self.counters]
        self.knots = []
        self.sampler = Sampler(
            self.tracks, clock, hertz, lambda position, knot: self.knots.append((position, knot))
        )


def test_starting_reads_everything_at_once():
    """The first window would begin before anything is known."""
    bench = Bench(VirtualClock(), count=3)
    bench.sampler.start()
    assert [len(counter.reads) for counter in bench.counters] == [1, 1, 1]
    assert [position for position, _ in bench.knots] == [0, 1, 2]


def test_a_virtual_clock_drives_the_looks():
    """Simulations would never see a refresh, or need a thread."""
    clock = VirtualClock()
    bench = Bench(clock)
    bench.sampler.start()
    clock.sleep(10.0)
    assert bench.counters[0].threads == {threading.current_thread().name}
    late = [read for read in bench.counters[0].reads if read > 5.0]
    assert 45 <= len(late) <= 55
    assert len(bench.knots) >= 90


def test_the_rate_is_respected():
    """Sampling rarely to save time would not."""
    clock = VirtualClock()
    bench = Bench(clock, hertz=1.0)
    bench.sampler.start()
    clock.sleep(20.0)
    assert len([read for read in bench.counters[0].reads if read > 10.0]) <= 12


def test_a_stopped_sampler_looks_no_more():
    """A closed meter would go on using the driver."""
    clock = VirtualClock()
    bench = Bench(clock)
    bench.sampler.start()
    clock.sleep(1.0)
    bench.sampler.stop()
    reads = len(bench.counters[0].reads)
    clock.sleep(5.0)
    assert len(bench.counters[0].reads) == reads


def test_catching_up_reads_what_has_news_and_nothing_else():
    """Short windows would miss the refresh that just came, or cost a read each."""
    clock = VirtualClock()
    bench = Bench(clock, hertz=1.0)
    bench.sampler.start()
    clock.sleep(5.0)
    news = bench.sampler.next_refresh_seconds
    clock.sleep(max(0.0, news - clock.now()) + 0.005)
    counter = bench.counters[0]
    reads = len(counter.reads)
    bench.sampler.catch_up(clock.now(), 0.0)
    assert len(counter.reads) == reads + 1
    assert bench.sampler.next_refresh_seconds > clock.now()
    bench.sampler.catch_up(clock.now(), 0.0)
    assert len(counter.reads) == reads + 1


def test_nothing_to_look_at_is_fine():
    """A machine without counters would crash at the first window."""
    for clock in (VirtualClock(), REAL_CLOCK):
        sampler = Sampler([], clock, 10.0, lambda position, knot: None)
        sampler.start()
        sampler.catch_up(clock.now(), 0.0)
        sampler.stop()


def wait_until(condition, seconds=60.0):
    """Wait for a thread to get something done."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert condition()


@pytest.fixture
def real():
    """A fast counter under a sampler with its own thread."""
    bench = Bench(REAL_CLOCK, hertz=200.0, period=0.01)
    yield bench
    for counter in bench.counters:
        counter.hang.set()
    bench.sampler.stop()


def test_a_real_clock_has_a_thread_of_its_own(real):
    """The measured code would have to do the looking."""
    real.sampler.start()
    wait_until(lambda: len(real.knots) > 5)
    assert "joulery" in real.counters[0].threads


def test_catching_up_waits_for_the_thread(real):
    """Two threads would read one driver handle at a time."""
    real.sampler.start()
    wait_until(lambda: len(real.knots) > 5)
    real.counters[0].threads.clear()
    for _ in range(20):
        real.sampler.catch_up(REAL_CLOCK.now(), 0.05)
    assert real.counters[0].threads <= {"joulery"}


def test_a_driver_that_hangs_does_not_hang_the_caller(real):
    """A stuck driver call would stop the training."""
    real.sampler.start()
    wait_until(lambda: len(real.knots) > 3)
    real.counters[0].hang.clear()
    started = time.monotonic()
    real.sampler.catch_up(REAL_CLOCK.now() + 1.0, 0.01)
    assert time.monotonic() - started < 30.0


def test_stopping_does_not_wait_for_a_driver_that_hangs(real, monkeypatch):
    """Leaving the program would hang with the driver."""
    real.sampler.start()
    wait_until(lambda: len(real.knots) > 3)
    real.counters[0].hang.clear()
    time.sleep(0.02)
    started = time.monotonic()
    real.sampler.stop()
    assert time.monotonic() - started < 30.0


def test_a_failing_device_does_not_disturb_the_others():
    """One dead board would stop the sampling of all."""
    clock = VirtualClock()
    bench = Bench(clock, count=2)

    def fail():
        raise DeviceError("dead", remedy="none")

    bench.counters[0].read_energy = fail
    bench.sampler.start()
    clock.sleep(3.0)
    assert {position for position, _ in bench.knots} == {1}
    assert len(bench.knots) > 20


def test_a_board_that_hangs_does_not_blind_the_others():
    """One stuck driver call would stop the measurement of the whole node."""
    bench = Bench(REAL_CLOCK, count=3, hertz=100.0, period=0.01)
    bench.sampler.start()
    stuck, *others = bench.counters
    try:
        wait_until(lambda: len(bench.knots) > 12)
        stuck.hang.clear()
        wait_until(lambda: bench.sampler._worker.reading == 0)
        bench.sampler._worker.reading_since -= 10.0  # as if it had hung for long
        bench.sampler.isolate_hanging()
        seen = [len(counter.reads) for counter in others]
        wait_until(lambda: all(len(c.reads) > n for c, n in zip(others, seen, strict=True)))
        before = len(stuck.reads)
        stuck.hang.set()
        wait_until(lambda: len(stuck.reads) > before + 1)  # it is read again once it answers
    finally:
        stuck.hang.set()
        bench.sampler.stop()


def test_while_a_caller_waits_for_readings_every_refresh_is_read():
    """Windows that follow each other would wait for boards that refreshed long before their end."""
    clock = VirtualClock()
    board = replace(catalog.board("A100"), counter_period_seconds=0.1)
    gpus = [SimulatedGpu(board, clock, index=index, seed=index) for index in range(8)]
    meter = Meter(gpus, clock=clock).start()
    clock.sleep(2.0)
    meter._sampler.wait(0.0)
    unread = 0
    for _ in range(20):
        meter._sampler.request(clock.now())
        clock.sleep(0.1)
        unread += meter._sampler.next_refresh_seconds <= clock.now()
    assert unread <= 2


def test_only_the_first_of_windows_in_a_row_waits_for_a_reading(real):
    """The energy of a step would take as long as reading all boards, of which one may be slow."""
    real.sampler.start()
    wait_until(lambda: real.tracks[0].timer.period_seconds is not None)
    real.sampler.catch_up(REAL_CLOCK.now(), 0.05)
    real.counters[0].hang.clear()
    try:
        began = time.monotonic()
        real.sampler.catch_up(REAL_CLOCK.now() + 1.0, 60.0)
        assert time.monotonic() - began < 30.0  # the reading under way ends after a minute
    finally:
        real.counters[0].hang.set()


def test_a_driver_that_hangs_is_flagged(real):
    """A figure from before the driver hung would look as good as any."""
    real.sampler.start()
    wait_until(lambda: len(real.knots) > 3)
    real.counters[0].hang.clear()
    wait_until(lambda: real.sampler._worker.reading == 0)
    time.sleep(0.05)
    real.sampler.flag_hanging(REAL_CLOCK.now() + 1.0)
    assert Flag.HANGING in real.tracks[0].flags
