"""Beliefs: what measurements do to them, and what spread they predict."""

import numpy as np
import pytest

from joulery.prediction.models import (
    Belief,
    krige,
    probe_values,
)


def line(at):
    """Log-predictions of ``exp(a) * x**exp(b)`` at some x."""
    return lambda constants: constants[0] + np.exp(constants[1]) * np.log(at)


PRIOR = Belief.independent(np.array([0.0, 0.0]), np.array([1.0, 0.3]))


def test_measurements_move_the_belief_to_the_truth_and_narrow_it():
    """Calibration would not work if probes changed nothing."""
    at = np.linspace(1, 10, 20)
    truth = np.array([0.7, 0.2])
    after = PRIOR.update(line(at), line(at)(truth), 0.01)
    assert after.mean == pytest.approx(truth, abs=0.02)
    assert (after.deviation < 0.1 * PRIOR.deviation).all()


def test_one_wild_measurement_does_not_bend_the_constants():
    """A single erratic power reading would spoil every prediction."""
    at = np.linspace(1, 10, 20)
    truth = np.array([0.7, 0.2])
    measured = line(at)(truth)
    measured[3] += 5.0
    after = PRIOR.update(line(at), measured, 0.02)
    assert after.mean == pytest.approx(truth, abs=0.1)


def test_without_measurements_of_a_constant_its_belief_stays():
    """Constants that no probe touches must keep their prior."""
    after = PRIOR.update(line(np.ones(5)), np.full(5, 0.4), 0.05)
    assert after.mean[1] == pytest.approx(PRIOR.mean[1], abs=1e-6)
    assert after.deviation[1] == pytest.approx(PRIOR.deviation[1], rel=1e-3)


def test_spread_grows_away_from_the_measurements():
    """An error bar must be wider where nothing was measured."""
    after = PRIOR.update(line(np.array([1.0, 1.2])), np.zeros(2), 0.05)
    near, far = after.spread(line(np.array([1.1, 20.0])))
    assert near < far


def test_the_best_probe_is_the_informative_one():
    """The advisor would send people to measure what they know already."""
    known_scale = Belief.independent(np.zeros(2), np.array([0.01, 0.5]))
    covariance = known_scale.covariance_of(line(np.array([1.0, 10.0, 5.0, 20.0])))
    deviations = probe_values(covariance, [[0], [1]], [2, 3], 0.05)
    assert deviations[1] < 0.5 * deviations[0]


def test_unexplained_parts_are_shared_by_what_is_alike():
    """A measured case would say nothing about its like, or something about everything."""
    like = np.array([[1.0, 0.0], [0.5, 0.0], [0.0, 0.0]])
    shift, narrowed = krige(np.array([0.2, -0.3]), np.eye(2), like, 1e-6)
    assert shift == pytest.approx([0.2, 0.1, 0.0], abs=1e-6)
    assert narrowed == pytest.approx([1.0, 0.25, 0.0], abs=1e-6)
