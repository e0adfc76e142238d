"""Beliefs over batch sizes: what one shows, the others learn."""

from copy import deepcopy

import numpy as np
import pytest

from joulery.jobs.policies import JobBatch
from joulery.jobs.policies.bayesian._gaussian import CurvePrior
from joulery.testing.workloads import made_up_workload

PRIOR = CurvePrior(
    level=2.0, level_sd=1.0, slope=0.1, slope_sd=0.3, bend=0.05, bend_sd=0.2, local_sd=0.05
)
OCTAVES = np.array([[-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]])


def look(arm, value, sd):
    """One noisy look at one batch size."""
    values, precision = np.zeros((1, 6)), np.zeros((1, 6))
    values[0, arm], precision[0, arm] = value, 1 / sd**2
    return values, precision


def test_prior_follows_level_slope_and_bend():
    """The prior mean is the whole of what is known on the first day."""
    curve = PRIOR.curve(OCTAVES)
    assert curve.mean[0] == pytest.approx(2.0 + 0.1 * OCTAVES[0] + 0.025 * OCTAVES[0] ** 2)


def test_prior_covariance_is_positive_definite():
    """Otherwise variances turn negative and square roots NaN."""
    assert np.linalg.eigvalsh(PRIOR.curve(OCTAVES).covariance[0]).min() > 0


def test_prior_is_less_sure_further_out():
    """Far batch sizes may run away; a prior that reverts to a mean would say they cannot."""
    variance = PRIOR.curve(OCTAVES).variance[0]
    assert variance[2] < variance[3] < variance[4] < variance[5]


def test_a_look_moves_that_batch_size_there():
    """A run at a batch size must settle what is believed of it."""
    after = PRIOR.curve(OCTAVES).given(*look(2, 3.0, 0.01))
    assert after.mean[0, 2] == pytest.approx(3.0, abs=0.01)
    assert after.variance[0, 2] < 0.01**2


def test_neighbours_learn_more_than_strangers():
    """Smoothness is what saves runs; without it every batch size is tried."""
    after = PRIOR.curve(OCTAVES).given(*look(3, 3.0, 0.01))
    assert after.variance[0, 4] < after.variance[0, 5] < PRIOR.curve(OCTAVES).variance[0, 5]


def test_given_equals_textbook_regression():
    """The fast form must agree with the plain one."""
    curve = PRIOR.curve(OCTAVES)
    rng = np.random.default_rng(1)
    values, precision = rng.normal(2, 1, (1, 6)), rng.uniform(1, 50, (1, 6))
    inverse = np.linalg.inv(np.linalg.inv(curve.covariance[0]) + np.diag(precision[0]))
    weighed = np.linalg.inv(curve.covariance[0]) @ curve.mean[0] + precision[0] * values[0]
    after = curve.given(values, precision)
    assert after.covariance[0] == pytest.approx(inverse, abs=1e-9)
    assert after.mean[0] == pytest.approx(inverse @ weighed)


def test_nothing_seen_changes_nothing():
    """Padding and untried batch sizes have no precision and must not pull."""
    curve = PRIOR.curve(OCTAVES)
    after = curve.given(np.full((1, 6), 1e6), np.zeros((1, 6)))
    assert np.array_equal(after.mean, curve.mean)


def test_replace_touches_only_its_lanes():
    """One job's news must not leak into another's beliefs."""
    curve = PRIOR.curve(np.repeat(OCTAVES, 3, axis=0))
    before = deepcopy(curve)
    rows = np.array([1])
    curve.replace(rows, curve.of(rows).given(*look(0, 9.0, 0.1)))
    assert np.array_equal(curve.mean[[0, 2]], before.mean[[0, 2]])
    assert not np.array_equal(curve.mean[1], before.mean[1])


def test_octaves_are_counted_from_the_default():
    """Slopes refer to the default batch size; padding stands at it."""
    loads = [made_up_workload((32, 64, 128), best=64, default=128), made_up_workload()]
    octaves = JobBatch.of([load.job() for load in loads], [1, 2]).octaves
    assert octaves[0].tolist() == [-2.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert octaves[1].tolist() == [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0]
