"""Drivers that hang while a knob is set: the loop goes on, and tuning stops in the end."""

import threading

import pytest

from joulery.objectives import Cost
from joulery.power import LimitKnob, TunerState
from joulery.power._knobs import KnobSetter
from joulery.testing.training import TrainingLoop, held_here


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
    """A limit whose driver does not return before it is let go."""

    def __init__(self, devices):
        super().__init__(devices, held_here)
        self.called, self.let_go = threading.Event(), threading.Event()

    def set_position(self, position):
        """Hang, then set."""
        self.called.set()
        assert self.let_go.wait(30)
        super().set_position(position)


def hung(clock):
    """A loop whose tuner waits for a driver that hangs, with its knob."""
    loop = TrainingLoop()
    knob = HangingKnob(loop.gpus)
    tuner = loop.tuner(Cost(0.5, 250.0), knob=knob)
    tuner._clock = clock  # the boards stay on their virtual clock, the tuner waits in a thread
    tuner._setter = KnobSetter(knob, clock)

    def step():
        clock.seconds = loop.clock.now()
        tuner.step()
        if knob.let_go.is_set() and tuner._setter.is_busy:
            tuner._setter._latest.result(30)  # virtual time must not outrun the thread

    loop.run(step, until=knob.called.is_set)
    return loop, tuner, knob, step


def test_steps_go_on_while_a_driver_hangs_and_tuning_goes_on_after_it():
    """A driver that hangs for seconds would stop training for as long."""
    loop, tuner, knob, step = hung(ManualClock())
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


def test_a_driver_that_never_returns_ends_tuning_and_not_training(monkeypatch):
    """Training would go on with a tuner that waits for ever, and closing would never end."""
    monkeypatch.setattr("joulery.power._knobs._RELEASE_SECONDS", 3600.0)  # it must not wait
    loop, tuner, knob, step = hung(ManualClock())
    loop.run(step, steps=200)
    assert tuner.state is TunerState.STOPPED
    assert "does not return" in str(tuner.failure)
    knob.let_go.set()
    thread = tuner._setter._thread
    if thread is not None:
        thread.join(30)
    assert loop.limit_watts == 250, "restored once the driver answers"


def test_errors_in_the_thread_reach_the_tuner():
    """A refused limit would go unnoticed, and its steps count as measured under it."""

    class Refusing:
        def set_position(self, position):
            raise ValueError(position)

        def release(self):
            pass

    setter = KnobSetter(Refusing(), ManualClock())
    setter.set(3)
    with pytest.raises(ValueError, match="3"):
        setter._latest.result(30)
    assert isinstance(setter.failure, ValueError)
    setter.release()
