"""A training is never delayed beyond the bound, never stopped, and its report is never lost."""

import logging
import time
from dataclasses import replace

import pytest

from joulery.client.opening import open_backend
from joulery.client.resilient import Order, ResilientClient
from joulery.errors import ConflictError, MissingRightsError, StoreBusyError, StoreError
from joulery.jobs.job import Job
from joulery.jobs.models import Outcome
from joulery.jobs.policies.base import RunEnd
from joulery.jobs.requests import Definition, Request
from joulery.objectives import Cost
from joulery.testing.watched_clerk import RecordingBackend

JOB = Job("nightly", (64, 128, 256), 128, Cost(0.5, 300.0))
REACHED = Outcome(RunEnd.REACHED, 20.0, 40.0, 9000.0)


class Switch(RecordingBackend):
    """A clerk on a store that can be made to fail, hang or refuse."""

    error = None
    hang_seconds = 0.0

    def before(self, name):
        """Hang and fail as told."""
        time.sleep(self.hang_seconds)
        if self.error is not None and name != "close":
            raise self.error


@pytest.fixture
def switch(tmp_path, clock):
    """A clerk that fails as told."""
    made = Switch(tmp_path / "store.sqlite", clock)
    yield made
    made.inner.close()


@pytest.fixture
def steady(switch, clock):
    """The same, made steady."""
    return ResilientClient(lambda: switch, "http://there", 5.0, Order(Definition(JOB)), clock=clock)


def down():
    """What a dead server is like."""
    return StoreBusyError("no answer", remedy="start it")


def delivered(steady):
    """Wait for reports to be delivered in the background."""
    if steady._replaying is not None:
        steady._replaying.join(10.0)


def outcomes(switch):
    """Keys and ends of all that was reported."""
    entries, _ = switch.inner.decisions(1)
    return [(e.decision.id, e.outcome.end) for e in entries if e.outcome is not None]


def test_all_is_well(steady, switch):
    """If this fails, a run on a healthy store learns nothing."""
    decision = steady.decide(Request("a"))
    assert decision.id
    assert steady.trouble is None
    steady.report(decision, REACHED, "a")
    assert outcomes(switch) == [(decision.id, RunEnd.REACHED)]


def test_nobody_there_means_the_default(steady, switch, caplog):
    """If this fails, a dead server stops a training."""
    switch.error = down()
    with caplog.at_level(logging.WARNING, "joulery"):
        decision = steady.decide(Request("a"))
    assert (decision.id, decision.batch_size) == ("", 128)
    assert decision.cost_ceiling_joules == float("inf")
    assert len(caplog.records) == 1
    assert "no answer" in caplog.text
    steady.heartbeat(decision, REACHED)
    steady.report(decision, REACHED, "a")
    assert "report" not in switch.calls


def untold(steady, switch, clock, seconds=3600.0, outcome=REACHED):
    """A run that nobody could be asked about."""
    switch.error = down()
    decision = steady.decide(Request("a"))
    clock.sleep(seconds)
    steady.report(decision, outcome, "a")
    switch.error = None
    return decision


def test_a_run_that_nobody_could_be_asked_about_teaches_later(steady, switch, clock):
    """If this fails, all that is trained during an outage is lost."""
    long = Outcome(RunEnd.REACHED, 20.0, 3500.0, 9000.0)
    decision = untold(steady, switch, clock, outcome=long)
    (entry,) = steady._journal.entries()
    assert entry.request.ran_seconds == 3600.0
    clock.sleep(20.0)
    steady.decide(Request("b"))
    delivered(steady)
    assert not steady._journal.waiting
    entries, _ = switch.inner.decisions(1)
    told = next(one for one in entries if one.outcome is not None)
    assert (told.decision.batch_size, told.outcome) == (decision.batch_size, long)
    assert told.key == "a-instead"


def test_what_is_asked_for_later_counts_once(steady, switch, clock):
    """If this fails, a replay that dies half way makes a run count twice, or not at all."""
    untold(steady, switch, clock)
    (entry,) = steady._journal.entries()
    for _ in range(2):  # somebody died before taking it out of the journal
        entry.tell(switch.inner)
        clock.sleep(100.0)
    steady.decide(Request("b"))
    delivered(steady)
    assert outcomes(switch) == [("1.1", RunEnd.REACHED)]
    assert not steady._journal.waiting


def test_a_server_that_is_back_by_the_end_is_told_at_once(steady, switch, clock):
    """If this fails, the last run before a long pause waits for the next."""
    switch.error = down()
    decision = steady.decide(Request("a"))
    clock.sleep(60.0)
    switch.error = None
    steady.report(decision, REACHED, "a")
    assert not steady._journal.waiting
    assert outcomes(switch) == [("1.1", RunEnd.REACHED)]


