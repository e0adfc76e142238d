"""What runs find out is kept in the background, with no request for what is no news."""

import threading
import time

import pytest

from joulery.client.background import BackgroundWorker
from joulery.client.deadline import Deadline
from joulery.client.findings import ProfileUploader, RunMeasurements, news
from joulery.client.resilient import Order, ResilientClient
from joulery.errors import StoreBusyError, UnknownRecordError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.jobs.job import Job
from joulery.jobs.models import Outcome
from joulery.jobs.policies.base import RunEnd
from joulery.jobs.requests import Definition, Request
from joulery.jobs.wire_measurements import EnergyEntry, ProfileEntry
from joulery.objectives import Cost
from joulery.testing.watched_clerk import RecordingBackend

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


def kept(*points, wall_seconds=0.0):
    """What was kept before."""
    return ProfileEntry(128, "V100", Frontier.from_points(points), wall_seconds)


def test_the_first_findings_are_kept_as_they_are():
    """If this fails, nothing is ever known of a batch size."""
    frontier = news(None, found(LEAN, FAST), 0.0)
    assert frontier.points == (FAST, LEAN)
    assert frontier.work == "an epoch"


def test_limits_that_were_not_measured_now_stay():
    """If this fails, every run forgets what earlier ones measured."""
    slower = point(150.0, 13.0, 1400.0)
    assert news(kept(FAST, LEAN), found(slower), 1.0).points == (FAST, slower)
    between = point(200.0, 11.0, 1600.0)
    assert news(kept(FAST, LEAN), found(between), 1.0).points == (FAST, between, LEAN)


def test_limits_that_no_longer_pay_leave_the_frontier():
    """If this fails, what is kept is no frontier."""
    better = point(200.0, 9.0, 1400.0)
    assert news(kept(FAST, LEAN), found(better), 1.0).points == (better,)


@pytest.mark.parametrize(
    "measured",
    [
        [FAST],
        [FAST, LEAN],
        [point(250.0, 10.1, 2010.0)],  # within the error
        [point(175.0, 12.5, 1700.0)],  # beaten by what is known
    ],
)
def test_what_is_no_news_is_not_told(measured):
    """If this fails, every run of a job that is settled writes the same again."""
    assert news(kept(FAST, LEAN), found(*measured), 1.0) is None


@pytest.mark.parametrize(
    "measured", [point(250.0, 10.5, 2000.0), point(250.0, 10.0, 2100.0), FAST.scaled(1.1)]
)
def test_what_has_changed_is_told(measured):
    """If this fails, a frontier of last year's software is shown for ever."""
    assert news(kept(FAST, LEAN), found(measured), 1.0).fastest == measured


def test_what_is_surer_is_told():
    """If this fails, seconds of measuring outlive whole trainings."""
    sure = point(250.0, 10.0, 2001.0, error=0.005)
    assert news(kept(FAST, LEAN), found(sure), 1.0).fastest == sure


def test_what_still_holds_is_told_once_a_day():
    """If this fails, a frontier that every run confirms looks old."""
    same = point(250.0, 10.01, 2002.0)
    assert news(kept(FAST, LEAN), found(same), 80_000.0) is None
    assert news(kept(FAST, LEAN), found(same), 90_000.0).points == (same, LEAN)


def test_simulated_figures_never_replace_measured_ones():
    """If this fails, a simulation on a developer's machine spoils what was measured."""
    simulated = point(150.0, 11.0, 900.0, Origin.SIMULATED)
    assert news(kept(FAST, LEAN), found(simulated), 1e9) is None
    assert news(kept(simulated), found(FAST), 1.0).points == (FAST,)
    again = news(kept(simulated), found(point(150.0, 12.0, 900.0, Origin.SIMULATED)), 1.0)
    assert {one.provenance.origin for one in again} == {Origin.SIMULATED}


class Counting(RecordingBackend):
    """A clerk that waits for a gate, and fails as told."""

    def __init__(self, path, clock):
        super().__init__(path, clock)
        self.failing = {}
        self.gate = threading.Event()
        self.gate.set()

    def before(self, name):
        """Wait and fail as told."""
        if name not in ("define", "decide", "report", "close"):
            assert self.gate.wait(10.0)
        if name in self.failing:
            raise self.failing[name]


@pytest.fixture
def counting(tmp_path, clock):
    """A clerk that counts."""
    made = Counting(tmp_path / "store.sqlite", clock)
    yield made
    made.gate.set()
    made.inner.close()


def steady_on(counting, clock, seconds=5.0):
    """The same, made steady."""
    order = Order(Definition(JOB, "V100"))
    return ResilientClient(lambda: counting, "http://there", seconds, order, clock=clock)


