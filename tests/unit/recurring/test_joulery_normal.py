"""Tails of the normal distribution."""

import math

import numpy as np
import pytest

from joulery.recurring.normal import density, hazard, survival

POINTS = np.array([-8.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 8.0, 20.0])


def exact_survival(z):
    """By the standard library."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def test_survival_matches_the_standard_library():
    """A wrong tail makes every chance of reaching the target wrong."""
    assert survival(POINTS) == pytest.approx([exact_survival(z) for z in POINTS], rel=3e-7)


def test_density_at_zero_and_one():
    """Expected gains of measuring hang on it."""
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
