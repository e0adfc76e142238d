"""Which reports the desk believes."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulery.jobs.job import Job
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.report import Verdict
from joulery.jobs.report_filter import _LATEST, ReportFilter
from joulery.objectives import Cost

JOB = Job("job", (16, 32, 64, 128), 64, Cost(0.5, 300.0), limits_watts=(100.0, 200.0))
EPOCH_COST = 0.5 * 1000.0 + 0.5 * 300.0 * 10.0


class Listener:
    """Tells a history of reports and keeps what it makes of them."""

    def __init__(self):
        self.history = ReportFilter(JOB)
        self.number = 0

    def hear(self, arm=2, epochs=20.0, **changes):
        """One report; of a recurrence of its own unless told otherwise."""
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
        return self.history.judge(self.number, body)


@pytest.fixture
def told():
    """Nothing yet."""
    return Listener()


def test_reports_that_agree_are_believed(told):
    """Honest workers would be doubted."""
    assert all(told.hear(epochs=20.0 + turn % 5).believed for turn in range(50))
    assert told.history.held() == []


@pytest.mark.parametrize("lie", [{"epochs": 1.0}, {"factor": 10.0}, {"factor": 0.01}])
def test_a_report_unlike_all_others_is_held(told, lie):
    """One liar would ruin a job for everybody."""
    for _ in range(5):
        told.hear()
    assert not told.hear(**lie).believed
    assert told.hear().believed
    assert told.history.held() == [6]


def test_what_has_really_changed_is_believed(told):
    """The policy would go on with what was true last year."""
    for _ in range(40):
        told.hear()
    verdicts = [told.hear(epochs=80.0) for _ in range(5)]
    assert [one.believed for one in verdicts] == [False, False, False, False, True]
    assert [report.decision for report in verdicts[-1].released] == [41, 42, 43, 44]
    assert all(told.hear(epochs=80.0).believed for _ in range(10))


@pytest.mark.parametrize("epochs", [8.0, 55.0])
def test_what_jobs_do_from_one_day_to_the_next_passes_at_once(told, epochs):
    """Honest users would wait for what the policy's own watch for changes finds out at once."""
    for _ in range(40):
        told.hear()
    assert told.hear(epochs=epochs).believed


def test_batch_sizes_that_scatter_are_not_doubted(told):
    """Noisy jobs would be told half of what they show."""
    epochs = [8.0, 20.0, 50.0, 12.0, 30.0] * 6
    assert all(told.hear(epochs=each).believed for each in epochs)


def test_the_first_report_is_dropped_if_it_was_the_odd_one(told):
    """A lie that comes first would make everybody else a liar."""
    assert told.hear(epochs=1.0, factor=0.01).believed
    # Of two who contradict each other, neither is believed.
    verdict = told.hear()
    assert verdict.restart
    assert told.history.held() == [1, 2]
    assert told.history.best_cost() == math.inf
    verdict = told.hear()
    assert verdict.believed
    assert [report.decision for report in verdict.released] == [2]
    assert told.history.held() == [1]
    assert told.history.best_cost() == pytest.approx(20 * EPOCH_COST)


def test_one_holder_counts_once(told):
    """A liar would only have to say it often."""
    for _ in range(6):
        told.hear()
    vain = {"recurrence": 99, "end": int(RunEnd.EXHAUSTED), "epochs": 90.0}
    failures = [told.hear(**vain) for _ in range(12)]
    assert not any(one.believed or one.restart or one.released for one in failures)
    heard = [place for place, one in enumerate(failures, 1) if one.told["end"] == RunEnd.EXHAUSTED]
    assert heard == [3, 6, 12]
    assert told.hear().believed


def test_who_insists_tells_no_more_than_others_leave_room_for(told):
    """One holder would only have to fail three times to have all figures that he likes believed."""
    for _ in range(6):
        told.hear(epochs=20.0)
    vain = {"recurrence": 99, "end": int(RunEnd.EXHAUSTED), "epochs": 90.0, "factor": 0.1}
    heard = [told.hear(**vain) for _ in range(3)][-1].told
    assert heard["epochs"] == pytest.approx(60.0)
    assert heard["measured"] == []


def test_one_holder_cannot_make_others_forgotten(told):
    """A liar who talks a lot would be the only one who is remembered."""
    for _ in range(4):
        told.hear()
    for _ in range(3 * _LATEST):
        told.hear(recurrence=99, end=int(RunEnd.EXHAUSTED), epochs=90.0)
    assert [one.decision for one in told.history.latest[:4]] == [1, 2, 3, 4]
    assert len(told.history.latest) == 5


def test_a_burst_of_lies_is_not_a_change(told):
    """Where a tenth lie, four of eight do so once in a while."""
    for _ in range(40):
        told.hear()
    lies = (True, True, False, True, True, False, True, True, True)
    verdicts = [told.hear(epochs=4.0 if lie else 20.0) for lie in lies]
    assert [one.believed for one in verdicts] == [not lie for lie in lies]


