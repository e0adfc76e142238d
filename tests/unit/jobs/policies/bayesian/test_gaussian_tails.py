"""Tails of the normal distribution."""

import math

import numpy as np
import pytest

from joulery.jobs.policies.bayesian._gaussian import (
    LEAST_CHANCE,
    density,
    hazard,
    log_repeats,
    mean_excess,
    survival,
)

POINTS = np.array([-8.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 8.0, 20.0])


def exact_survival(z):
    """By the standard library."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def test_survival_matches_the_standard_library():
    """A wrong tail makes every chance of reaching the target wrong."""
    assert survival(POINTS) == pytest.approx([exact_survival(z) for z in POINTS], rel=3e-7)


def test_density_at_zero_and_one():
    """Expected gains of measuring depend on it."""
    assert density(np.array([0.0, 1.0])) == pytest.approx([0.3989422804, 0.2419707245])


def test_hazard_is_density_over_survival():
    """What a stopped run says about its batch size is this ratio."""
    body = POINTS[(POINTS > -6) & (POINTS < 9)]
    expected = [math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / exact_survival(z) for z in body]
    assert hazard(body) == pytest.approx(expected, rel=1e-6)


def test_hazard_far_out_does_not_overflow():
    """A run stopped forty deviations late must not turn beliefs into NaN."""
    far = hazard(np.array([40.0, 300.0]))
    assert far == pytest.approx([40.0, 300.0], rel=1e-2)
    assert hazard(np.array([-50.0]))[0] == pytest.approx(0.0, abs=1e-6)


def test_mean_excess_is_read_exactly_enough():
    """What measuring a limit may save is compared with what it costs by this."""
    z = np.linspace(0.0, 12.0, 4001)
    exact = density(z) - z * survival(z)
    assert mean_excess(z) == pytest.approx(exact, abs=5e-7)


def test_repeats_are_one_over_the_chance():
    """A batch size that fails half the time costs twice; one that always fails is not infinite."""
    z = np.linspace(-9.0, 12.0, 5001)
    exact = -np.log(np.maximum(1.0 - survival(z), LEAST_CHANCE))
    smooth = np.abs(z + 3.09) > 0.01  # where the least chance takes over
    assert log_repeats(z[smooth]) == pytest.approx(exact[smooth], abs=1e-6)
    assert log_repeats(z) == pytest.approx(exact, abs=2e-3)
    assert np.exp(log_repeats(np.zeros(1))) == pytest.approx([2.0])
