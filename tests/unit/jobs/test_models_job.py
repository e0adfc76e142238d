"""What a recurring job allows, and the jobs made of it."""

import math

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.jobs import Job
from joulery.jobs.policies import JobBatch
from joulery.objectives import Cost

COST = Cost(0.5, 250.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_sizes": ()},
        {"batch_sizes": (0, 64)},
        {"batch_sizes": (64, 32)},
        {"batch_sizes": (64, 64)},
        {"batch_sizes": (32.0, 64)},
        {"default": 48},
        {"max_epochs": 0},
        {"limits_watts": (200.0, 100.0)},
        {"limits_watts": (math.nan,)},
    ],
)
def test_nonsense_is_refused(wrong):
    """A set that no policy can work on is refused before the first run."""
    good = {"name": "job", "batch_sizes": (32, 64), "default": 64, "cost": COST}
    with pytest.raises(InvalidValueError, match="job"):
        Job(**(good | wrong))


def test_jobs_are_padded():
    """Jobs of different size stand side by side, padding marked."""
    jobs = [
        Job("small", (32, 64), 64, COST, limits_watts=(100.0,)),
        Job("large", (8, 16, 32), 8, COST, max_epochs=7, limits_watts=(100.0, 250.0)),
        Job("free", (8,), 8, COST),
    ]
    jobs = JobBatch.of(jobs, [1, 2, -3])
    assert jobs.valid.tolist() == [[True, True, False], [True] * 3, [True, False, False]]
    assert jobs.default.tolist() == [1, 0, 0]
    assert np.isnan(jobs.limits_watts).tolist() == [[False, True], [False, False], [True, True]]
    assert jobs.max_epochs.tolist() == [100, 7, 100]
    assert len(jobs) == 3


def test_cost_is_that_of_the_objective():
    """A batch weighs time and energy as the job's own cost does."""
    jobs = JobBatch.of([Job("job", (32,), 32, Cost(0.3, 200.0))], [1])
    weighed = jobs.joule_weight[0] * 20.0 + jobs.second_weight[0] * 3.0
    assert weighed == pytest.approx(Cost(0.3, 200.0).of(3.0, 20.0))
