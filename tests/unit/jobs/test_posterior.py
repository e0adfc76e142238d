"""The posterior of a job as a fold over its events."""

import math

import pytest

from joulery.jobs import Measured, Outcome
from joulery.jobs._posterior import JobState
from joulery.jobs._replay import outcome_document
from joulery.jobs.policies import RunEnd
from joulery.storage import Event, EventKind, JobRecord
from joulery.testing.policy_contract import assert_identical
from joulery.testing.workloads import made_up_workload

JOB = made_up_workload().job()
RUN_SECONDS = 400.0


class History:
    """A job whose events are made one by one."""

    def __init__(self, policy="joulery"):
        self.record = JobRecord("team", JOB.name, JOB.to_document(), policy, {}, 7)
        self.state = JobState.start(self.record)
        self.now = 0.0

    def add(self, kind, decision, body):
        """Fold the next event; its number."""
        number = self.state.sequence + 1
        self.state.fold(Event(number, kind, decision or number, body, self.now))
        return number

    def issue(self, arm=3):
        """Begin a training."""
        action = {"kind": 0, "arm": arm, "limit": -1, "ceiling": None, "why": 0, "attempt": 1}
        action |= {"probe_limits": None, "batch_size": JOB.batch_sizes[arm]}
        return self.add(EventKind.ISSUED, 0, {"action": action, "recurrence": self.state.sequence})

    def report(self, decision, factor=1.0, kind=EventKind.OUTCOME):
        """End it after some time."""
        action, recurrence, _ = self.state.open.get(decision, (self.action, decision - 1, 0.0))
        measured = (Measured(None, 20.0 * factor, 4000.0 * factor, 0.01),)
        outcome = Outcome(RunEnd.REACHED, 20.0, RUN_SECONDS * factor, 8e4 * factor, None, measured)
        self.add(kind, decision, outcome_document(outcome, JOB, action, recurrence))

    def run(self, factor=1.0, arm=3):
        """A training from begin to end."""
        decision = self.issue(arm)
        self.action = self.state.open[decision][0]
        self.now += RUN_SECONDS
        self.report(decision, factor)
        return decision


def under_way(history):
    """Trainings that the policy waits for."""
    return history.state.beliefs.running.sum()


@pytest.mark.parametrize("policy", ["joulery", "zeus", "grid"])
def test_a_report_that_is_withdrawn_leaves_no_trace(policy):
    """A false report that came first would mislead for good."""
    misled, honest = History(policy), History(policy)
    misled.run(factor=0.01)
    for _ in range(2):
        misled.run()
        honest.run()
    assert misled.state.reports.quarantined() == [1]
    rebuilt = misled.state
    assert rebuilt.reports.best_cost() == honest.state.reports.best_cost()
    if policy == "joulery":
        assert_identical(rebuilt.beliefs.cost, honest.state.beliefs.cost)
        assert_identical(rebuilt.beliefs.epochs, honest.state.beliefs.epochs)


def test_actions_under_way_survive_a_rebuild():
    """A batch size would be tried twice at once after a false report was found."""
    history = History()
    history.run(factor=0.01)
    history.run()
    history.issue(arm=1)
    assert under_way(history) == 1
    history.run()
    assert history.state.reports.quarantined() == [1]
    assert under_way(history) == 1


def test_an_action_that_is_open_for_too_long_is_abandoned():
    """A holder that only sends heartbeats would be waited for for ever."""
    history = History()
    stuck = history.issue(arm=1)
    assert under_way(history) == 1
    for _ in range(2):
        history.run()
        assert stuck in history.state.open
    history.run()
    assert stuck not in history.state.open
    assert under_way(history) == 0
    history.report(stuck)
    assert under_way(history) == 0
    assert stuck in [one.decision for one in history.state.reports.latest]


def test_nothing_is_abandoned_before_any_run_has_ended():
    """The first runs of a job would count as lost because they take long."""
    history = History()
    history.issue()
    history.now = 1e9
    history.issue(arm=1)
    assert under_way(history) == 2
    assert history.state.reports.usual_seconds() == math.inf


def test_final_reports_are_settled():
    """A rebuild would lose all that a job has learned but for the latest reports."""
    history = History()
    for _ in range(30):
        history.run()
    assert history.state.settled.evidence.runs.sum() > 10
    history.run(arm=2, factor=0.01)
    history.run(arm=2)
    assert history.state.beliefs.evidence.runs.sum() > 20
