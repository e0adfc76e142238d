"""Measurements of runs are stored in the background, after the report."""

import threading
import time

import pytest

from joulery.client import ResilientClient, RunMeasurements
from joulery.client._outbox import Outbox, merged_frontier, upload_measurements
from joulery.errors import StoreBusyError, UnknownRecordError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.jobs import Definition, EnergyEntry, Job, Outcome, Request
from joulery.jobs.policies import RunEnd
from joulery.objectives import Cost
from support.recording_backend import RecordingBackend

JOB = Job("nightly", (64, 128), 128, Cost(0.5, 300.0))
REACHED = Outcome(RunEnd.REACHED, 20.0, 40.0, 9000.0)


def point(limit, seconds, joules, origin=Origin.MEASURED, error=0.01):
    """An epoch under a limit."""
    setting = Setting(power_limit_watts=limit, batch_size=128)
    return OperatingPoint(seconds, joules, setting, Provenance(origin, "test", error))


FAST, LEAN = point(250.0, 10.0, 2000.0), point(150.0, 12.0, 1500.0)


def found(*points, energy=()):
    """Findings at batch size 128."""
    return RunMeasurements(128, "V100", points, energy, "an epoch")


def kept(*points):
    """What was kept before."""
    return Frontier.from_points(points)


def test_the_first_findings_are_kept_as_they_are():
    """If this fails, nothing is ever known of a batch size."""
    frontier = merged_frontier(None, found(LEAN, FAST))
    assert frontier.points == (FAST, LEAN)
    assert frontier.work == "an epoch"


def test_limits_that_were_not_measured_now_stay():
    """If this fails, every run forgets what earlier ones measured."""
    slower = point(150.0, 13.0, 1400.0)
    assert merged_frontier(kept(FAST, LEAN), found(slower)).points == (FAST, slower)
    between = point(200.0, 11.0, 1600.0)
    assert merged_frontier(kept(FAST, LEAN), found(between)).points == (FAST, between, LEAN)


def test_limits_that_no_longer_pay_leave_the_frontier():
    """If this fails, what is kept is no frontier."""
    better = point(200.0, 9.0, 1400.0)
    assert merged_frontier(kept(FAST, LEAN), found(better)).points == (better,)


@pytest.mark.parametrize(
    "measured", [point(250.0, 10.5, 2000.0), point(250.0, 10.0, 2100.0), FAST.scaled(1.1)]
)
def test_the_latest_figure_of_a_limit_counts(measured):
    """If this fails, a frontier of last year's software is shown for ever."""
    assert merged_frontier(kept(FAST, LEAN), found(measured)).fastest == measured


def test_simulated_figures_never_replace_measured_ones():
    """If this fails, a simulation on a developer's machine spoils what was measured."""
    simulated = point(150.0, 11.0, 900.0, Origin.SIMULATED)
    assert merged_frontier(kept(FAST, LEAN), found(simulated)) is None
    assert merged_frontier(kept(simulated), found(FAST)).points == (FAST,)
    again = merged_frontier(kept(simulated), found(point(150.0, 12.0, 900.0, Origin.SIMULATED)))
    assert {one.provenance.origin for one in again} == {Origin.SIMULATED}


class Counting(RecordingBackend):
    """A backend that waits for a gate, and fails as the test wants."""

    def __init__(self, path, clock):
        super().__init__(path, clock)
        self.failing = {}
        self.gate = threading.Event()
        self.gate.set()

    def before(self, name):
        """Wait and fail as told."""
        if name not in ("define", "decide", "report", "close"):
            assert self.gate.wait(60.0)
        if name in self.failing:
            raise self.failing[name]


@pytest.fixture
def counting(tmp_path, clock):
    """A backend that counts."""
    made = Counting(tmp_path / "store.sqlite", clock)
    yield made
    made.gate.set()
    made.inner.close()


def client_on(counting, clock, seconds=60.0):
    """The same, made client."""
    wanted = Definition(JOB, "V100")
    return ResilientClient(lambda: counting, "http://there", seconds, wanted, clock=clock)


def delivered(client):
    """Wait for the delivery in the background."""
    if client._delivering is not None:
        client._delivering.join(60.0)


def reported(client, key, *points, devices=1):
    """A run that is reported with its findings."""
    decision = client.decide(Request(key))
    energy = tuple(
        EnergyEntry(decision.id, f"gpu {number}", 40.0, 4500.0, "measured", "a counter")
        for number in range(devices)
    )
    client.report(decision, REACHED, key, lambda: found(*points, energy=energy))
    delivered(client)
    return decision


