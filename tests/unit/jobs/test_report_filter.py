"""Which reports are accepted, and which are quarantined until others confirm them."""

import json
import math

import pytest
from hypothesis import given, strategies as st

from joulery.jobs import Job
from joulery.jobs._recent_reports import LATEST, RecentReports, RunReport
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost

JOB = Job("job", (16, 32, 64, 128), 64, Cost(0.5, 300.0), limits_watts=(100.0, 200.0))
EPOCH_COST = JOB.cost.of(10.0, 1000.0)


class Reporter:
    """Adds reports to a filter."""

    def __init__(self):
        self.filter = RecentReports(JOB)
        self.number = 0

    def report(self, arm=2, epochs=20.0, **changes):
        """Add one, of a recurrence of its own unless another is given; whether it is accepted."""
        self.number += 1
        factor = changes.pop("factor", 1.0)
        kind = changes.pop("kind", ActionKind.TRAIN)
        action = {name: changes.pop(name) for name in ("volunteered",) if name in changes}
        body = {
            "action": {
                "kind": int(kind),
                "arm": arm,
                "batch_size": JOB.batch_sizes[arm],
                "ceiling": changes.pop("ceiling", None),
            }
            | action,
            "recurrence": self.number,
            "end": int(RunEnd.REACHED),
            "limits": 2,
            "limit": 1,
            "epochs": epochs,
            "cost": epochs * EPOCH_COST * factor,
            "measured": [[1, 10.0 * factor, 1000.0 * factor, 0.01]],
        } | changes
        report = RunReport.of(JOB, self.number, body)
        self.final, changed = self.filter.add(report)
        self.changed = changed - {self.number}  # of earlier ones
        return not report.quarantined

    @property
    def quarantined(self):
        """Decisions in quarantine."""
        return self.filter.quarantined()


@pytest.fixture
def reporter():
    """A filter without reports."""
    return Reporter()


def test_reports_that_agree_are_accepted(reporter):
    """Honest workers would be doubted."""
    assert all(reporter.report(epochs=20.0 + turn % 5) for turn in range(50))
    assert reporter.quarantined == []


@pytest.mark.parametrize("wrong", [{"epochs": 1.0}, {"factor": 10.0}, {"factor": 0.01}])
def test_a_report_unlike_all_others_is_quarantined(reporter, wrong):
    """One wrong report would ruin a job for everybody."""
    for _ in range(5):
        reporter.report()
    assert not reporter.report(**wrong)
    assert reporter.report()
    assert reporter.quarantined == [6]


def test_a_real_change_is_accepted_with_its_fifth_run(reporter):
    """The policy would go on with what was true last year."""
    for _ in range(40):
        reporter.report()
    verdicts = [reporter.report(epochs=80.0) for _ in range(5)]
    assert verdicts == [False, False, False, False, True]
    assert reporter.changed
    assert all(number < 41 for number in reporter.quarantined)
    assert all(reporter.report(epochs=80.0) for _ in range(10))
    assert reporter.quarantined == []


@pytest.mark.parametrize("epochs", [8.0, 55.0])
def test_usual_variation_is_accepted_at_once(reporter, epochs):
    """Honest users would wait for what the policy's own watch for changes finds at once."""
    for _ in range(40):
        reporter.report()
    assert reporter.report(epochs=epochs)


def test_noisy_jobs_are_not_doubted(reporter):
    """A policy would learn half of what noisy jobs show."""
    assert all(reporter.report(epochs=each) for each in [8.0, 20.0, 50.0, 12.0, 30.0] * 6)


def test_the_first_report_is_withdrawn_if_it_was_the_wrong_one(reporter):
    """A wrong report that comes first would make all others look wrong."""
    assert reporter.report(epochs=1.0, factor=0.01)
    # Of two that contradict each other, neither is accepted.
    assert not reporter.report()
    assert reporter.changed
    assert reporter.quarantined == [1, 2]
    assert reporter.filter.best_cost() == math.inf
    assert reporter.report()
    assert reporter.changed
    assert reporter.quarantined == [1]
    assert reporter.filter.best_cost() == pytest.approx(20 * EPOCH_COST)


