"""Step time and power of a setting, from stretches good and bad."""

import math

import numpy as np
import pytest

from joulery.power.drift import DriftDetector
from joulery.power.slices import Stretch, Tally, step_noise, undisturbed


def stretch(steps=10, pace=0.1, watts=200.0, sigma=1.0):
    """Some steps at one pace."""
    return Stretch(steps, steps * pace, steps * pace * watts, sigma)


def test_estimate_is_the_mean_of_what_agrees():
    """A stall in one stretch would shift step time and power."""
    tally = Tally([stretch(), stretch(), stretch(pace=0.15, watts=120.0), stretch()])
    found = tally.estimate(0.01)
    assert found.seconds == pytest.approx(0.1)
    assert found.watts == pytest.approx(200.0)
    assert found.steps == 30


def test_two_stretches_cannot_outvote_each_other():
    """Dropping one of two would be a coin toss."""
    assert len(undisturbed([stretch(), stretch(pace=0.2)], 0.01)) == 2


def test_the_fast_ones_count_though_most_are_disturbed():
    """A neighbour that is busy more often than not would otherwise set the pace."""
    disturbed = [stretch(pace=0.18 + 0.01 * n, watts=230.0) for n in range(5)]
    found = Tally([*disturbed, stretch(), stretch(pace=0.1001)]).estimate(0.005)
    assert found.seconds == pytest.approx(0.1, rel=1e-3)
    assert found.watts == pytest.approx(200.0)


def test_noise_alone_loses_no_stretch():
    """Leaving out the slower half of plain noise would make every limit look fast."""
    chance = np.random.default_rng(2)
    paces = 0.1 * np.exp(0.01 * chance.standard_normal(40) / math.sqrt(10))
    assert len(undisturbed([stretch(pace=pace) for pace in paces], 0.01)) == 40


def test_errors_shrink_with_steps_and_time():
    """Slices end by confidence, so the confidence must grow."""
    short = Tally([stretch()] * 3).estimate(0.01)
    long = Tally([stretch()] * 48).estimate(0.01)
    assert long.seconds_error == pytest.approx(short.seconds_error / 4)
    assert long.watts_error < short.watts_error


def test_noise_is_found_within_a_third():
    """Too small a noise makes the tuner rash, too large a one slow."""
    chance = np.random.default_rng(1)
    tallies = [
        Tally([stretch(16, 0.1 * math.exp(0.02 * chance.standard_normal() / 4)) for _ in range(12)])
        for _ in range(4)
    ]
    assert step_noise(tallies) == pytest.approx(0.02, rel=1 / 3)


def test_noise_without_repeats_is_a_cautious_guess():
    """Zero noise would end the first slice at once."""
    assert step_noise([Tally([stretch()])]) == pytest.approx(0.01)


def test_drift_needs_more_than_one_bad_stretch():
    """A single checkpoint must not start a new profile."""
    watch = DriftDetector(0.0, 0.05)
    assert not watch.changed(3.0)
    assert not any(watch.changed(0.0) for _ in range(100))


@pytest.mark.parametrize("shift", [0.08, -0.08])
def test_lasting_change_is_noticed_both_ways(shift):
    """A job that changed for good must be profiled again, slower or faster."""
    watch = DriftDetector(0.0, 0.05)
    assert any(watch.changed(shift) for _ in range(10))