def test_findings_follow_the_report(counting, clock):
    """If this fails, energy and frontiers of runs are not kept."""
    client = client_on(counting, clock)
    decision = reported(client, "a", FAST, LEAN, devices=2)
    (profile,) = counting.inner.profiles(1)
    assert profile.frontier.points == (FAST, LEAN)
    assert [(one.decision, one.device) for one in counting.inner.energy(1)[0]] == [
        (decision.id, "gpu 0"),
        (decision.id, "gpu 1"),
    ]


def test_a_run_makes_few_requests(counting, clock):
    """If this fails, reports are sent twice, or runs that measured nothing ask for profiles."""
    client = client_on(counting, clock)
    reported(client, "a", FAST, LEAN)
    counting.calls.clear()
    reported(client, "b", FAST)
    assert counting.calls == ["decide", "report", "add_energy", "profiles", "put_profile"]
    counting.calls.clear()
    reported(client, "c", devices=0)
    assert counting.calls == ["decide", "report"]


def test_measurements_of_a_run_that_is_not_reported_follow_its_report(counting, clock):
    """If this fails, energy counts that no report tells of, or an outage loses it."""
    client = client_on(counting, clock)
    counting.failing["report"] = StoreBusyError("down", remedy="wait")
    reported(client, "a", FAST)
    assert counting.calls == ["define", "decide", "report"]
    counting.failing.clear()
    clock.sleep(20.0)
    client.decide(Request("b"))
    delivered(client)
    assert counting.calls[4:6] == ["report", "add_energy"]
    assert not client._outbox.waiting


def test_measurements_are_on_the_disk_before_a_report_returns(counting, clock):
    """If this fails, a process that ends right after its run loses what it measured."""
    client = client_on(counting, clock)
    counting.gate.clear()
    decision = client.decide(Request("a"))
    used = EnergyEntry(decision.id, "gpu", 1.0, 1.0)
    client.report(decision, REACHED, "a", lambda: found(FAST, energy=(used,)))
    (waiting,) = Outbox(client._outbox._path).entries()
    assert waiting.measurements == found(FAST, energy=(used,))
    counting.gate.set()
    client.close()
    assert not client._outbox.waiting
    assert [one.decision for one in counting.inner.energy(1)[0]] == [decision.id]


@pytest.mark.parametrize("error", [StoreBusyError("down", remedy="wait"), KeyError("our bug")])
@pytest.mark.parametrize("name", ["add_energy", "profiles", "put_profile"])
def test_whatever_fails_the_report_stands_and_nothing_is_raised(counting, clock, name, error):
    """If this fails, what is only nice to know ends or delays a training."""
    client = client_on(counting, clock)
    counting.failing[name] = error
    reported(client, "a", FAST)
    assert counting.inner.decisions(1)[0][0].outcome == REACHED
    assert client._outbox.waiting
    counting.failing.clear()
    reported(client, "b", FAST)
    assert len(counting.inner.profiles(1)) == 1
    client.close()
    assert not client._outbox.waiting


def test_findings_that_cannot_be_made_fail_alone(counting, clock):
    """If this fails, a slip in what is only nice to know loses the report."""
    client = client_on(counting, clock)
    decision = client.decide(Request("a"))
    client.report(decision, REACHED, "a", lambda: 1 / 0)
    client.close()
    assert "add_energy" not in counting.calls


def test_a_training_does_not_wait_for_its_findings(counting, clock):
    """If this fails, a store that hangs delays the next attempt, or the end beyond the bound."""
    client = client_on(counting, clock, seconds=60.0)
    decision = client.decide(Request("a"))
    counting.gate.clear()
    began = time.monotonic()
    used = EnergyEntry(decision.id, "gpu", 1.0, 1.0)
    client.report(decision, REACHED, "a", lambda: found(FAST, energy=(used, used)))
    assert time.monotonic() - began < 30.0
    assert client.decide(Request("b")).id
    client._seconds = 0.3
    client.close()
    assert time.monotonic() - began < 30.0
    counting.gate.set()
    delivered(client)
    assert client._outbox.waiting  # for the next process


def test_no_more_threads_are_no_trouble(counting, clock, monkeypatch):
    """If this fails, a run that is closed by the end of the interpreter raises."""
    client = client_on(counting, clock)
    decision = client.decide(Request("a"))

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    client.report(decision, REACHED, "a", lambda: found(FAST))
    client.close()
    assert client._outbox.waiting


def test_a_job_that_was_deleted_meanwhile_is_left_alone(counting, clock):
    """If this fails, measurements of a deleted job bring it back."""
    job = counting.inner.define(Definition(JOB, "V100")).id
    counting.inner.delete(job)
    with pytest.raises(UnknownRecordError):
        upload_measurements(counting.inner, job, found(FAST))