def test_one_holder_has_one_vote(reporter):
    """A wrong report would only have to be repeated."""
    for _ in range(6):
        reporter.report()
    failed = {"recurrence": 99, "end": int(RunEnd.EXHAUSTED), "epochs": 90.0}
    for _ in range(12):
        assert not reporter.report(**failed)
        assert not reporter.changed
    assert reporter.report()


def test_one_holder_cannot_crowd_out_others(reporter):
    """A holder that reports a lot would be the only one that is remembered."""
    for _ in range(4):
        reporter.report()
    for _ in range(3 * LATEST):
        reporter.report(recurrence=99, end=int(RunEnd.EXHAUSTED), epochs=90.0)
    assert [one.decision for one in reporter.filter.latest[:4]] == [1, 2, 3, 4]
    assert len(reporter.filter.latest) == 5


def test_a_burst_of_wrong_reports_is_not_a_change(reporter):
    """Where a tenth of the reports is wrong, four of eight are once in a while."""
    for _ in range(40):
        reporter.report()
    wrong = (True, True, False, True, True, False)
    verdicts = [reporter.report(epochs=4.0 if each else 20.0) for each in wrong]
    assert verdicts == [not each for each in wrong]


def test_wrong_reports_that_agree_are_outnumbered_by_other_batch_sizes(reporter):
    """Two wrong reports that come early would hide the best batch size for good."""
    reporter.report(arm=2)
    reporter.report(arm=3)
    for _ in range(2):
        reporter.report(arm=2, factor=10.0)
    reporter.report(arm=1)
    assert {3, 4} <= set(reporter.quarantined)
    reporter.report(arm=2)
    assert reporter.quarantined == [3, 4]


def test_nothing_is_left_of_a_recurrence_that_was_outvoted(reporter):
    """What nobody has contradicted yet would go on misleading."""
    reporter.report(arm=0, recurrence=99, factor=2.0)
    reporter.report(arm=3, recurrence=99, factor=10.0)
    for _ in range(2):
        reporter.report(arm=3)
    assert reporter.quarantined == [1, 2]


REPORTS = (
    {"arm": 2},
    {"arm": 2, "epochs": 25.0},
    {"arm": 2, "factor": 10.0},
    {"arm": 3},
    {"arm": 3, "epochs": 1.0},
    {"arm": 1, "factor": 0.1},
    {"arm": 1},
    {"arm": 1, "epochs": 30.0},
)


@given(order=st.permutations(range(len(REPORTS))))
def test_the_order_of_arrival_does_not_matter(order):
    """A wrong report would only have to be quick."""
    reporter = Reporter()
    for number in order:
        reporter.report(recurrence=number, **REPORTS[number])
    odd = {one.recurrence for one in reporter.filter.latest if one.quarantined}
    assert odd == {2, 4, 5}


@pytest.mark.parametrize("place", range(len(REPORTS)))
def test_a_restart_changes_no_verdict(place):
    """Two processes would learn from different reports."""
    reporter, again = Reporter(), Reporter()
    for number, report in enumerate(REPORTS):
        if number == place:
            document = json.loads(json.dumps(reporter.filter.to_list()))
            again.filter = RecentReports.from_list(JOB, document)
        assert reporter.report(**report) == again.report(recurrence=number + 1, **report)
        assert reporter.changed == again.changed
    again.number = reporter.number
    assert [one.quarantined for one in reporter.filter.latest] == [
        one.quarantined for one in again.filter.latest
    ]


def test_runs_that_were_not_chosen_are_one_holder(reporter):
    """A client that selects what to run could outvote all others where few have been."""
    for _ in range(3):
        reporter.report(arm=2)
    reporter.report(arm=3)
    for _ in range(3):
        assert not reporter.report(arm=3, factor=10.0, volunteered=True)
    assert reporter.quarantined == [7]
    assert reporter.report(arm=2, volunteered=True)


