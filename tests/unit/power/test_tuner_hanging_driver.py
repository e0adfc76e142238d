"""Drivers that hang: the loop goes on, and tuning stops in the end."""

import threading
import time

import pytest

from joulery.background import DriverThread
from joulery.objectives import Cost
from joulery.power import LimitKnob, TunerState
from support.training_loop import TrainingLoop, held_here


class ManualClock:
    """A clock for threads that is moved by hand."""

    def __init__(self):
        self.seconds = 0.0

    def now(self):
        """The time that was set."""
        return self.seconds

    wall = now

    def sleep(self, seconds):
        """Move on."""
        self.seconds += seconds


class HangingKnob(LimitKnob):
    """A limit whose driver does not return from one kind of call before it is let go."""

    def __init__(self, devices, hangs):
        super().__init__(devices, held_here)
        self.hangs = hangs
        self.called, self.let_go = threading.Event(), threading.Event()

    def range(self):
        """Hang, then read the limits."""
        self._hang("read")
        return super().range()

    def set_position(self, position, share=1.0):
        """Hang, then set."""
        self._hang("set")
        super().set_position(position, share)

    def _hang(self, call):
        if call == self.hangs:
            self.called.set()
            assert self.let_go.wait(30)


def hung(clock, hangs):
    """A loop whose tuner waits for a driver that hangs, with its knob."""
    loop = TrainingLoop()
    knob = HangingKnob(loop.gpus, hangs)
    tuner = loop.tuner(Cost(0.5, 250.0), knob=knob)
    tuner._clock = clock  # the boards stay on their virtual clock, the tuner works in a thread
    tuner._driver = DriverThread(clock)

    def step():
        clock.seconds = loop.clock.now()
        began = time.thread_time()
        tuner.step()
        assert time.thread_time() - began < 0.005, "nothing is planned in the loop's thread"
        # Virtual time must not outrun the thread.
        while tuner._driver.is_busy and (knob.let_go.is_set() or not knob.called.is_set()):
            time.sleep(1e-4)

    loop.run(step, until=knob.called.is_set)
    return loop, tuner, knob, step


@pytest.mark.parametrize("hangs", ["read", "set"])
def test_steps_go_on_while_a_driver_hangs_and_tuning_goes_on_after_it(hangs):
    """A driver that hangs for seconds would stop training for as long."""
    loop, tuner, knob, step = hung(ManualClock(), hangs)
    before = loop.steps
    loop.run(step, steps=50)  # 5 seconds; each would wait for ever if it waited
    assert loop.steps == before + 50
    assert not knob.let_go.is_set()
    assert tuner.failure is None
    knob.let_go.set()
    loop.run(step, until=lambda: tuner.state is TunerState.HOLDING)
    assert tuner.failure is None
    tuner.close()
    assert loop.limit_watts == 250


@pytest.mark.parametrize("hangs", ["read", "set"])
def test_a_driver_that_never_returns_ends_tuning_and_not_training(monkeypatch, hangs):
    """Training would go on with a tuner that waits for ever, and closing would never end."""
    monkeypatch.setattr("joulery.power._tuner.RELEASE_SECONDS", 3600.0)  # it must not wait
    loop, tuner, knob, step = hung(ManualClock(), hangs)
    released = threading.Event()
    tuner._knob.release = lambda: (LimitKnob.release(knob), released.set())
    loop.run(step, steps=200)
    assert tuner.state is TunerState.STOPPED
    assert "does not return" in str(tuner.failure)
    knob.let_go.set()
    assert released.wait(30)
    assert loop.limit_watts == 250, "restored once the driver answers"


def test_errors_in_the_thread_reach_the_tuner():
    """A refused limit would go unnoticed, and its steps count as measured under it."""
    loop, tuner, knob, step = hung(ManualClock(), "set")
    knob._set = None  # not callable
    tuner.pause()  # answered after what fails, which it must not hide
    knob.let_go.set()
    tuner.resume()
    loop.run(step, steps=300, until=lambda: tuner.state is TunerState.STOPPED)
    assert isinstance(tuner.failure, TypeError)
    assert loop.limit_watts == 250
