"""Periodic calls, on threads and on virtual clocks."""

import gc
import threading

import pytest

from joulery.background import DriverThread, PeriodicTask, driver_result
from joulery.clock import VirtualClock
from joulery.errors import DeviceError


class Owner:
    """An object whose method is called."""

    def __init__(self):
        self.calls = 0
        self.called = threading.Event()

    def call(self):
        """Count a call."""
        self.calls += 1
        self.called.set()


def test_a_virtual_clock_makes_the_calls():
    """Simulated runs would not be sampled."""
    clock, owner = VirtualClock(), Owner()
    task = PeriodicTask(owner.call, seconds=1.0, clock=clock)
    task.start()
    clock.sleep(3.5)
    assert owner.calls == 3
    assert not task.is_threaded


def test_the_function_chooses_its_next_call():
    """A sampler could not follow the counters' refreshes."""
    clock, seen = VirtualClock(), []

    def call():
        seen.append(clock.now())
        return 2.0 * len(seen)

    PeriodicTask(call, seconds=1.0, clock=clock).start()
    clock.sleep(8.0)
    assert seen == [1.0, 3.0, 7.0]


@pytest.mark.parametrize("end", ["stop", "collect"])
def test_it_ends_when_stopped_and_with_its_object(end):
    """A meter that is not used any more would be sampled for ever."""
    clock, owner = VirtualClock(), Owner()
    task = PeriodicTask(owner.call, seconds=1.0, clock=clock)
    task.start()
    clock.sleep(1.0)
    if end == "stop":
        task.stop()
        clock.sleep(5.0)
        assert owner.calls == 1
    else:
        del owner
        gc.collect()
        clock.sleep(5.0)
        assert clock._due == []


def test_a_thread_makes_the_calls_and_ends():
    """Real runs would not be sampled, or their threads would pile up."""
    owner = Owner()
    task = PeriodicTask(owner.call, seconds=0.001, name="joulery-test")
    task.start()
    assert task.is_threaded
    assert owner.called.wait(60.0)
    task.stop(60.0)
    assert "joulery-test" not in {thread.name for thread in threading.enumerate()}


def test_waking_makes_the_next_call_at_once():
    """A closing window would wait for the next regular look."""
    owner = Owner()
    task = PeriodicTask(owner.call, seconds=3600.0)
    task.start()
    task.wake()
    assert owner.called.wait(60.0)
    task.stop(60.0)


def test_a_call_may_stop_its_own_task():
    """A thread would wait for itself."""
    done = threading.Event()

    def call():
        task.stop()
        done.set()

    task = PeriodicTask(call, seconds=0.001)
    task.start()
    assert done.wait(60.0)


def test_driver_calls_are_made_in_order_and_the_last_one_ends_the_thread():
    """A limit would be restored before the change that was still waiting."""
    seen, thread = [], DriverThread()
    for number in range(3):
        thread.submit(lambda number=number: seen.append((number, threading.current_thread())))
    thread.close(lambda: seen.append((3, threading.current_thread())), wait_seconds=30)
    assert [number for number, _ in seen] == [0, 1, 2, 3]
    assert {worker for _, worker in seen} != {threading.current_thread()}
    seen[0][1].join(30)
    assert not seen[0][1].is_alive()


def test_a_driver_that_hangs_is_given_up(monkeypatch):
    """A job would wait for a broken driver for ever."""
    monkeypatch.setattr("joulery.background.DRIVER_SECONDS", 0.01)
    let_go = threading.Event()
    with pytest.raises(DeviceError, match="does not return"):
        driver_result(lambda: let_go.wait(30))
    let_go.set()
    with pytest.raises(ZeroDivisionError):
        driver_result(lambda: 1 / 0, VirtualClock())