def test_those_who_lie_alike_are_outnumbered_by_other_batch_sizes(told):
    """Two liars who come early would hide the best batch size for good."""
    told.hear(arm=2)
    told.hear(arm=3)
    for _ in range(2):
        told.hear(arm=2, factor=10.0)
    assert told.history.held() == [1, 2, 3, 4]  # two against two
    verdict = told.hear(arm=1)
    assert verdict.believed
    assert [one.decision for one in verdict.released] == [1, 2]
    assert told.history.held() == [3, 4]


def test_nothing_is_left_of_what_a_liar_said(told):
    """What nobody has contradicted yet would go on misleading."""
    lie = told.number = 1
    told.hear(arm=0, recurrence=lie, factor=2.0)
    told.hear(arm=3, recurrence=lie, factor=10.0)
    for _ in range(2):
        told.hear(arm=3)
    assert told.history.held() == [2, 3]


def test_who_contradicts_himself_is_not_believed(told):
    """Figures that are drawn by lot would be taken for measured."""
    told.hear(arm=2)
    probe = {"kind": ActionKind.PROBE, "end": int(RunEnd.PROBED), "epochs": 0.0, "cost": 50.0}
    told.hear(arm=1, recurrence=99, **probe)
    told.hear(arm=1, recurrence=99, factor=1.8)
    assert told.history.held() == [2, 3]


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
def test_who_comes_first_does_not_matter(order):
    """A liar would only have to be quick."""
    told = Listener()
    for number in order:
        told.hear(recurrence=number, **REPORTS[number])
    latest = told.history.latest
    odd = {one.recurrence for one in latest if one.standing != Verdict.BELIEVED}
    assert odd == {2, 4, 5}


@pytest.mark.parametrize("place", range(len(REPORTS)))
def test_a_young_job_is_judged_the_same_after_a_restart(place):
    """Two processes would believe different liars."""
    told, again = Listener(), Listener()
    for number, report in enumerate(REPORTS):
        if number == place:
            document = json.loads(json.dumps(told.history.to_document()))
            again.history = ReportFilter.from_document(JOB, document)
        mine, its = told.hear(**report), again.hear(**report)
        assert (mine.believed, mine.told, mine.restart) == (its.believed, its.told, its.restart)
        released = [one.decision for one in mine.released]
        assert released == [one.decision for one in its.released]
    assert told.history.to_document() == again.history.to_document()


def test_volunteers_are_one_holder(told):
    """Who may choose what to run could outvote everybody where few have been."""
    for _ in range(3):
        told.hear(arm=2)
    told.hear(arm=3)
    for _ in range(3):
        told.hear(arm=3, factor=10.0, volunteered=True)
    assert told.history.held() == [7]
    assert told.hear(arm=2, volunteered=True).believed


def test_volunteers_wait_for_something_to_compare_with():
    """The first of all would set what everybody else is measured by."""
    told = Listener()
    assert not told.hear(arm=2, volunteered=True).believed
    verdict = told.hear(arm=2)
    assert verdict.believed


def test_a_wonder_takes_a_second_report_where_there_is_no_way_back(told):
    """A lie about a batch size that nobody runs would stop all others for long."""
    for _ in range(_LATEST + 8):
        told.hear(arm=2, epochs=20.0)
    assert not told.hear(arm=3, epochs=6.0).believed
    second = told.hear(arm=3, epochs=7.0)
    assert second.believed
    assert len(second.released) == 1


def test_failing_where_all_others_get_there_is_not_believed(told):
    """One who trains to the last epoch in vain would rule out what everybody gets there with."""
    for _ in range(4):
        told.hear(epochs=20.0)
    in_vain = {"end": int(RunEnd.EXHAUSTED), "epochs": float(JOB.max_epochs)}
    assert not told.hear(**in_vain).believed
    assert not told.hear(**in_vain).believed
    assert told.hear().believed


def test_what_a_grant_would_have_paid_for_was_not_refused(told):
    """Two who say that they could not begin would make a batch size look dear for good."""
    for _ in range(3):
        told.hear(arm=2)
    refused = {"end": int(RunEnd.STOPPED), "epochs": 0.0, "cost": 0.0, "measured": []}
    for _ in range(3):
        assert not told.hear(arm=2, ceiling=40.0 * EPOCH_COST, **refused).believed
        assert not told.hear(arm=1, ceiling=40.0 * EPOCH_COST, **refused).believed
    told.hear(arm=0, ceiling=2.0 * EPOCH_COST, **refused)
    assert told.hear(arm=0, ceiling=2.0 * EPOCH_COST, **refused).believed


def test_another_power_limit_confirms_nothing_that_is_far_off(told):
    """A lie would be confirmed by those who measured something else."""
    limits = [[0, 10.0, 1000.0, 0.01]]
    for turn in range(40):
        told.hear(**({"measured": limits} if turn % 2 else {}))
    told.hear()
    lie = [[0, 3.0, 300.0, 0.01]]
    assert not told.hear(measured=lie).believed