def test_runs_that_were_not_chosen_wait_for_one_that_was(reporter):
    """The first of all would set what all others are compared with."""
    assert not reporter.report(arm=2, volunteered=True)
    assert reporter.report(arm=2)
    assert reporter.quarantined == []


def test_failing_where_all_others_reach_the_target_is_not_accepted(reporter):
    """One run to the last epoch in vain would rule out what everybody reaches the target with."""
    for _ in range(4):
        reporter.report(epochs=20.0)
    in_vain = {"end": int(RunEnd.EXHAUSTED), "epochs": float(JOB.max_epochs)}
    assert not reporter.report(**in_vain)
    assert not reporter.report(**in_vain)
    assert reporter.report()


def test_runs_that_a_ceiling_did_not_stop_were_not_stopped_by_it(reporter):
    """Two reports that nothing could be afforded would make a batch size look expensive."""
    for _ in range(3):
        reporter.report(arm=2)
    refused = {"end": int(RunEnd.STOPPED), "epochs": 0.0, "cost": 0.0, "measured": []}
    for _ in range(3):
        assert not reporter.report(arm=2, ceiling=40.0 * EPOCH_COST, **refused)
    reporter.report(arm=0, ceiling=2.0 * EPOCH_COST, **refused)
    assert reporter.report(arm=0, ceiling=2.0 * EPOCH_COST, **refused)


def test_another_power_limit_confirms_nothing_that_is_far_off(reporter):
    """A wrong report would be confirmed by those that measured something else."""
    for turn in range(40):
        reporter.report(**({"measured": [[0, 10.0, 1000.0, 0.01]]} if turn % 2 else {}))
    assert not reporter.report(measured=[[0, 3.0, 300.0, 0.01]])


def test_nothing_is_stopped_where_there_is_no_ceiling(reporter):
    """A report of the default that comes first would make it look expensive."""
    refused = {"end": int(RunEnd.STOPPED), "epochs": 0.0, "cost": 0.0, "measured": []}
    assert not reporter.report(**refused)
    assert reporter.report()
    assert reporter.quarantined == [1]


def test_the_surest_batch_size_is_what_most_runs_reached_the_target_with(reporter):
    """A recurrence would be sent from one wrong report to the next."""
    assert reporter.filter.surest() == 64
    for _ in range(2):
        reporter.report(arm=1, epochs=21.0)
    assert reporter.filter.surest() == 64
    reporter.report(arm=1)
    assert reporter.filter.surest() == 32
    reporter.report(arm=2)
    assert reporter.filter.surest() == 64


def test_an_early_failure_takes_a_second_report(reporter):
    """One false alarm would drop a batch size for good."""
    for _ in range(3):
        reporter.report()
    failing = {"arm": 3, "end": int(RunEnd.EXHAUSTED), "epochs": 1.0, "measured": []}
    assert not reporter.report(**failing)
    assert reporter.report(**failing)
    assert reporter.quarantined == []


def test_a_failure_at_the_last_epoch_takes_no_other(reporter):
    """A batch size that cannot reach the target would be trained to the end twice."""
    for _ in range(3):
        reporter.report()
    assert reporter.report(arm=3, end=int(RunEnd.EXHAUSTED), epochs=float(JOB.max_epochs))


def test_batch_sizes_differ_as_far_as_they_do(reporter):
    """A batch size that is really worse would have to prove it twice."""
    for _ in range(3):
        reporter.report(arm=2)
    assert reporter.report(arm=1, epochs=50.0)
    assert not reporter.report(arm=3, factor=20.0)


def test_an_epoch_in_larger_steps_costs_no_more(reporter):
    """A wrong report about the first batch size would hide that it is best."""
    reporter.report(arm=2)
    assert reporter.report(arm=0, factor=4.0)  # four times the steps
    assert not reporter.changed
    assert not reporter.report(arm=3, factor=4.0)
    assert reporter.report(arm=3, factor=0.5)


