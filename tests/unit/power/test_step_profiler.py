"""Steps at one setting: how long slices are, what disturbs them, and what pauses do to them."""

import math

import numpy as np
import pytest

from joulery.power import Reading
from joulery.power._state_machine import DriftDetector
from joulery.power._step_profiler import (
    LEAST_STEPS,
    NO_STALLS,
    Slice,
    Stalls,
    StepProfiler,
    StepSample,
    drop_disturbed,
    step_noise,
)


def sample(steps=10, pace=0.1, watts=200.0, sigma=1.0):
    """Some steps at one pace."""
    return StepSample(steps, steps * pace, steps * pace * watts, sigma)


def test_estimate_is_the_mean_of_what_agrees():
    """A stall in one sample would shift step time and power."""
    samples = Slice(9, [sample(), sample(), sample(pace=0.15, watts=120.0), sample()])
    estimate = samples.estimate(0.01)
    assert estimate.seconds == pytest.approx(0.1)
    assert estimate.watts == pytest.approx(200.0)
    assert estimate.steps == 30


def test_two_samples_cannot_outvote_each_other():
    """Dropping one of two would be a coin toss."""
    assert len(drop_disturbed([sample(), sample(pace=0.2)], 0.01)) == 2


def test_the_fast_ones_count_though_most_are_disturbed():
    """Another process that is busy more often than not would otherwise set the pace."""
    disturbed = [sample(pace=0.18 + 0.01 * n, watts=230.0) for n in range(5)]
    estimate = Slice(9, [*disturbed, sample(), sample(pace=0.1001)]).estimate(0.005)
    assert estimate.seconds == pytest.approx(0.1, rel=1e-3)
    assert estimate.watts == pytest.approx(200.0)


def test_noise_alone_loses_no_sample():
    """Leaving out the slower half of plain noise would make every limit look fast."""
    chance = np.random.default_rng(2)
    paces = 0.1 * np.exp(0.01 * chance.standard_normal(40) / math.sqrt(10))
    assert len(drop_disturbed([sample(pace=pace) for pace in paces], 0.01)) == 40


def test_errors_shrink_with_steps_and_time():
    """Slices end by confidence, so the confidence must grow."""
    short = Slice(9, [sample()] * 3).estimate(0.01)
    long = Slice(9, [sample()] * 48).estimate(0.01)
    assert long.seconds_error == pytest.approx(short.seconds_error / 4)
    assert long.watts_error < short.watts_error


def test_noise_is_found_within_a_third():
    """Too small a noise makes the tuner rash, too large a one slow."""
    chance = np.random.default_rng(1)
    settings = [
        Slice(
            9, [sample(16, 0.1 * math.exp(0.02 * chance.standard_normal() / 4)) for _ in range(12)]
        )
        for _ in range(4)
    ]
    assert step_noise(settings) == pytest.approx(0.02, rel=1 / 3)


def test_noise_without_repeats_is_a_cautious_guess():
    """Zero noise would end the first slice at once."""
    assert step_noise([Slice(9, [sample()])]) == pytest.approx(0.01)


def test_a_job_that_gets_slower_is_not_a_noisy_one():
    """Slices of a job that drifts would count for nothing, and no limit be safe under a bound."""
    slower = Slice(9, [sample(pace=0.1 * math.exp(0.005 * number)) for number in range(40)])
    assert step_noise([slower]) < 0.02


CALM = Slice(9, [sample()] * 8).estimate(0.001)


def stalled(waiting_seconds, watts, count=60):
    """Every third sample takes longer, at some power."""
    extra = [waiting_seconds * (number % 3 == 0) for number in range(count)]
    return [StepSample(10, 1.0 + more, 200.0 + watts * more, 1.0) for more in extra]


def test_stalls_count_in_the_time_of_a_job():
    """A bound on the job's time would be one on the steps between its stalls."""
    stalls = Stalls()
    stalls.add(stalled(0.9, 60.0), CALM)
    waiting = stalls.per_step()
    assert 0.6 * 0.03 < waiting.seconds < 0.03  # sure of less than there is
    assert waiting.joules == pytest.approx(60.0 * waiting.seconds, rel=0.05)
    estimate = waiting.added_to(CALM)
    assert estimate.seconds == pytest.approx(0.1 + waiting.seconds)
    assert estimate.seconds * estimate.watts == pytest.approx(20.0 + waiting.joules)


