"""Actions and outcomes as stored documents, and back, exactly."""

import json
import math

import numpy as np
import pytest

from joulery.jobs import Job, Measured, Outcome
from joulery.jobs._replay import action_document, actions_from, outcome_document, outcomes_from
from joulery.jobs.policies import ActionKind, Actions, RunEnd
from joulery.objectives import Cost
from joulery.testing.policy_contract import assert_identical

JOB = Job("job", (8, 16), 8, Cost(0.5, 300.0), limits_watts=(100.0, 200.0))
FREE = Job("job", (8, 16), 8, Cost(0.5, 300.0))


def actions(kind=ActionKind.TRAIN, limit=1, ceiling=0.1 + 0.2, probe_limits=None):
    """One action."""
    return Actions(
        kind=np.array([kind], dtype=np.int64),
        arm=np.array([1]),
        limit=np.array([limit]),
        ceiling=np.array([ceiling]),
        reason=np.array([2]),
        probe_limits=probe_limits,
    )


@pytest.mark.parametrize("ceiling", [0.1 + 0.2, 5e-324, 1.7976931348623157e308, math.inf])
@pytest.mark.parametrize("wanted", [None, [[True, False]]])
def test_actions_come_back_bit_for_bit(ceiling, wanted):
    """Rebuilt beliefs would differ in the last bit, and one day in a decision."""
    given = actions(ceiling=ceiling, probe_limits=None if wanted is None else np.array(wanted))
    document = json.loads(json.dumps(action_document(given, JOB), allow_nan=False))
    assert_identical(actions_from(document), given)


def test_actions_say_what_they_mean_in_watts():
    """A worker knows limits in watts, not by their place in a list."""
    document = action_document(actions(probe_limits=np.array([[True, False]])), JOB)
    assert (document["batch_size"], document["power_limit_watts"]) == (16, 200.0)
    assert document["probe_limits_watts"] == [100.0]
    assert action_document(actions(limit=-1), JOB)["probe_limits_watts"] == [100.0, 200.0]
    assert action_document(actions(limit=1), JOB)["probe_limits_watts"] == []
    assert action_document(actions(ActionKind.PROBE, 1), JOB)["probe_limits_watts"] == [
        100.0,
        200.0,
    ]
    alone = action_document(actions(limit=0, probe_limits=np.array([[True]])), FREE)
    assert (alone["power_limit_watts"], alone["probe_limits_watts"]) == (None, [])


def learned(outcome, job=JOB, kind=ActionKind.TRAIN):
    """What a policy is told."""
    action = action_document(actions(kind), job)
    return outcomes_from(json.loads(json.dumps(outcome_document(outcome, job, action, 7))))


def test_outcomes_are_told_with_their_cost():
    """The cost is the service's to compute; clients do not get to name it."""
    measured = (Measured(100.3, 80.0, 6e3, 0.02), Measured(150.0, 1.0, 1.0, 0.02))
    told = learned(Outcome(RunEnd.REACHED, 3, 100.0, 5000.0, 199.8, measured))
    assert (told.recurrence[0], told.arm[0], told.limit[0], told.end[0]) == (
        7,
        1,
        1,
        RunEnd.REACHED,
    )
    assert told.cost[0] == 0.5 * 5000.0 + 0.5 * 300.0 * 100.0
    # 150 W is none of the job's limits; nothing is learned of it.
    assert np.array_equal(told.epoch_seconds, [[80.0, np.nan]], equal_nan=True)
    assert np.array_equal(told.epoch_joules, [[6e3, np.nan]], equal_nan=True)
    assert np.array_equal(told.relative_error, [[0.02, np.nan]], equal_nan=True)


def test_limits_that_were_not_held_are_unknown():
    """Figures would be booked under a limit that nobody held."""
    assert learned(Outcome(RunEnd.STOPPED, 3, 100.0, 5000.0, None)).limit[0] == -1
    assert learned(Outcome(RunEnd.STOPPED, 3, 100.0, 5000.0, 150.0)).limit[0] == -1
    assert (
        learned(Outcome(RunEnd.PROBED, 0, 1.0, 50.0, 200.0), kind=ActionKind.PROBE).limit[0] == -1
    )
    free = Outcome(RunEnd.REACHED, 3, 100.0, 5000.0, None, (Measured(None, 9.0, 8.0, 0.1),))
    told = learned(free, FREE)
    assert (told.limit[0], told.epoch_seconds.tolist()) == (0, [[9.0]])


def test_of_silence_nothing_is_known():
    """A zero would pass for a measurement."""
    told = learned(None)
    assert told.end[0] == RunEnd.ABANDONED
    for figure in (told.epochs, told.seconds, told.joules, told.cost, told.epoch_seconds):
        assert np.isnan(figure).all()


def test_nobody_measures_better_than_possible():
    """A client that claims exact figures would outweigh all others for good."""
    boast = Measured(100.0, 10.0, 1000.0, 1e-9)
    told = learned(Outcome(RunEnd.REACHED, 20.0, 200.0, 20000.0, 100.0, (boast,)))
    assert np.nanmin(told.relative_error) == 0.005
