"""The real clock and the virtual one."""

import math
import threading
import time

import pytest

from joulery.clock import REAL_CLOCK, Clock, RealClock, VirtualClock
from joulery.errors import InvalidValueError


@pytest.mark.parametrize("clock", [REAL_CLOCK, RealClock(), VirtualClock()])
def test_both_are_clocks(clock):
    """Whatever takes a clock must take either."""
    assert isinstance(clock, Clock)


def test_the_real_clock_is_the_monotonic_one():
    """Durations from the wall clock jump with it."""
    before = time.monotonic()
    assert before <= REAL_CLOCK.now() <= time.monotonic()
    assert abs(REAL_CLOCK.wall() - time.time()) < 5.0


def test_the_real_clock_sleeps():
    """Samplers rely on it to pace themselves; a late loop asks for negative sleep."""
    before = time.monotonic()
    REAL_CLOCK.sleep(-1.0)
    REAL_CLOCK.sleep(0.002)
    assert time.monotonic() - before >= 0.002


def test_virtual_time_moves_only_when_told():
    """Simulations must not depend on how fast the machine is."""
    clock = VirtualClock(start_seconds=5.0, wall_seconds=100.0)
    assert (clock.now(), clock.wall()) == (5.0, 100.0)
    clock.sleep(2.5)
    assert (clock.now(), clock.wall()) == (7.5, 102.5)
    clock.step_wall(-50.0)
    assert (clock.now(), clock.wall()) == (7.5, 52.5)


def test_what_is_due_is_called_in_order_at_its_time():
    """A counter that refreshes late or out of order shows energy that was never used."""
    clock, seen = VirtualClock(), []
    for when in (3.0, 1.0, 2.0, 1.0):
        clock.call_at(when, lambda when=when: seen.append((when, clock.now())))
    clock.sleep(2.0)
    assert seen == [(1.0, 1.0), (1.0, 1.0), (2.0, 2.0)]
    clock.sleep(0.999)
    assert len(seen) == 3
    clock.sleep(0.001)
    assert seen[3:] == [(3.0, 3.0)]


def test_same_moment_first_come_first_served():
    """Callbacks need no order of their own, and keep the one they were given in."""
    clock, seen = VirtualClock(), []
    for name in "cab":
        clock.call_at(1.0, lambda name=name: seen.append(name))
    clock.sleep(1.0)
    assert seen == ["c", "a", "b"]


def test_callbacks_may_schedule_and_sleep():
    """Refreshes reschedule themselves; time must not run backwards under them."""
    clock, seen = VirtualClock(), []

    def again():
        seen.append(clock.now())
        clock.call_at(clock.now() + 1.0, again)

    clock.call_at(1.0, again)
    clock.call_at(1.5, lambda: clock.sleep(5.0))
    clock.sleep(3.0)
    assert seen == sorted(seen)
    assert seen == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert clock.now() == 6.5


def test_what_is_overdue_is_called_without_turning_back():
    """Something scheduled in the past happens now."""
    clock, seen = VirtualClock(10.0), []
    clock.call_at(1.0, lambda: seen.append(clock.now()))
    clock.sleep(0.0)
    assert seen == [10.0]


@pytest.mark.parametrize("seconds", [-1.0, -1e-9, math.nan])
def test_virtual_time_only_moves_forward(seconds):
    """A negative sleep in a simulation is a mistake to be found."""
    with pytest.raises(InvalidValueError, match="sleep") as caught:
        VirtualClock().sleep(seconds)
    assert caught.value.remedy


def test_threads_share_one_virtual_time():
    """Two sleepers at once must each get their time."""
    clock = VirtualClock()
    sleepers = [
        threading.Thread(target=lambda: [clock.sleep(1.0) for _ in range(200)]) for _ in range(4)
    ]
    for sleeper in sleepers:
        sleeper.start()
    for sleeper in sleepers:
        sleeper.join()
    assert clock.now() == 800.0