def test_what_false_ceilings_stopped_is_never_told(told):
    """Batch sizes would count as dear because of a ceiling that a lie had set."""
    told.hear(arm=2, epochs=1.0, factor=0.01)
    cheap = {"end": int(RunEnd.STOPPED), "epochs": 2.0, "ceiling": 1.0, "cost": 0.9, "measured": []}
    told.hear(arm=1, **cheap)
    verdicts = [told.hear(arm=2) for _ in range(3)]
    assert any(one.restart for one in verdicts)
    assert told.history.held() == [1, 2]
    assert all(one.decision != 2 for verdict in verdicts for one in verdict.released)


def test_what_went_on_for_longer_than_the_best_takes_is_still_told(told):
    """It would be tried again, as dear as before, whenever a liar is found out."""
    told.hear(arm=1, epochs=4.0)
    dear = {"end": int(RunEnd.STOPPED), "epochs": 25.0, "cost": 25.0 * EPOCH_COST}
    told.hear(arm=0, **dear, ceiling=26.0 * EPOCH_COST)
    verdicts = [told.hear(arm=1, epochs=20.0) for _ in range(2)]
    assert any(one.restart for one in verdicts)
    assert told.history.held() == [1]


def test_nobody_is_stopped_where_there_is_no_ceiling(told):
    """One who says so of the default before anybody else has run it would make it look dear."""
    refused = {"end": int(RunEnd.STOPPED), "epochs": 0.0, "cost": 0.0, "measured": []}
    assert not told.hear(**refused).believed
    assert told.hear().believed
    assert (
        told.hear(kind=ActionKind.PROBE, arm=1, end=int(RunEnd.PROBED), epochs=0.0).released == []
    )
    assert told.history.held() == [1]


def test_the_surest_is_what_most_have_shown(told):
    """A recurrence would be sent from one lie to the next, or back to a dear default for ever."""
    assert told.history.surest() == 64
    for _ in range(2):
        told.hear(arm=1, epochs=21.0)
    assert told.history.surest() == 64
    told.hear(arm=1)
    assert told.history.surest() == 32
    told.hear(arm=2)
    assert told.history.surest() == 64


def test_failing_early_takes_a_second_report(told):
    """One false alarm would drop a batch size for good."""
    for _ in range(3):
        told.hear()
    failing = {"arm": 3, "end": int(RunEnd.EXHAUSTED), "epochs": 1.0, "measured": []}
    assert not told.hear(**failing).believed
    verdict = told.hear(**failing)
    assert verdict.believed
    assert [report.decision for report in verdict.released] == [4]


def test_batch_sizes_differ_as_far_as_they_do(told):
    """A batch size that is really worse would have to prove it twice."""
    for _ in range(3):
        told.hear(arm=2)
    assert told.hear(arm=1, epochs=50.0).believed
    assert not told.hear(arm=3, factor=20.0).believed


def test_an_epoch_in_larger_steps_costs_no_more(told):
    """A lie about the first batch size would hide that it is best for good."""
    told.hear(arm=2)
    half = told.hear(arm=0, factor=4.0)  # four times the steps
    assert half.believed
    assert not half.restart
    assert not told.hear(arm=3, factor=4.0).believed
    assert told.hear(arm=3, factor=0.5).believed


def test_stopping_where_the_ceiling_is_takes_nobody_else(told):
    """A batch size whose first epoch is too dear would have to prove it twice."""
    for _ in range(3):
        told.hear()
    stopped = {"end": int(RunEnd.STOPPED), "epochs": 0.0, "cost": 0.0}
    assert told.hear(**stopped, arm=0, factor=4.0, ceiling=3.0 * EPOCH_COST).believed
    assert not told.hear(**stopped, arm=1, factor=2.0, ceiling=30.0 * EPOCH_COST).believed


def test_a_false_alarm_contradicts_nobody(told):
    """Those who get there would be doubted because somebody gave up."""
    for _ in range(3):
        told.hear()
    for _ in range(3):
        told.hear(arm=3, recurrence=99, end=int(RunEnd.EXHAUSTED), epochs=1.0, measured=[])
    assert told.hear(arm=3).believed


def test_a_probe_is_judged_by_the_cost_of_an_epoch(told):
    """A lie about seconds would mislead as well as one about hours."""
    for _ in range(3):
        told.hear()
    probe = {"kind": ActionKind.PROBE, "end": int(RunEnd.PROBED), "epochs": 0.0, "cost": 50.0}
    assert told.hear(**probe).believed
    assert not told.hear(**probe, factor=0.01).believed


def test_silence_claims_nothing(told):
    """A dead worker would count as a witness."""
    assert told.hear(end=int(RunEnd.ABANDONED), measured=[]).believed
    assert told.history.latest == []


def test_memory_is_bounded_and_comes_back_the_same(told):
    """A restart would hold other reports than the process before."""
    for turn in range(3 * _LATEST):
        told.hear(arm=turn % 4, epochs=1.0 if turn % 9 == 0 else 20.0)
    history = told.history
    assert len(history.latest) == _LATEST
    back = ReportFilter.from_document(JOB, json.loads(json.dumps(history.to_document())))
    assert back.to_document() == history.to_document()
    assert back.held() == history.held() != []
