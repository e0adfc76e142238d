"""The policy's choice, adapted to what a client can run."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from joulery.errors import InvalidValueError
from joulery.jobs import Job, Request
from joulery.jobs._client_actions import arm_within_reach, client_action
from joulery.jobs._recent_reports import RecentReports, RunReport
from joulery.jobs.policies import ActionKind, Actions, RunEnd
from joulery.objectives import Cost

JOB = Job("job", (8, 16), 8, Cost(0.5, 300.0), limits_watts=(100.0, 200.0))


def reached(number, arm, cost, job=JOB):
    """A training that reached the target."""
    action = {"kind": 0, "arm": arm, "batch_size": arm, "ceiling": None}
    body = {"action": action, "recurrence": number, "end": int(RunEnd.REACHED), "limit": 0}
    return RunReport.of(job, number, body | {"epochs": cost / 100.0, "cost": cost, "measured": []})


def state_of(*costs, job=JOB):
    """A job whose trainings reached the target at some costs, by position of the batch size."""
    reports = RecentReports(job)
    for number, (arm, cost) in enumerate(costs):
        reports.add(reached(number, arm, cost, job))
    policy = SimpleNamespace(reasons=("why",))
    return SimpleNamespace(job=job, policy=policy, beliefs=None, reports=reports)


STATE = state_of((0, 900.0), (0, 1000.0), (0, 2000.0), (1, 1500.0))


def chosen(kind=ActionKind.PROBE, wanted=((True, False),), ceiling=math.inf):
    """One action on the larger batch size."""
    return Actions(
        kind=np.array([int(kind)]),
        arm=np.array([1]),
        limit=np.array([-1]),
        ceiling=np.array([ceiling]),
        reason=np.array([0]),
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


def asked(actions, last=None, state=STATE, *, doubted=False, **request):
    """The action for a client, and the reason."""
    wanted = Request("key", **({"probing": True} | request))
    return client_action(state, actions, wanted, last, doubted=doubted)


def test_a_client_that_can_probe_is_asked_to():
    """Seconds of measuring save hours."""
    action, reason = asked(chosen())
    assert (action["kind"], action["attempt"], reason) == (ActionKind.PROBE, 1, "why")


@pytest.mark.parametrize(
    ("wanted", "limit"), [(((True, False),), 0), (((True, True),), -1), (None, -1)]
)
def test_a_probe_becomes_a_training_with_a_ceiling(wanted, limit):
    """Clients that cannot probe would be asked to, or would try without end."""
    action, reason = asked(chosen(wanted=wanted), before(), probing=False)
    assert (action["kind"], action["arm"], action["limit"]) == (ActionKind.TRAIN, 1, limit)
    assert action["ceiling"] == 2 * 1000.0
    assert "probes are not made" in reason


@pytest.mark.parametrize(
    ("sizes", "trained", "arm", "expected"),
    [
        ((8, 16, 32, 64), {3}, 0, 2),
        ((8, 16, 32, 64), {1}, 3, 2),
        ((8, 16, 32, 64), {1}, 0, 0),
        ((8, 16, 32, 64), {0, 3}, 1, 1),
        ((8, 16, 32, 64), set(), 3, 3),
        ((32, 36, 40, 44, 64), {0}, 4, 3),
        ((32, 36, 40, 44, 64), {4}, 0, 3),
        ((48, 56, 60, 64), {3}, 0, 0),
    ],
)
def test_a_training_instead_of_a_probe_is_near_what_was_trained(sizes, trained, arm, expected):
    """A client that cannot probe would pay for several runs to learn what seconds could show."""
    assert (
        arm_within_reach(structs.replace(JOB, batch_sizes=sizes, default=sizes[0]), trained, arm)
        == expected
    )


def test_a_far_batch_size_is_reached_by_the_next_one():
    """The reason would name another batch size than is run."""
    job = structs.replace(JOB, batch_sizes=(2, 4, 8, 16))
    state = state_of((3, 900.0), (3, 1000.0), job=job)
    action, reason = asked(chosen(), state=state, probing=False)
    assert (action["batch_size"], "first" in reason) == (8, True)


def test_a_client_of_one_training_has_more_patience():
    """A night would end without a model because a batch size is tried that costs twice as much."""
    for kind in ActionKind:
        action, _ = asked(chosen(kind, ceiling=2000.0), probing=False)
        assert action["ceiling"] == 4 * 1000.0
    assert asked(chosen(ActionKind.TRAIN, ceiling=2000.0))[0]["ceiling"] == 2000.0


def stopped(number, arm=1, ceiling=3000.0):
    """A training that was stopped at its ceiling."""
    action = {"kind": 0, "arm": arm, "batch_size": JOB.batch_sizes[arm], "ceiling": ceiling}
    body = {"action": action, "recurrence": number, "end": int(RunEnd.STOPPED), "limit": 0}
    figures = {"epochs": 3.0, "cost": ceiling, "measured": [[0, 1.0, 5e4, 0.01]]}
    return RunReport.of(JOB, number, body | figures)


@pytest.mark.parametrize("quarantined", [False, True])
def test_two_nights_in_a_row_are_not_stopped(quarantined):
    """A job that becomes dear would leave no model night after night, hidden in quarantine."""
    state = state_of((0, 900.0), (0, 1000.0), (1, 1500.0))
    report = stopped(9)
    state.reports.add(report)
    report.quarantined = quarantined
    action, reason = asked(chosen(ActionKind.TRAIN, ceiling=10.0), state=state, probing=False)
    assert (action["batch_size"], action["ceiling"]) == (8, None)
    assert "confirmed" in reason
    within = asked(chosen(ActionKind.TRAIN, ceiling=10.0), state=state)[0]
    assert within["ceiling"] == 10.0


def test_a_surprising_success_is_repeated_without_a_ceiling():
    """What has to be confirmed would never be, or be stopped before it can."""
    state = state_of((0, 900.0), (0, 1000.0), (0, 950.0), (1, 1500.0))
    report = reached(9, 1, 60000.0)
    state.reports.add(report)
    assert report.quarantined
    action, _ = asked(chosen(ActionKind.TRAIN, ceiling=10.0), state=state, probing=False)
    assert (action["batch_size"], action["ceiling"]) == (16, None)


def test_before_any_success_there_is_no_ceiling():
    """Nothing could ever be compared with nothing."""
    action, _ = asked(chosen(), state=state_of(), probing=False)
    assert action["ceiling"] is None


def test_the_same_is_not_probed_twice_in_a_row():
    """A probe that is quarantined would be repeated for ever."""
    again, _ = asked(chosen(), before(ActionKind.PROBE))
    assert (again["kind"], again["attempt"]) == (ActionKind.TRAIN, 1)
    other, _ = asked(chosen(), before(ActionKind.PROBE, arm=0))
    assert other["kind"] == ActionKind.PROBE


@pytest.mark.parametrize(("attempts", "factor"), [(1, 1), (2, 1), (3, 2), (4, 4), (10, 256)])
def test_ceilings_double_until_a_recurrence_ends(attempts, factor):
    """A posterior that is too good to be true would stop every training for ever."""
    action, _ = asked(chosen(ActionKind.TRAIN, ceiling=10.0), before(attempt=attempts))
    assert action["attempt"] == attempts + 1
    assert action["ceiling"] == 10.0 * factor


@pytest.mark.parametrize("kind", list(ActionKind))
def test_a_training_whose_report_is_quarantined_is_not_repeated(kind):
    """A recurrence would pay for the same failure again and again."""
    action, reason = asked(chosen(kind, ceiling=10.0), before(ceiling=950.0), doubted=True)
    assert (action["kind"], action["arm"], action["ceiling"]) == (ActionKind.TRAIN, 0, None)
    assert action["attempt"] == 2
    assert "volunteered" not in action
    assert "confirmed" in reason


def test_a_training_whose_report_is_accepted_is_followed_by_the_policys_choice():
    """After a change, all would be sent back to what used to be best."""
    action, _ = asked(chosen(ActionKind.TRAIN, ceiling=10.0), before(ceiling=960.0))
    assert (action["arm"], action["ceiling"]) == (1, 10.0)


def test_the_surest_batch_size_is_run_once():
    """A default that fails for good would be run for ever."""
    state = state_of(job=structs.replace(JOB, default=16))
    last = before(arm=1, ceiling=None)
    action, _ = asked(chosen(ActionKind.TRAIN, ceiling=10.0), last, state, doubted=True)
    assert (action["arm"], action["ceiling"]) == (1, 10.0)


@pytest.mark.parametrize("kind", list(ActionKind))
def test_a_batch_size_that_was_asked_for_is_trained_without_a_ceiling(kind):
    """An observer would be stopped, or asked to begin afresh."""
    for only in JOB.batch_sizes:
        action, _ = asked(chosen(kind, ceiling=5.0), before(), only=only)
        assert (action["kind"], action["batch_size"]) == (ActionKind.TRAIN, only)
        assert (action["ceiling"], action["attempt"]) == (None, 2)
        assert ("volunteered" in action) == (only != 16)


def test_the_policys_power_limit_holds_where_it_agrees():
    """What is known of a batch size would be measured again and again."""
    hold = dataclasses.replace(chosen(ActionKind.TRAIN), limit=np.array([0]))
    same, _ = asked(hold, only=16)
    assert (same["limit"], same["probe_limits"]) == (0, [True, False])
    other, _ = asked(hold, only=8)
    assert (other["limit"], other["probe_limits"]) == (-1, None)


def test_a_batch_size_that_the_job_does_not_allow_is_refused():
    """A slip would be run for a night."""
    with pytest.raises(InvalidValueError, match="100") as refused:
        asked(chosen(), only=100)
    assert "8, 16" in refused.value.remedy


def test_the_reason_says_what_would_be_run():
    """An observer would not learn what is missed."""
    assert asked(chosen(), only=16)[1] == "why"
    assert "16 would be run: why" in asked(chosen(), only=8)[1]
