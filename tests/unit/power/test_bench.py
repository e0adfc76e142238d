"""The bench: how long slices are, and what pauses and failures do to them."""

import math

import pytest

from joulery.errors import DeviceError
from joulery.power.messages import Reading, TuningEvent
from joulery.power.rules import Rules
from joulery.power.step_profiler import LEAST_STEPS, StepProfiler


def driven(bench, talk, pace=0.1, watts=200.0):
    """Do what a talk asks for until it ends; the steps it took."""
    bench.reading = reading = Reading(0.0, 0.0, 0.1, 0)
    command = next(talk)
    while True:
        steps = reading.steps + command.steps
        reading = Reading(steps * pace, steps * pace * watts, 0.1, steps)
        try:
            command = talk.send(reading)
        except StopIteration:
            return steps


@pytest.mark.parametrize(
    ("spread", "expected"),
    [(0.1, 5), (0.001, 100), (0.0, 200), (1e-9, 200)],
)
def test_slices_tell_as_much_as_is_known(spread, expected):
    """Shorter ones would be wasted on what is known well, longer ones on what is not."""
    assert StepProfiler(Rules(), 9).slice_steps(0.1, 0.01, spread) == expected


def test_slices_of_long_steps_have_a_few_and_not_many():
    """A slice of minutes would cost more than it tells."""
    bench = StepProfiler(Rules(), 9)
    assert bench.slice_steps(2.0, 0.01, 0.1) == LEAST_STEPS
    assert bench.slice_steps(2.0, 0.01, 1e-6) == 64


def test_measuring_ends_and_counts_its_visits():
    """A slice that lay in one disturbance must be told from one that was repeated."""
    bench = StepProfiler(Rules(), 9)
    driven(bench, bench.measure(20))
    driven(bench, bench.measure(20))
    tally = bench.tally()
    assert tally.visits == 2
    assert tally.steps >= 40
    assert bench.estimates()[9].seconds == pytest.approx(0.1)
    assert bench.estimates()[9].watts == pytest.approx(200.0)


def test_moving_lets_time_pass_before_anything_counts():
    """Power lags behind a new limit."""
    bench = StepProfiler(Rules(), 9)
    bench.pace_seconds = 0.01
    assert driven(bench, bench.move(3), pace=0.01) >= 10
    assert bench.position == 3
    assert not bench.estimates()


def test_failure_ends_the_talk():
    """Without readings every figure would be a guess."""
    bench = StepProfiler(Rules(), 9)
    bench.reading = Reading(0.0, 0.0, 0.1, 0)
    talk = bench.warm_up()
    next(talk)
    with pytest.raises(DeviceError):
        talk.send(Reading(1.0, 0.0, 0.0, 1, TuningEvent.FAILED))
    assert math.isnan(bench.pace_seconds)
