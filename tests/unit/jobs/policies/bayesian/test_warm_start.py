"""Beliefs that start from what others have shown."""

from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.jobs.policies import BayesianBeliefs, JobBatch, WarmStart
from joulery.jobs.policies.bayesian._beliefs import EPOCHS_PRIOR
from joulery.jobs.policies.bayesian._warm_start import warm_started_curve
from joulery.testing.workloads import made_up_workload

JOBS = JobBatch.of([made_up_workload().job()], [1])  # 16 to 512, default 256
KNOWN = WarmStart((64, 256), (2.0, 3.0), (0.05, 0.05))


def test_what_was_seen_elsewhere_is_believed_here():
    """Epochs do not depend on the GPU; relearning them is the bill of the first weeks."""
    curve = warm_started_curve(EPOCHS_PRIOR, JOBS, KNOWN)
    assert curve.mean[0, [2, 4]] == pytest.approx([2.0, 3.0], abs=0.02)
    assert np.sqrt(curve.variance[0, [2, 4]]) == pytest.approx([0.05, 0.05], rel=0.05)


def test_other_batch_sizes_learn_too():
    """The curve is smooth; what lies between is nearly known."""
    curve, blank = (
        warm_started_curve(EPOCHS_PRIOR, JOBS, KNOWN),
        warm_started_curve(EPOCHS_PRIOR, JOBS, None),
    )
    assert 2.0 < curve.mean[0, 3] < 3.0
    assert curve.variance[0, 3] < 0.1 * blank.variance[0, 3]


def test_batch_sizes_that_the_new_job_lacks_still_inform():
    """Another GPU's memory may allow other sizes."""
    theirs = WarmStart((90, 180), (2.0, 2.5), (0.05, 0.05))
    curve, blank = (
        warm_started_curve(EPOCHS_PRIOR, JOBS, theirs),
        warm_started_curve(EPOCHS_PRIOR, JOBS, None),
    )
    assert curve.variance[0, 3] < 0.1 * blank.variance[0, 3]


def test_an_older_version_carries_its_shape_more_than_its_level():
    """A new version may need more epochs altogether; which batch size is best changes less."""
    curve = warm_started_curve(EPOCHS_PRIOR, JOBS, replace(KNOWN, shift_sd=0.5, shape_sd=0.05))
    level_sd = np.sqrt(curve.variance[0, 4])
    both = curve.covariance[0][np.ix_([2, 4], [2, 4])]
    difference_sd = np.sqrt(both[0, 0] + both[1, 1] - 2 * both[0, 1])
    assert level_sd > 0.3
    assert difference_sd < 0.15


def test_no_warm_start_is_the_prior():
    """None and an empty history must not disturb."""
    blank = warm_started_curve(EPOCHS_PRIOR, JOBS, None)
    empty = warm_started_curve(EPOCHS_PRIOR, JOBS, WarmStart((), (), ()))
    assert np.array_equal(blank.mean, empty.mean)
    assert np.array_equal(blank.covariance, empty.covariance)


def test_evidence_is_handed_on_as_it_is():
    """What a job has shown is its runs, not what was believed of sizes it never ran."""
    beliefs = BayesianBeliefs.start(JOBS)
    row = np.zeros(1, dtype=np.int64)
    for epochs in (8.0, 10.0):
        beliefs.evidence.reach(row, np.array([3]), np.log([epochs]))
    handed = WarmStart.of(beliefs)
    assert handed.batch_sizes == (128,)
    assert handed.log_epochs[0] == pytest.approx(np.log([8.0, 10.0]).mean())


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_sizes": (64,)},
        {"log_epochs": (2.0, float("nan"))},
        {"log_sds": (0.1, -0.1)},
        {"shift_sd": -1.0},
    ],
)
def test_nonsense_is_refused(wrong):
    """A wrong history would mislead a job for weeks."""
    whole = {"batch_sizes": (64, 128), "log_epochs": (2.0, 2.0), "log_sds": (0.1, 0.1)}
    with pytest.raises(InvalidValueError):
        WarmStart(**{**whole, **wrong})