def test_a_lost_answer_does_not_keep_the_run_from_teaching(steady, switch, clock):
    """If this fails, a decision that was stored but never heard of is in the way."""
    stored = switch.inner.decide(switch.inner.define(Definition(JOB)).job, Request("a"))
    untold(steady, switch, clock)
    clock.sleep(20.0)
    steady.decide(Request("b"))
    delivered(steady)
    ((told, end),) = outcomes(switch)
    assert told != stored.id
    assert end == RunEnd.REACHED


def test_a_job_that_was_changed_meanwhile_is_not_changed_back(steady, switch, clock):
    """If this fails, an old run makes a version of its own, and the next run another."""
    untold(steady, switch, clock)
    switch.inner.define(Definition(replace(JOB, max_epochs=7)))
    clock.sleep(20.0)
    other = ResilientClient(
        lambda: switch,
        "http://there",
        5.0,
        Order(Definition(replace(JOB, max_epochs=7))),
        clock=clock,
    )
    other.decide(Request("b"))
    delivered(other)
    assert [job.version for job in switch.inner.jobs()[0]] == [1]
    assert not steady._journal.waiting


def test_another_teams_run_waits_for_that_team(switch, clock):
    """If this fails, one team's run is learned by another's job of the same name."""
    mine, theirs = (
        ResilientClient(
            lambda: switch, "http://there", 5.0, Order(Definition(JOB), team), clock=clock
        )
        for team in ("mine", "theirs")
    )
    untold(mine, switch, clock)
    clock.sleep(20.0)
    theirs.decide(Request("b"))
    delivered(theirs)
    assert outcomes(switch) == []
    mine.decide(Request("c"))
    delivered(mine)
    assert [end for _, end in outcomes(switch)] == [RunEnd.REACHED]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StoreBusyError("no answer", remedy="start it"), Outcome(RunEnd.ABANDONED, 0.0, 0.0, 0.0)),
        (ConflictError("paused", remedy="resume it"), REACHED),
        (MissingRightsError("no such token", remedy="get one"), REACHED),
    ],
)
def test_what_tells_nothing_or_was_refused_is_not_kept(steady, switch, clock, error, outcome):
    """If this fails, pausing a job does not keep its runs from teaching, or journals fill up."""
    switch.error = error
    decision = steady.decide(Request("a"))
    clock.sleep(60.0)
    steady.report(decision, outcome, "a")
    assert not steady._journal.waiting


def test_what_was_wanted_is_run_when_nobody_answers(steady, switch):
    """If this fails, an outage changes what an observer trains."""
    steady._remembered.note(_setting(256))
    switch.error = down()
    decision = steady.decide(Request("a", only=64))
    assert (decision.batch_size, decision.power_limit_watts) == (64, None)
    switch.error = None
    assert steady.decide(Request("b", only=64)).batch_size == 64


def test_nobody_there_means_what_was_good_before(steady, switch, clock):
    """If this fails, an outage throws every job back to its default."""
    decision = steady.decide(Request("a"))
    good = Outcome(RunEnd.REACHED, 20.0, 40.0, 9000.0, 175.0)
    steady.report(decision, good, "a")
    steady._remembered.note(type(steady._remembered.recall([128]))(256, 175.0))
    switch.error = down()
    again = steady.decide(Request("b"))
    assert (again.id, again.batch_size, again.power_limit_watts) == ("", 256, 175.0)
    assert "last run" in again.reason


def test_a_paused_job_runs_its_default_even_if_better_is_known(steady, switch):
    """If this fails, pausing a job does not give its owner back what they know."""
    steady._remembered.note(_setting(256))
    switch.error = ConflictError("paused", remedy="resume it")
    assert steady.decide(Request("a")).batch_size == 128


def _setting(size):
    from joulery.client.last_good import LastGood

    return LastGood(size, None)


def test_a_batch_size_that_is_not_allowed_any_more_is_not_repeated(steady, switch):
    """If this fails, an outage brings back what the owner took out."""
    steady._remembered.note(_setting(512))
    switch.error = down()
    assert steady.decide(Request("a")).batch_size == 128


def test_a_store_that_hangs_is_given_up_within_the_bound(switch, clock):
    """If this fails, a store that hangs delays a training."""
    steady = ResilientClient(
        lambda: switch, "http://there", 0.1, Order(Definition(JOB)), clock=clock
    )
    switch.hang_seconds = 0.5
    began = time.monotonic()
    decision = steady.decide(Request("a"))
    assert time.monotonic() - began < 0.35
    assert decision.batch_size == 128
    time.sleep(0.9)  # what was given up ends in the background


