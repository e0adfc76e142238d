"""Windows: how they open and close, what they show when, and what they notice."""

import json
import logging
import math
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.metering import Meter
from joulery.metering._measurement import Flag

BOARD = replace(catalog.board("V100"), counter_period_seconds=0.1, power_lag_seconds=0.005)
WORK = catalog.workload("resnet50", BOARD)


class Bench:
    """One board with a meter that has settled, on a virtual clock."""

    def __init__(self, **options):
        self.clock = VirtualClock()
        self.gpu = SimulatedGpu(BOARD, self.clock, seed=5)
        self.meter = Meter([self.gpu], clock=self.clock, **options)
        self.meter.start()
        self.clock.sleep(3.0)

    def work(self, seconds):
        """Keep the board busy."""
        self.gpu.set_load(WORK)
        self.clock.sleep(seconds)
        self.gpu.set_load(None)


@pytest.fixture
def bench():
    """A fresh bench."""
    made = Bench()
    yield made
    made.meter.close()


def test_context_manager_measures_its_block(bench):
    """The plainest use would be wrong."""
    before = bench.gpu.true_joules()
    with bench.meter.window("epoch") as window:
        bench.work(2.0)
    assert window.closed
    assert window.name == "epoch"
    assert window.seconds == pytest.approx(2.0)
    assert window.joules == pytest.approx(bench.gpu.true_joules() - before, rel=0.005)
    assert window.mean_watts == pytest.approx(window.joules / 2.0)
    assert window.peak_watts == pytest.approx(bench.gpu.board.max_limit_watts, rel=0.5)
    assert window.peak_watts >= window.mean_watts
    assert window.devices[0].joules == window.joules
    assert window.provenance.relative_error == window.relative_error


