"""Which reports the desk believes."""

import json
import math

import pytest

from joulery.objectives import Cost
from joulery.recurring.desk_history import _LATEST, History
from joulery.recurring.job import Job
from joulery.recurring.policy import End, Kind

JOB = Job("job", (16, 32, 64, 128), 64, Cost(0.5, 300.0), limits_watts=(100.0, 200.0))
EPOCH_COST = 0.5 * 1000.0 + 0.5 * 300.0 * 10.0


class Listener:
    """Tells a history of reports and keeps what it makes of them."""

    def __init__(self):
        self.history = History(JOB)
        self.number = 0

    def hear(self, arm=2, epochs=20.0, **changes):
        """One report; of a recurrence of its own unless told otherwise."""
        self.number += 1
        factor = changes.pop("factor", 1.0)
        kind = changes.pop("kind", Kind.TRAIN)
        ceiling = changes.pop("ceiling", None)
        body = {
            "action": {
                "kind": int(kind),
                "arm": arm,
                "batch_size": JOB.batch_sizes[arm],
                "ceiling": ceiling,
            },
            "recurrence": self.number,
            "end": int(End.REACHED),
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
    failures = [told.hear(recurrence=99, end=int(End.EXHAUSTED), epochs=5.0) for _ in range(12)]
    assert [place for place, one in enumerate(failures, 1) if one.believed] == [3, 6, 12]
    assert not any(one.restart or one.released for one in failures)
    assert told.hear().believed


def test_failing_early_takes_a_second_report(told):
    """One false alarm would drop a batch size for good."""
    for _ in range(3):
        told.hear()
    failing = {"arm": 3, "end": int(End.EXHAUSTED), "epochs": 1.0, "measured": []}
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
    stopped = {"end": int(End.STOPPED), "epochs": 0.0, "cost": 0.0}
    assert told.hear(**stopped, arm=0, factor=4.0, ceiling=3.0 * EPOCH_COST).believed
    assert not told.hear(**stopped, arm=1, factor=2.0, ceiling=30.0 * EPOCH_COST).believed


def test_a_false_alarm_contradicts_nobody(told):
    """Those who get there would be doubted because somebody gave up."""
    for _ in range(3):
        told.hear()
    for _ in range(3):
        told.hear(arm=3, recurrence=99, end=int(End.EXHAUSTED), epochs=1.0, measured=[])
    assert told.hear(arm=3).believed


def test_a_probe_is_judged_by_the_cost_of_an_epoch(told):
    """A lie about seconds would mislead as well as one about hours."""
    for _ in range(3):
        told.hear()
    probe = {"kind": Kind.PROBE, "end": int(End.PROBED), "epochs": 0.0, "cost": 50.0}
    assert told.hear(**probe).believed
    assert not told.hear(**probe, factor=0.01).believed


def test_silence_claims_nothing(told):
    """A dead worker would count as a witness."""
    assert told.hear(end=int(End.ABANDONED), measured=[]).believed
    assert told.history.latest == []


def test_memory_is_bounded_and_comes_back_the_same(told):
    """A restart would hold other reports than the process before."""
    for turn in range(3 * _LATEST):
        told.hear(arm=turn % 4, epochs=1.0 if turn % 9 == 0 else 20.0)
    history = told.history
    assert len(history.latest) == _LATEST
    back = History.from_document(JOB, json.loads(json.dumps(history.to_document())))
    assert back.to_document() == history.to_document()
    assert back.held() == history.held() != []