def reported(steady, key, *points, devices=1):
    """A run that is reported with its findings."""
    decision = steady.decide(Request(key))
    energy = tuple(
        EnergyEntry(decision.id, f"gpu {number}", 40.0, 4500.0, "measured", "a counter")
        for number in range(devices)
    )
    steady.report(decision, REACHED, key, lambda: found(*points, energy=energy))
    steady._sideline.wait()
    return decision


def test_findings_follow_the_report(counting, clock):
    """If this fails, energy and frontiers of runs are not kept."""
    steady = steady_on(counting, clock)
    decision = reported(steady, "a", FAST, LEAN, devices=2)
    (profile,) = counting.inner.profiles(1)
    assert profile.frontier.points == (FAST, LEAN)
    assert [(one.decision, one.device) for one in counting.inner.energy(1)[0]] == [
        (decision.id, "gpu 0"),
        (decision.id, "gpu 1"),
    ]


def test_requests_are_made_for_news_only(counting, clock):
    """If this fails, a run that learns nothing new asks as much as one that does."""
    steady = steady_on(counting, clock)
    reported(steady, "a", FAST, LEAN)
    counting.calls.clear()
    reported(steady, "b", FAST)
    assert counting.calls == ["decide", "report", "note_energy"]
    counting.calls.clear()
    reported(steady, "c", devices=0)
    assert counting.calls == ["decide", "report"]


def test_findings_of_a_run_that_is_not_reported_are_not_told(counting, clock):
    """If this fails, energy counts that no report tells of."""
    steady = steady_on(counting, clock)
    counting.failing["report"] = StoreBusyError("down", remedy="wait")
    reported(steady, "a", FAST)
    assert counting.calls == ["define", "decide", "report"]


@pytest.mark.parametrize("error", [StoreBusyError("down", remedy="wait"), KeyError("our bug")])
@pytest.mark.parametrize("name", ["note_energy", "profiles", "keep_profile"])
def test_whatever_fails_the_report_stands_and_nothing_is_raised(counting, clock, name, error):
    """If this fails, what is only nice to know ends or delays a training."""
    steady = steady_on(counting, clock)
    counting.failing[name] = error
    reported(steady, "a", FAST)
    assert counting.inner.decisions(1)[0][0].outcome == REACHED
    assert not steady._journal.waiting
    counting.failing.clear()
    reported(steady, "b", FAST)
    assert len(counting.inner.profiles(1)) == 1
    steady.close()


def test_findings_that_cannot_be_made_fail_alone(counting, clock):
    """If this fails, a slip in what is only nice to know loses the report."""
    steady = steady_on(counting, clock)
    decision = steady.decide(Request("a"))
    steady.report(decision, REACHED, "a", lambda: 1 / 0)
    steady.close()
    assert "note_energy" not in counting.calls


def test_a_training_does_not_wait_for_its_findings(counting, clock):
    """If this fails, a store that hangs delays the next attempt, or the end beyond the bound."""
    steady = steady_on(counting, clock, seconds=0.3)
    decision = steady.decide(Request("a"))
    counting.gate.clear()
    began = time.monotonic()
    used = EnergyEntry(decision.id, "gpu", 1.0, 1.0)
    steady.report(decision, REACHED, "a", lambda: found(FAST, energy=(used, used)))
    assert time.monotonic() - began < 0.25
    assert steady.decide(Request("b")).id
    steady._sideline.wait()
    assert time.monotonic() - began < 1.0
    counting.gate.set()
    steady._sideline._thread.join(5.0)
    assert counting.calls.count("note_energy") == 1  # its time was over then
    assert "profiles" not in counting.calls


def test_the_sideline_keeps_the_order():
    """If this fails, an older frontier overwrites a newer one."""
    sideline, seen, gate = BackgroundWorker(), [], threading.Event()
    sideline.do(lambda: (gate.wait(5.0), seen.append(1)), Deadline(5.0))
    sideline.do(lambda: seen.append(2), Deadline(5.0))
    gate.set()
    sideline.wait()
    assert seen == [1, 2]
    BackgroundWorker().wait()


def test_no_more_threads_are_no_trouble(monkeypatch):
    """If this fails, a run that is closed by the end of the interpreter raises."""

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sideline = BackgroundWorker()
    sideline.do(lambda: None, Deadline(1.0))
    sideline.wait()


def test_a_job_that_was_forgotten_meanwhile_is_left_alone(counting, clock):
    """If this fails, findings about nobody are made up for."""
    job = counting.inner.define(Definition(JOB, "V100")).job
    counting.inner.forget(job)
    notebook = ProfileUploader(counting.inner, job, clock.wall)
    with pytest.raises(UnknownRecordError):
        notebook.tell(found(FAST), lambda: None)
