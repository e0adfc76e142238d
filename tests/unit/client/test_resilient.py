"""A training is never delayed beyond the bound, never stopped, and its report is never lost."""

import logging
import threading
import time

import pytest
from msgspec.structs import replace

from joulery.client import ResilientClient, RunMeasurements, open_backend
from joulery.errors import ConflictError, MissingRightsError, StoreBusyError, StoreError
from joulery.frontier import OperatingPoint, Setting
from joulery.jobs import Definition, EnergyEntry, Job, Outcome, Request
from joulery.jobs.policies import RunEnd
from joulery.objectives import Cost
from support.recording_backend import RecordingBackend

JOB = Job("nightly", (64, 128, 256), 128, Cost(0.5, 300.0))
REACHED = Outcome(RunEnd.REACHED, 20.0, 40.0, 9000.0)


class Switch(RecordingBackend):
    """A backend on a store that can be made to fail, hang or refuse."""

    error = None

    def __init__(self, path, clock):
        super().__init__(path, clock)
        self.answers = threading.Event()
        self.answers.set()

    def before(self, name):
        """Hang and fail as the test wants."""
        self.answers.wait(60.0)
        if self.error is not None and name != "close":
            raise self.error


@pytest.fixture
def switch(tmp_path, clock):
    """A backend that fails as the test wants."""
    made = Switch(tmp_path / "store.sqlite", clock)
    yield made
    made.inner.close()


@pytest.fixture
def client(switch, clock):
    """The same, made client."""
    return ResilientClient(lambda: switch, "http://there", 60.0, Definition(JOB), clock=clock)


def down():
    """What a dead server is like."""
    return StoreBusyError("no answer", remedy="start it")


def delivered(client):
    """Wait for reports to be delivered in the background."""
    if client._delivering is not None:
        client._delivering.join(60.0)


def outcomes(switch):
    """Keys and ends of all that was reported."""
    entries, _ = switch.inner.decisions(1)
    return [(e.decision.id, e.outcome.end) for e in entries if e.outcome is not None]


def test_all_is_well(client, switch):
    """If this fails, a run on a healthy store learns nothing."""
    decision = client.decide(Request("a"))
    assert decision.id
    assert client.trouble is None
    client.report(decision, REACHED, "a")
    assert outcomes(switch) == [(decision.id, RunEnd.REACHED)]


def test_no_answer_means_the_default(client, switch, caplog):
    """If this fails, a dead server stops a training."""
    switch.error = down()
    with caplog.at_level(logging.WARNING, "joulery"):
        decision = client.decide(Request("a"))
    assert (decision.id, decision.batch_size) == ("", 128)
    assert decision.cost_ceiling_joules == float("inf")
    assert len(caplog.records) == 1
    assert "no answer" in caplog.text
    client.heartbeat(decision, REACHED)
    client.report(decision, REACHED, "a")
    assert "report" not in switch.calls


def offline(client, switch, clock, seconds=3600.0, outcome=REACHED):
    """A run that was made without an answer."""
    switch.error = down()
    decision = client.decide(Request("a"))
    clock.sleep(seconds)
    client.report(decision, outcome, "a")
    switch.error = None
    return decision


def test_a_run_without_an_answer_is_learned_from_later(client, switch, clock):
    """If this fails, all that is trained during an outage is lost."""
    long = Outcome(RunEnd.REACHED, 20.0, 3500.0, 9000.0)
    decision = offline(client, switch, clock, outcome=long)
    (entry,) = client._outbox.entries()
    assert entry.request.ran_seconds == 3600.0
    clock.sleep(20.0)
    client.decide(Request("b"))
    delivered(client)
    assert not client._outbox.waiting
    entries, _ = switch.inner.decisions(1)
    reported = next(one for one in entries if one.outcome is not None)
    assert (reported.decision.batch_size, reported.outcome) == (decision.batch_size, long)
    assert reported.key == "a-instead"


def test_what_is_asked_for_later_counts_once(client, switch, clock):
    """If this fails, a replay that dies half way makes a run count twice, or not at all."""
    offline(client, switch, clock)
    (entry,) = client._outbox.entries()
    for _ in range(2):  # a process was killed before it removed the entry
        entry.deliver(switch.inner)
        clock.sleep(100.0)
    client.decide(Request("b"))
    delivered(client)
    assert outcomes(switch) == [("1.1", RunEnd.REACHED)]
    assert not client._outbox.waiting