def test_a_block_that_raises_is_measured_and_raises(bench):
    """The meter would swallow errors, or lose what a failed step cost."""
    window = bench.meter.window()

    def fail():
        with window:
            bench.work(1.0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert window.closed
    assert window.joules > 100


def test_decorator_makes_a_window_of_each_call(bench, monkeypatch):
    """Calls would be lumped together, or the function changed."""
    made = []
    fresh = bench.meter.window

    def recorded(name="window"):
        made.append(fresh(name))
        return made[-1]

    monkeypatch.setattr(bench.meter, "window", recorded)

    @bench.meter.window("step")
    def step(seconds, *, factor=1):
        """Do a step."""
        bench.work(seconds)
        return seconds * factor

    made.clear()
    assert step(1.0, factor=3) == 3.0
    assert step(2.0) == 2.0
    assert [window.seconds for window in made] == pytest.approx([1.0, 2.0])
    assert [window.name for window in made] == ["step", "step"]
    assert step.__name__ == "step"
    assert step.__doc__ == "Do a step."


def test_a_decorated_function_may_raise(bench):
    """The meter would swallow errors."""

    @bench.meter.window("step")
    def step():
        raise LookupError

    with pytest.raises(LookupError):
        step()


def test_begin_and_end_by_name(bench):
    """Code without a common block could not be measured."""
    opened = bench.meter.begin("train")
    bench.work(1.0)
    closed = bench.meter.end("train")
    assert closed is opened
    assert closed.seconds == pytest.approx(1.0)


def test_begin_by_name_and_end_by_object_leaves_nothing_behind(bench):
    """A later end by name would close the wrong window."""
    bench.meter.end(bench.meter.begin("train"))
    second = bench.meter.begin("train")
    assert bench.meter.end("train") is second
    assert not bench.meter._open


def test_the_same_name_twice_closes_the_inner_first(bench):
    """Recursive code would mix up its levels."""
    outer = bench.meter.begin("recursion")
    bench.work(1.0)
    inner = bench.meter.begin("recursion")
    bench.work(0.5)
    assert bench.meter.end("recursion") is inner
    assert bench.meter.end("recursion") is outer
    assert inner.seconds == pytest.approx(0.5)
    assert outer.seconds == pytest.approx(1.5)
    assert outer.joules > inner.joules


def test_overlapping_windows_are_independent(bench):
    """Closing one window would cut another short."""
    truth = [bench.gpu.true_joules()]
    first = bench.meter.begin("a")
    bench.work(1.0)
    truth.append(bench.gpu.true_joules())
    second = bench.meter.begin("b")
    bench.work(1.0)
    truth.append(bench.gpu.true_joules())
    bench.meter.end("a")
    bench.clock.sleep(1.0)
    truth.append(bench.gpu.true_joules())
    bench.meter.end("b")
    assert first.joules == pytest.approx(truth[2] - truth[0], rel=0.01)
    assert second.joules == pytest.approx(truth[3] - truth[1], rel=0.01)


def test_figures_of_an_open_window_grow(bench):
    """Progress displays would show nothing, or freeze at the first look."""
    with bench.meter.window() as window:
        bench.work(1.0)
        early = (window.seconds, window.joules)
        bench.work(1.0)
        late = (window.seconds, window.joules)
        assert not window.closed
        assert not window.settled
    assert early[0] == pytest.approx(1.0)
    assert late[0] == pytest.approx(2.0)
    assert late[1] > 1.5 * early[1]
    assert window.joules == pytest.approx(late[1], rel=0.02)


@pytest.mark.parametrize("seconds", [0.03, 0.1, 0.5])
def test_the_first_look_after_closing_decides(bench, seconds):
    """Two readers of one window would see different joules."""
    with bench.meter.window() as window:
        bench.work(seconds)
    first = window.joules
    bench.clock.sleep(1.0)
    assert window.joules == first
    assert window.measurement.joules == first
    assert math.fsum(device.joules for device in window.devices) == pytest.approx(first)
    assert window.measurement is window.measurement


def test_settling_refines(bench):
    """Short windows would stay as uncertain as they were at their end."""
    before = bench.gpu.true_joules()
    with bench.meter.window() as window:
        bench.work(0.1)
    truth = bench.gpu.true_joules() - before
    fresh = window.relative_error
    settled = window.settle()
    assert window.settled
    assert settled.relative_error < fresh
    assert window.joules == settled.joules
    assert abs(settled.joules - truth) <= 2 * settled.relative_error * settled.joules


def test_settling_waits_at_most_a_second(bench):
    """A frozen counter would block the caller for good."""
    with bench.meter.window() as window:
        bench.work(0.1)
    bench.meter.close()
    started = bench.clock.now()
    window.settle()
    assert bench.clock.now() - started <= 1.1


def test_settling_an_open_window_changes_nothing(bench):
    """Waiting inside a window would be charged to it."""
    with bench.meter.window() as window:
        before = bench.clock.now()
        window.settle()
        assert bench.clock.now() == before


def test_a_step_of_the_wall_clock_is_flagged_and_harmless(bench):
    """NTP would stretch or shrink windows."""
    with bench.meter.window() as window:
        bench.work(1.0)
        bench.clock.step_wall(-3600.0)
        bench.work(1.0)
    assert window.seconds == pytest.approx(2.0)
    assert Flag.CLOCK_STEPPED in window.flags
    with bench.meter.window() as calm:
        bench.work(1.0)
    assert Flag.CLOCK_STEPPED not in calm.flags


def test_ending_what_never_began_warns_and_does_not_raise(bench, caplog):
    """A slip in bookkeeping would crash a training run."""
    with caplog.at_level(logging.WARNING, logger="joulery"):
        by_name = bench.meter.end("never")
        by_object = bench.meter.end(bench.meter.window("neither"))
    assert len(caplog.records) == 2
    for window in (by_name, by_object):
        assert math.isnan(window.joules)
        assert math.isnan(window.seconds)
        assert window.flags == {Flag.NEVER_BEGUN}
        assert "not begun" in repr(window)
        json.dumps(window.measurement.to_dict(), allow_nan=False)


def test_ending_twice_warns_and_keeps_the_first_end(bench, caplog):
    """A stray second end would stretch the window."""
    window = bench.meter.begin("step")
    bench.work(1.0)
    bench.meter.end(window)
    bench.work(1.0)
    with caplog.at_level(logging.WARNING, logger="joulery"):
        bench.meter.end(window)
    assert window.seconds == pytest.approx(1.0)
    assert len(caplog.records) == 1


def test_a_window_may_be_used_again(bench):
    """Peaks and figures of the first use would leak into the second."""
    window = bench.meter.window("again")
    with window:
        bench.work(2.0)
    busy = (window.joules, window.peak_watts)
    bench.clock.sleep(0.5)
    with window:
        bench.clock.sleep(2.0)
    assert window.joules < 0.5 * busy[0]
    assert window.peak_watts < 0.5 * busy[1]


def test_the_device_is_synchronized_before_both_edges():
    """Work still queued on the device would fall outside its window."""
    calls = []

    def synchronize():
        calls.append(bench.clock.now())
        bench.clock.sleep(0.25)

    bench = Bench(synchronize=synchronize)
    with bench.meter.window() as window:
        bench.work(1.0)
    assert len(calls) == 2
    assert window.seconds == pytest.approx(1.25)  # the second wait is part of the work


def test_the_peak_is_the_highest_power_between_refreshes(bench):
    """A short burst would be averaged away."""
    with bench.meter.window() as window:
        bench.clock.sleep(2.0)
        bench.work(1.0)
        bench.clock.sleep(2.0)
    bench.gpu.set_load(WORK)
    busy = bench.gpu.steady().watts
    assert window.peak_watts == pytest.approx(busy, rel=0.02)
    assert window.mean_watts < 0.5 * busy


def test_repr_says_what_was_measured(bench):
    """A window in a log would say nothing."""
    with bench.meter.window("epoch") as window:
        assert "open" in repr(window)
        bench.work(1.0)
    text = repr(window)
    assert "epoch" in text
    assert "closed" in text
    assert f"{window.joules:.0f} J ± " in text


def test_a_window_that_has_just_opened_can_be_read():
    """If this fails, `joulery measure --log` ends before the command is run."""
    with Meter() as meter:
        for _ in range(5):
            measured = meter.begin("just opened").measurement
            assert measured.relative_error is None or measured.relative_error >= 0