@pytest.mark.parametrize(
    "samples",
    [
        stalled(0.9, 200.0),  # longer steps, or the work of another process
        stalled(0.3, -100.0),  # a hot board
        stalled(0.9, 60.0, count=4),  # too few to tell
        [sample()] * 60,
    ],
)
def test_what_a_limit_may_stretch_is_no_stall(samples):
    """A bound would be broken by time that was taken for waiting."""
    stalls = Stalls()
    stalls.add(samples, CALM)
    assert stalls.per_step() == NO_STALLS


def test_drift_needs_more_than_one_bad_sample():
    """A single checkpoint must not start a new profile."""
    watch = DriftDetector(0.0, 0.05)
    assert not watch.changed(3.0)
    assert not any(watch.changed(0.0) for _ in range(100))


@pytest.mark.parametrize("shift", [0.08, -0.08])
def test_lasting_change_is_noticed_both_ways(shift):
    """A job that changed for good must be profiled again, slower or faster."""
    watch = DriftDetector(0.0, 0.05)
    assert any(watch.changed(shift) for _ in range(10))


def driven(profiler, procedure, pace=0.1, watts=200.0):
    """Do what a procedure asks for until it ends; the steps it took."""
    profiler.reading = reading = Reading(0.0, 0.0, 0.1, 0)
    command = next(procedure)
    while True:
        steps = reading.steps + command.steps
        reading = Reading(steps * pace, steps * pace * watts, 0.1, steps)
        try:
            command = procedure.send(reading)
        except StopIteration:
            return steps


@pytest.mark.parametrize(
    ("spread", "expected"),
    [(0.1, 4), (0.002, 25), (0.0, 40), (1e-9, 40)],
)
def test_slices_tell_as_much_as_is_known(spread, expected):
    """Shorter ones would be wasted on what is known well, longer ones on what is not."""
    assert StepProfiler(9).slice_steps(0.1, 0.01, spread) == expected


def test_slices_of_long_steps_have_a_few_and_not_many():
    """A slice of minutes would cost more than it tells."""
    profiler = StepProfiler(9)
    assert profiler.slice_steps(2.0, 0.01, 0.1) == LEAST_STEPS
    assert profiler.slice_steps(2.0, 0.01, 1e-6) == 12


def test_measuring_ends_and_counts_its_visits():
    """A slice that lay in one disturbance must be reported from one that was repeated."""
    profiler = StepProfiler(9)
    driven(profiler, profiler.measure(20))
    driven(profiler, profiler.measure(20))
    assert profiler.visits(9) == 2
    assert sum(sample.steps for part in profiler.slices for sample in part.samples) >= 40
    assert profiler.estimates()[9].seconds == pytest.approx(0.1)
    assert profiler.estimates()[9].watts == pytest.approx(200.0)


def test_a_long_slice_is_made_of_short_samples():
    """A burst of another process would vanish in a sample of many seconds, and bias it."""
    profiler = StepProfiler(9)
    driven(profiler, profiler.measure(300))
    longest = max(sample.seconds for sample in profiler.slices[0].samples)
    assert longest < 1.2, "a second, and the step under way"


def test_moving_lets_time_pass_before_anything_counts():
    """Power lags behind a new limit."""
    profiler = StepProfiler(9)
    profiler.pace_seconds = 0.01
    assert driven(profiler, profiler.move(3), pace=0.01) >= 10
    assert profiler.position == 3
    assert not profiler.estimates()


def test_a_hot_board_is_not_measured_unless_it_stays_hot():
    """A reference that was measured hot makes every limit look harmless."""

    def measured(hot_until, pace=1.0):
        profiler, now, steps = StepProfiler(9), 0.0, 0
        profiler.pace_seconds = pace
        procedure = profiler.measure(5)
        command = next(procedure, None)
        while command is not None:
            now, steps = now + pace * command.steps, steps + command.steps
            hot = now <= hot_until
            try:
                command = procedure.send(Reading(now, 200.0 * now, 0.1, steps, hot=hot))
            except StopIteration:
                break
        return profiler.slices[0].samples

    assert measured(hot_until=50.0)[0].end_seconds == 51.0
    assert 500 < measured(hot_until=math.inf)[0].end_seconds < 700, "the job as it is"