def test_measurements_of_a_run_without_an_answer_are_delivered_once(client, switch, clock):
    """If this fails, the energy of every run during an outage is missing from the job's total."""
    switch.error = down()
    decision = client.decide(Request("a"))
    clock.sleep(60.0)
    used = EnergyEntry(None, "gpu 0", 60.0, 9000.0, "measured")
    point = OperatingPoint(6.0, 900.0, Setting(200.0))
    found = RunMeasurements(decision.batch_size, "", (point,), (used,), "an epoch")
    client.report(decision, REACHED, "a", lambda: found)
    switch.error = None
    (entry,) = client._outbox.entries()
    entry.deliver(switch.inner)  # a process was killed before it removed the entry
    client.decide(Request("b"))
    delivered(client)
    (energy,), _ = switch.inner.energy(1)
    assert (energy.decision, energy.joules) == ("1.1", 9000.0)
    (profile,) = switch.inner.profiles(1)
    assert profile.frontier.points[0].joules == 900.0


def test_a_server_that_is_back_by_the_end_is_reported_at_once(client, switch, clock):
    """If this fails, the last run before a long pause waits for the next."""
    switch.error = down()
    decision = client.decide(Request("a"))
    clock.sleep(60.0)
    switch.error = None
    client.report(decision, REACHED, "a")
    assert not client._outbox.waiting
    assert outcomes(switch) == [("1.1", RunEnd.REACHED)]


def test_a_lost_answer_does_not_keep_the_run_from_teaching(client, switch, clock):
    """If this fails, a decision that was stored but never heard of is in the way."""
    stored = switch.inner.decide(switch.inner.define(Definition(JOB)).id, Request("a"))
    offline(client, switch, clock)
    clock.sleep(20.0)
    client.decide(Request("b"))
    delivered(client)
    ((reported, end),) = outcomes(switch)
    assert reported != stored.id
    assert end == RunEnd.REACHED


def test_a_job_that_was_changed_meanwhile_is_not_changed_back(client, switch, clock):
    """If this fails, an old run makes a version of its own, and the next run another."""
    offline(client, switch, clock)
    switch.inner.define(Definition(replace(JOB, max_epochs=7)))
    clock.sleep(20.0)
    other = ResilientClient(
        lambda: switch,
        "http://there",
        5.0,
        Definition(replace(JOB, max_epochs=7)),
        clock=clock,
    )
    other.decide(Request("b"))
    delivered(other)
    assert [job.version for job in switch.inner.jobs()[0]] == [1]
    assert not client._outbox.waiting


def test_another_teams_run_waits_for_that_team(switch, clock):
    """If this fails, one team's run is learned by another's job of the same name."""
    mine, theirs = (
        ResilientClient(
            lambda: switch, "http://there", 60.0, Definition(JOB), team=team, clock=clock
        )
        for team in ("mine", "theirs")
    )
    offline(mine, switch, clock)
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
def test_what_tells_nothing_or_was_refused_is_not_kept(client, switch, clock, error, outcome):
    """If this fails, pausing a job does not keep its runs from teaching, or outboxs fill up."""
    switch.error = error
    decision = client.decide(Request("a"))
    clock.sleep(60.0)
    client.report(decision, outcome, "a")
    assert not client._outbox.waiting


def test_what_was_wanted_is_run_without_an_answer(client, switch):
    """If this fails, an outage changes what an observer trains."""
    switch.error = down()
    decision = client.decide(Request("a", only=64))
    assert (decision.batch_size, decision.power_limit_watts) == (64, None)
    switch.error = None
    assert client.decide(Request("b", only=64)).batch_size == 64


def test_a_store_that_hangs_is_given_up_within_the_bound(switch, clock):
    """If this fails, a store that hangs delays a training."""
    client = ResilientClient(lambda: switch, "http://there", 0.1, Definition(JOB), clock=clock)
    switch.answers.clear()
    began, before = time.monotonic(), set(threading.enumerate())
    decision = client.decide(Request("a"))
    assert time.monotonic() - began < 30.0
    assert decision.batch_size == 128
    switch.answers.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60.0)  # what was given up ends in the background