def test_a_report_is_kept_and_delivered_when_somebody_is_back(steady, switch, clock):
    """If this fails, what a run found out during an outage is lost."""
    decision = steady.decide(Request("a"))
    switch.error = down()
    steady.report(decision, REACHED, "a")
    assert steady._journal.waiting
    switch.error = None
    clock.sleep(20.0)
    steady.decide(Request("b"))
    delivered(steady)
    assert outcomes(switch) == [(decision.id, RunEnd.REACHED)]
    assert not steady._journal.waiting


def test_another_process_delivers_what_one_left(switch, clock):
    """If this fails, reports of processes that ended during an outage wait for ever."""
    first = ResilientClient(
        lambda: switch, "http://there", 5.0, Order(Definition(JOB)), clock=clock
    )
    decision = first.decide(Request("a"))
    switch.error = down()
    first.report(decision, REACHED, "a")
    switch.error = None
    second = ResilientClient(
        lambda: switch, "http://there", 5.0, Order(Definition(JOB)), clock=clock
    )
    second.decide(Request("b"))
    delivered(second)
    assert outcomes(switch) == [(decision.id, RunEnd.REACHED)]


def test_a_report_that_was_taken_without_an_answer_counts_once(steady, switch, clock):
    """If this fails, a lost answer makes a run count twice."""
    decision = steady.decide(Request("a"))
    switch.inner.report(decision, REACHED, "a")
    switch.error = down()
    steady.report(decision, REACHED, "a")
    switch.error = None
    clock.sleep(20.0)
    steady.decide(Request("b"))
    delivered(steady)
    assert outcomes(switch) == [(decision.id, RunEnd.REACHED)]
    assert not steady._journal.waiting


def test_a_dead_server_is_not_asked_at_every_turn(steady, switch, clock):
    """If this fails, each heartbeat of an outage costs the bound again."""
    decision = steady.decide(Request("a"))
    switch.error = down()
    for _ in range(5):
        steady.heartbeat(decision, REACHED)
    assert switch.calls.count("heartbeat") == 1
    clock.sleep(16.0)
    steady.heartbeat(decision, REACHED)
    assert switch.calls.count("heartbeat") == 2


def test_progress_during_an_outage_reaches_the_store(steady, switch, clock):
    """If this fails, a run that dies in an outage has cost nothing, as far as the policy knows."""
    decision = steady.decide(Request("a"))
    switch.error = down()
    steady.heartbeat(decision, Outcome(RunEnd.ABANDONED, 3.0, 30.0, 6000.0))
    switch.error = None
    clock.sleep(20.0)
    steady.decide(Request("b"))
    delivered(steady)
    with switch.inner._store.reading() as ledger:
        assert ledger.decisions(1)[0].progress["epochs"] == 3.0


def test_what_is_refused_is_said_and_not_kept(steady, switch, caplog):
    """If this fails, an impossible report is sent again for ever."""
    decision = steady.decide(Request("a"))
    steady.report(decision, Outcome(RunEnd.REACHED, 20.0, 40.0, 1e12), "a")
    assert "not taken" in caplog.text
    assert not steady._journal.waiting


def test_without_rights_the_default_is_run(steady, switch, caplog):
    """If this fails, an expired token stops trainings."""
    switch.error = MissingRightsError("no such token", remedy="get one")
    assert steady.decide(Request("a")).batch_size == 128
    assert "get one" in caplog.text


def test_a_journal_that_cannot_be_written_hurts_nobody(steady, switch, monkeypatch, caplog):
    """If this fails, a full disk ends a training."""
    decision = steady.decide(Request("a"))
    switch.error = down()
    steady._journal._path.parent.parent.mkdir(parents=True, exist_ok=True)
    steady._journal._path.parent.write_text("in the way")
    steady.report(decision, REACHED, "a")
    assert "cannot keep" in caplog.text


def test_opening_that_fails_is_no_harm(clock, tmp_path, caplog):
    """If this fails, a folder without rights stops a training."""
    (tmp_path / "file").write_text("")
    steady = ResilientClient(
        lambda: open_backend(tmp_path / "file" / "s.sqlite"),
        "x",
        5.0,
        Order(Definition(JOB)),
        clock=clock,
    )
    assert steady.decide(Request("a")).batch_size == 128
    steady.close()


def test_closing_twice_and_closing_unopened_is_fine(steady):
    """If this fails, the end of a process raises."""
    steady.close()
    steady.close()


def test_the_error_of_a_quiet_time_is_the_one_that_began_it(steady, switch):
    """If this fails, logs hide why reports wait."""
    decision = steady.decide(Request("a"))
    switch.error = StoreError("disk on fire", remedy="extinguish")
    steady.report(decision, REACHED, "a")
    assert "disk on fire" in str(steady.trouble)