def test_a_batch_size_beyond_the_limits_is_accepted_with_its_third_run(reporter):
    """What is true of one batch size only would never be learned."""
    for _ in range(9):
        reporter.report(arm=2)
    assert [reporter.report(arm=3, factor=4.0) for _ in range(3)] == [False, False, True]
    assert reporter.quarantined == []


def test_stopping_at_the_ceiling_takes_no_other_report(reporter):
    """A batch size whose first epoch is too expensive would have to prove it twice."""
    for _ in range(3):
        reporter.report()
    stopped = {"end": int(RunEnd.STOPPED), "epochs": 0.0, "cost": 0.0}
    assert reporter.report(**stopped, arm=0, factor=4.0, ceiling=3.0 * EPOCH_COST)
    assert not reporter.report(**stopped, arm=1, factor=2.0, ceiling=30.0 * EPOCH_COST)


def test_a_false_alarm_contradicts_nobody(reporter):
    """Runs that reach the target would be doubted because another gave up."""
    for _ in range(3):
        reporter.report()
    for _ in range(3):
        reporter.report(arm=3, recurrence=99, end=int(RunEnd.EXHAUSTED), epochs=1.0, measured=[])
    assert reporter.report(arm=3)


def test_a_probe_is_compared_by_the_cost_of_an_epoch(reporter):
    """A wrong report of seconds would mislead as well as one of hours."""
    for _ in range(3):
        reporter.report()
    probe = {"kind": ActionKind.PROBE, "end": int(RunEnd.PROBED), "epochs": 0.0, "cost": 50.0}
    assert reporter.report(**probe)
    assert not reporter.report(**probe, factor=0.01)


def test_an_abandoned_run_without_figures_claims_nothing():
    """A dead worker would count as a witness."""
    body = {"action": {"arm": 0, "batch_size": 16, "ceiling": None}, "recurrence": 0}
    body |= {"end": int(RunEnd.ABANDONED), "limit": -1, "measured": []}
    assert not RunReport.of(JOB, 1, body).claims
    assert RunReport.of(JOB, 1, body | {"measured": [[0, 1.0, 2.0, 0.1]]}).claims


def test_memory_is_bounded_and_comes_back_the_same(reporter):
    """A restart would quarantine other reports than the process before."""
    for turn in range(12 * LATEST):
        reporter.report(arm=turn % 4, epochs=1.0 if turn % 9 == 0 else 20.0)
    latest = reporter.filter
    assert len(latest.latest) == 4 * LATEST
    back = RecentReports.from_list(JOB, json.loads(json.dumps(latest.to_list())))
    assert back.to_list() == latest.to_list()
    assert back.quarantined() == latest.quarantined() != []


@pytest.mark.parametrize(
    ("wrong", "text", "release"),
    [
        ({"factor": 10.0}, "far from those of 5 other runs", "further runs of batch size 64"),
        ({"volunteered": True, "arm": 3}, "128 was asked for", "that the policy chooses"),
        (
            {"arm": 3, "end": int(RunEnd.EXHAUSTED), "epochs": 1.0, "measured": []},
            "neither its cost ceiling nor max_epochs",
            "a second run of batch size 128",
        ),
    ],
)
def test_quarantine_has_a_reason_and_a_way_out(reporter, wrong, text, release):
    """A client would learn that it is not believed, but not why nor what to do."""
    assert reporter.filter.reasons() == {}
    for _ in range(5):
        reporter.report()
    assert not reporter.report(**wrong)
    (reason,) = reporter.filter.reasons().values()
    assert text in reason
    assert release in reason


def test_a_change_ends_the_memory(reporter):
    """Batch sizes that are run again after a change would each have to prove it anew."""
    for _ in range(4):
        reporter.report(arm=3)
    for _ in range(9):
        reporter.report(arm=2)
    while not reporter.report(arm=2, factor=15.0):
        assert reporter.number < 20
    assert {report.arm for report in reporter.filter.latest} == {2}
    assert reporter.report(arm=3, factor=15.0)
    assert reporter.filter.best_cost() == pytest.approx(15.0 * 20.0 * EPOCH_COST)