def test_a_report_is_kept_and_delivered_when_the_backend_is_back(client, switch, clock):
    """If this fails, what a run found out during an outage is lost."""
    decision = client.decide(Request("a"))
    switch.error = down()
    client.report(decision, REACHED, "a")
    assert client._outbox.waiting
    switch.error = None
    clock.sleep(20.0)
    client.decide(Request("b"))
    delivered(client)
    assert outcomes(switch) == [(decision.id, RunEnd.REACHED)]
    assert not client._outbox.waiting


def test_another_process_delivers_what_one_left(switch, clock):
    """If this fails, reports of processes that ended during an outage wait for ever."""
    first = ResilientClient(lambda: switch, "http://there", 60.0, Definition(JOB), clock=clock)
    decision = first.decide(Request("a"))
    switch.error = down()
    first.report(decision, REACHED, "a")
    switch.error = None
    second = ResilientClient(lambda: switch, "http://there", 60.0, Definition(JOB), clock=clock)
    second.decide(Request("b"))
    delivered(second)
    assert outcomes(switch) == [(decision.id, RunEnd.REACHED)]


def test_a_report_that_was_taken_without_an_answer_counts_once(client, switch, clock):
    """If this fails, a lost answer makes a run count twice."""
    decision = client.decide(Request("a"))
    switch.inner.report(decision, REACHED, "a")
    switch.error = down()
    client.report(decision, REACHED, "a")
    switch.error = None
    clock.sleep(20.0)
    client.decide(Request("b"))
    delivered(client)
    assert outcomes(switch) == [(decision.id, RunEnd.REACHED)]
    assert not client._outbox.waiting


def test_a_dead_server_is_not_asked_at_every_turn(client, switch, clock):
    """If this fails, each heartbeat of an outage costs the bound again."""
    decision = client.decide(Request("a"))
    switch.error = down()
    for _ in range(5):
        client.heartbeat(decision, REACHED)
    assert switch.calls.count("heartbeat") == 1
    clock.sleep(16.0)
    client.heartbeat(decision, REACHED)
    assert switch.calls.count("heartbeat") == 2


def test_what_is_refused_is_said_and_not_kept(client, switch, caplog):
    """If this fails, an impossible report is sent again for ever."""
    decision = client.decide(Request("a"))
    client.report(decision, Outcome(RunEnd.REACHED, 20.0, 40.0, 1e12), "a")
    assert "refused" in caplog.text
    assert not client._outbox.waiting


def test_without_rights_the_default_is_run(client, switch, caplog):
    """If this fails, an expired token stops trainings."""
    switch.error = MissingRightsError("no such token", remedy="get one")
    assert client.decide(Request("a")).batch_size == 128
    assert "get one" in caplog.text


def test_an_outbox_that_cannot_be_written_ends_no_training(client, switch, monkeypatch, caplog):
    """If this fails, a full disk ends a training."""
    decision = client.decide(Request("a"))
    switch.error = down()
    client._outbox._path.parent.parent.mkdir(parents=True, exist_ok=True)
    client._outbox._path.parent.write_text("in the way")
    client.report(decision, REACHED, "a")
    assert "cannot keep" in caplog.text


def test_opening_that_fails_is_no_harm(clock, tmp_path, caplog):
    """If this fails, a folder without rights stops a training."""
    (tmp_path / "file").write_text("")
    client = ResilientClient(
        lambda: open_backend(tmp_path / "file" / "s.sqlite"),
        "x",
        5.0,
        Definition(JOB),
        clock=clock,
    )
    assert client.decide(Request("a")).batch_size == 128
    client.close()


def test_closing_twice_and_closing_unopened_is_fine(client):
    """If this fails, the end of a process raises."""
    client.close()
    client.close()


def test_the_error_of_a_quiet_time_is_the_one_that_began_it(client, switch):
    """If this fails, logs hide why reports wait."""
    decision = client.decide(Request("a"))
    switch.error = StoreError("disk on fire", remedy="extinguish")
    client.report(decision, REACHED, "a")
    assert "disk on fire" in str(client.trouble)
