"""What the desk makes of a policy's choice."""

import dataclasses
import math

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.jobs.grants import (
    granted,
    only_granted,
    reason_beside,
    reason_granted,
)
from joulery.jobs.job import Job
from joulery.jobs.policies.base import ActionKind, Actions
from joulery.jobs.report_filter import ReportFilter
from joulery.objectives import Cost

JOB = Job("job", (8, 16), 8, Cost(0.5, 300.0), limits_watts=(100.0, 200.0))
HISTORY = ReportFilter(JOB, costs={0: [900.0, 1000.0, 5000.0], 1: [1500.0]})


def chosen(kind=ActionKind.PROBE, wanted=((True, False),), ceiling=math.inf):
    """One action on the larger batch size."""
    return Actions(
        kind=np.array([int(kind)]),
        arm=np.array([1]),
        limit=np.array([-1]),
        ceiling=np.array([ceiling]),
        why=np.array([0]),
        probe_limits=None if wanted is None else np.array(wanted),
    )


def before(kind=ActionKind.TRAIN, arm=1, attempt=1, ceiling=10.0):
    """An earlier action of the recurrence."""
    return {
        "kind": int(kind),
        "arm": arm,
        "batch_size": JOB.batch_sizes[arm],
        "ceiling": ceiling,
        "attempt": attempt,
    }


def test_a_probe_stays_one_for_those_who_can():
    """Seconds of measuring save hours."""
    actions, attempt = granted(chosen(), None, HISTORY, probing=True)
    assert (actions.kind[0], attempt) == (ActionKind.PROBE, 1)


@pytest.mark.parametrize(
    ("wanted", "limit"), [(((True, False),), 0), (((True, True),), -1), (None, -1)]
)
def test_a_probe_becomes_a_training_with_a_ceiling(wanted, limit):
    """Those who cannot probe would be handed what they cannot do, or try without end."""
    actions, _ = granted(chosen(wanted=wanted), None, HISTORY, probing=False)
    assert (actions.kind[0], actions.arm[0], actions.limit[0]) == (ActionKind.TRAIN, 1, limit)
    assert actions.ceiling[0] == 2 * 1000.0


def test_before_any_success_there_is_no_ceiling():
    """Nothing could ever be compared with nothing."""
    actions, _ = granted(chosen(), None, ReportFilter(JOB), probing=False)
    assert actions.ceiling[0] == math.inf


def test_the_same_is_not_probed_twice_in_a_row():
    """A probe that is not believed would be repeated for ever."""
    again, attempt = granted(chosen(), before(ActionKind.PROBE), HISTORY, probing=True)
    assert (again.kind[0], attempt) == (ActionKind.TRAIN, 1)
    other, _ = granted(chosen(), before(ActionKind.PROBE, arm=0), HISTORY, probing=True)
    assert other.kind[0] == ActionKind.PROBE


@pytest.mark.parametrize(("attempts", "factor"), [(1, 1), (2, 1), (3, 2), (4, 4), (10, 256)])
def test_ceilings_double_until_a_recurrence_ends(attempts, factor):
    """A best that is too good to be true would stop every training for ever."""
    actions, attempt = granted(
        chosen(ActionKind.TRAIN, ceiling=10.0), before(attempt=attempts), HISTORY, probing=True
    )
    assert attempt == attempts + 1
    assert actions.ceiling[0] == 10.0 * factor


def doubting(action):
    """A job in which a training that was stopped is contradicted by one that was not."""
    history = ReportFilter(JOB)
    reached = {"action": before(arm=1), "end": 0, "epochs": 2.0, "cost": 200.0}
    stopped = {"action": action, "end": 1, "epochs": 9.0, "cost": action["ceiling"] or 900.0}
    for number, body in enumerate((reached, stopped)):
        history.judge(
            number, body | {"recurrence": number, "limit": 0, "limits": 2, "measured": []}
        )
    assert number in history.held()
    return history


@pytest.mark.parametrize("kind", list(ActionKind))
def test_who_is_not_believed_is_not_sent_to_the_same_again(kind):
    """He would pay for the same failure again and again, each time dearer."""
    last = before(ceiling=950.0)
    actions, attempt = granted(chosen(kind, ceiling=10.0), last, doubting(last), probing=True)
    assert (actions.kind[0], actions.arm[0], actions.ceiling[0]) == (ActionKind.TRAIN, 0, math.inf)
    assert attempt == 2
    assert "confirmed" in reason_granted(chosen(), actions, "why")


def test_who_is_believed_goes_on_as_the_policy_would():
    """After a change, all would be sent back to what used to be best."""
    last = before(ceiling=950.0)
    other = before(ceiling=960.0)
    actions, _ = granted(
        chosen(ActionKind.TRAIN, ceiling=10.0), other, doubting(last), probing=True
    )
    assert (actions.arm[0], actions.ceiling[0]) == (1, 10.0)


def test_the_surest_has_its_turn_once():
    """A default that fails for good would be run for ever."""
    last = before(arm=1, ceiling=None)
    history = doubting(last)
    history.job = dataclasses.replace(JOB, default=16)
    actions, _ = granted(chosen(ActionKind.TRAIN, ceiling=10.0), last, history, probing=True)
    assert (actions.arm[0], actions.ceiling[0]) == (1, 10.0)


def test_reasons_are_those_of_what_is_handed_out():
    """Whoever asks would be told why something else was chosen."""
    plain = chosen(ActionKind.TRAIN)
    assert reason_granted(plain, plain, "why") == "why"
    unprobed, _ = granted(chosen(), None, HISTORY, probing=False)
    assert "probes are not made" in reason_granted(chosen(), unprobed, "why")


@pytest.mark.parametrize("kind", list(ActionKind))
def test_what_was_asked_for_is_trained_without_a_ceiling(kind):
    """An observer would be stopped, or asked to begin afresh."""
    for only in JOB.batch_sizes:
        actions, attempt = only_granted(chosen(kind, ceiling=5.0), before(), JOB, only)
        assert actions.kind[0] == ActionKind.TRAIN
        assert JOB.batch_sizes[actions.arm[0]] == only
        assert actions.ceiling[0] == math.inf
        assert attempt == 2


def test_where_the_policy_agrees_its_power_limit_holds():
    """What is known of a batch size would be measured again and again."""
    hold = dataclasses.replace(chosen(ActionKind.TRAIN), limit=np.array([0]))
    same, _ = only_granted(hold, None, JOB, 16)
    assert (same.limit[0], same.probe_limits.tolist()) == (0, [[True, False]])
    other, _ = only_granted(hold, None, JOB, 8)
    assert (other.limit[0], other.probe_limits) == (-1, None)


def test_what_the_job_does_not_allow_is_not_granted():
    """A slip would be run for a night."""
    with pytest.raises(InvalidValueError, match="100") as refused:
        only_granted(chosen(), None, JOB, 100)
    assert "8, 16" in refused.value.remedy


def test_what_would_be_run_is_told():
    """An observer would not learn what is missed."""
    assert reason_beside(chosen(), "why", JOB, 16) == "why"
    assert "16 would be run: why" in reason_beside(chosen(), "why", JOB, 8)
