"""Jobs and objectives survive being stored."""

import dataclasses
import json

import pytest
from msgspec import structs

from joulery import objectives
from joulery.errors import InvalidValueError
from joulery.jobs import Job
from joulery.jobs._job_registry import _warm_start_from, job_from, policy_from
from joulery.jobs.policies import WarmStart
from joulery.objectives import Cost
from joulery.storage import JobRecord

JOB = Job("job", (8, 16), 16, Cost(0.25, 300.5), max_epochs=7, limits_watts=(100.0, 200.5))
INHERITANCE = WarmStart((8, 16), (1.5, 0.1 + 0.2), (0.1, 0.2), 0.3, 0.1)


@pytest.mark.parametrize(
    "objective",
    [
        None,
        Cost(1.0),
        objectives.LeastEnergy(max_slowdown=0.05),
        objectives.LeastEnergy(deadline_seconds=3600.0),
        objectives.FastestWithin(1e6),
        objectives.EnergyDelayProduct(),
        objectives.EnergyDelaySum(2.0),
        objectives.LeastCarbon(400.0, deadline_seconds=60.0),
        objectives.LeastMoney(0.3, 2.0),
    ],
)
def test_a_job_comes_back_the_same(objective):
    """A restart would minimise something else."""
    job = structs.replace(JOB, objective=objective)
    document = json.loads(json.dumps(job.to_document(), allow_nan=False))
    assert job_from(JobRecord("team", "job", document, "joulery", {}, 1)) == job


def test_what_cannot_be_stored_is_refused():
    """It would be lost without a word."""

    class Forecast:
        def mean(self, start_seconds, end_seconds):
            return 1.0

    job = structs.replace(JOB, objective=objectives.LeastCarbon(Forecast()))
    with pytest.raises(InvalidValueError, match="Forecast"):
        job.to_document()


def test_a_policy_is_made_with_its_parameters():
    """Options that the owner gave would be forgotten."""
    stored = JobRecord("team", "job", JOB.to_document(), "zeus", {"beta": 3.0, "window": 10}, 1)
    policy = policy_from(stored, JOB)
    assert (policy.beta, policy.window) == (3.0, 10)


@pytest.mark.parametrize(
    ("policy", "parameters"),
    [
        ("zeus", {"betta": 3.0}),
        ("zeus", {"name": 3.0}),
        ("zeus", {"\ud800" * 50: 3.0}),
        ("joulery", {"beta": 2.0}),
        ("joulery", {"objective": 1.0}),
        ("joulery", {"warm_start": 1.0}),
        ("default", {"window": 5}),
    ],
)
def test_unknown_parameters_are_refused(policy, parameters):
    """A misspelt parameter would be ignored, and the policy run with its default."""
    with pytest.raises(InvalidValueError, match=f"{policy} takes no parameter"):
        policy_from(JobRecord("team", "job", JOB.to_document(), policy, parameters, 1), JOB)


@pytest.mark.parametrize("window", [1.5, -1, 10**15])
def test_a_window_that_cannot_be_kept_is_refused(window):
    """One job would take all of the memory."""
    with pytest.raises(InvalidValueError, match="window"):
        policy_from(JobRecord("team", "job", JOB.to_document(), "zeus", {"window": window}, 1), JOB)


def test_inheritance_comes_back_the_same():
    """An heir would start from other beliefs after each restart."""
    document = json.loads(json.dumps(dataclasses.asdict(INHERITANCE)))
    assert _warm_start_from(document) == INHERITANCE
    stored = JobRecord("team", "job", JOB.to_document(), "joulery", {"inherited": document}, 1)
    assert policy_from(stored, JOB).warm_start == INHERITANCE
