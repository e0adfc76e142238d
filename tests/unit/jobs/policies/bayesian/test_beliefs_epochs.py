"""What is known of epochs at batch sizes and limits."""

import dataclasses

import numpy as np
import pytest

from joulery.jobs.policies import ActionKind, BayesianBeliefs, JobBatch, Outcomes, RunEnd
from joulery.jobs.policies.bayesian._limits import TRANSFER_SD
from joulery.testing.workloads import made_up_workload

ROW = np.zeros(1, dtype=np.int64)
LOAD = made_up_workload()


def arm(number):
    """As an array."""
    return np.array([number])


def profiles():
    """Of one job, nothing measured."""
    return BayesianBeliefs.start(JobBatch.of([LOAD.job()], [1])).profiles


def measured(number, limits, factor=1.0, error=0.02):
    """A probe of some limits of one batch size, off by a factor."""
    blank = np.full((1, 4), np.nan)
    seconds, joules = blank.copy(), blank.copy()
    seconds[0, limits] = factor * LOAD.epoch_seconds[number, limits]
    joules[0, limits] = factor * LOAD.epoch_joules[number, limits]
    one = np.ones(1)
    return Outcomes(
        job=ROW,
        recurrence=ROW,
        kind=np.array([ActionKind.PROBE]),
        arm=arm(number),
        limit=np.array([-1]),
        end=np.array([RunEnd.PROBED]),
        epochs=0 * one,
        seconds=one,
        joules=one,
        cost=one,
        epoch_seconds=seconds,
        epoch_joules=joules,
        relative_error=np.where(np.isfinite(seconds), error, np.nan),
    )


def test_measurements_are_averaged_by_precision():
    """Ten noisy slices are as good as one long one; a long one outweighs a slice."""
    kept = profiles()
    kept.learn(measured(2, [1], factor=1.10, error=0.02))
    kept.learn(measured(2, [1], factor=1.00, error=0.01))
    log_seconds, _, variance = kept.believed(ROW, arm(2))
    expected = np.log(LOAD.epoch_seconds[2, 1]) + 0.2 * np.log(1.10)
    assert log_seconds[0, 1] == pytest.approx(expected)
    assert variance[0, 1] == pytest.approx(1 / (1 / 0.02**2 + 1 / 0.01**2))


def test_unmeasured_limits_are_taken_over_at_ones_own_level():
    """One probe of one limit must do for a batch size that may never be trained."""
    kept = profiles()
    kept.learn(measured(4, [0, 1, 2, 3]))
    kept.learn(measured(2, [3]))
    log_seconds, log_watts, variance = kept.believed(ROW, arm(2))
    assert np.exp(log_seconds[0]) == pytest.approx(LOAD.epoch_seconds[2], rel=0.05)
    assert np.exp(log_watts[0]) == pytest.approx(LOAD.watts[2], rel=0.05)
    assert (variance[0, :3] > TRANSFER_SD**2).all()
    assert variance[0, 3] == pytest.approx(0.02**2)


def test_the_nearest_lends():
    """Limits act alike on batch sizes that load the board alike."""
    kept = profiles()
    for number in (0, 4):
        kept.learn(measured(number, [0, 1, 2, 3]))
    assert kept.nearest_compared(ROW.repeat(3), np.array([0, 1, 5])).tolist() == [0, 0, 4]


def test_a_partial_profile_still_hears_of_other_limits():
    """Limits that were not worth measuring at first may be the best in the end."""
    kept = profiles()
    kept.learn(measured(4, [0, 1, 2, 3]))
    kept.learn(measured(2, [2, 3]))
    log_seconds, _, variance = kept.believed(ROW, arm(2))
    assert np.isfinite(log_seconds).all()
    assert (variance[0, :2] > variance[0, 2:].max()).all()


def test_nothing_measured_is_said_to_be_nothing():
    """Unknown must never look like zero."""
    kept = profiles()
    log_seconds, _, variance = kept.believed(ROW, arm(2))
    assert np.isnan(log_seconds).all()
    assert np.isinf(variance).all()
    assert not kept.measured(ROW).any()


def test_cheapest_is_the_best_limit():
    """Batch sizes are compared at their best limits."""
    kept = profiles()
    kept.learn(measured(2, [0, 1, 2, 3]))
    value, variance = kept.cheapest(ROW, arm(2))
    assert np.exp(value[0]) == pytest.approx(LOAD.epoch_cost().min(axis=1)[2])
    assert variance[0] == pytest.approx(0.02**2)


def test_cheapest_from_one_probe_is_less_sure():
    """Its best limit is a guess."""
    kept = profiles()
    kept.learn(measured(4, [0, 1, 2, 3]))
    kept.learn(measured(2, [3]))
    value, variance = kept.cheapest(ROW, arm(2))
    assert np.exp(value[0]) == pytest.approx(LOAD.epoch_cost().min(axis=1)[2], rel=0.05)
    assert variance[0] == pytest.approx(0.02**2 + TRANSFER_SD**2)


def test_blank_outcomes_change_nothing():
    """An abandoned run reports NaN."""
    kept = profiles()
    kept.learn(measured(2, [0, 1]))
    before = [kept.logs.copy(), kept.precision.copy()]
    blank = np.full((1, 4), np.nan)
    kept.learn(
        dataclasses.replace(
            measured(2, [0]), epoch_seconds=blank, epoch_joules=blank, relative_error=blank
        )
    )
    for old, new in zip(before, (kept.logs, kept.precision), strict=True):
        assert np.array_equal(old, new, equal_nan=True)
