"""What every backend promises, whether it works in this process or behind a server."""

import json
import math
import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from joulery.client import open_backend
from joulery.errors import (
    ConflictError,
    InvalidValueError,
    JouleryError,
    StoreBusyError,
    UnknownRecordError,
)
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.jobs import (
    Definition,
    EnergyEntry,
    Job,
    Measured,
    Outcome,
    ProfileEntry,
    Request,
    RunCurve,
    RunDevice,
    RunEntry,
)
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost, LeastEnergy

LIMITS = (125.0, 150.0, 175.0)
JOB = Job("nightly run/ä", (64, 128, 256), 128, Cost(0.5, 300.0), None, 40, LIMITS)
ABANDONED = Outcome(RunEnd.ABANDONED, 2.0, 1.0, 200.0)
MEASURED = tuple(Measured(watts, 2.0, 1.5 * watts, 0.02) for watts in LIMITS)
REACHED = Outcome(RunEnd.REACHED, 20.0, 40.0, 7000.0, 150.0, MEASURED)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of its own; its address. A token for this user is in the data folder."""
    folder = tmp_path_factory.mktemp("server")
    with subprocess.Popen(
        [sys.executable, "-m", "joulery", "serve", "--listen", "127.0.0.1:0", "--json"],
        env={**os.environ, "XDG_DATA_HOME": str(folder), "JOULERY_STORE": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield json.loads(process.stdout.readline())["address"], folder
        finally:
            process.terminate()


@pytest.fixture(params=["local", "remote"])
def where(request, tmp_path, monkeypatch):
    """Where the jobs are: (location, a team of its own)."""
    for name in ("JOULERY_STORE", "JOULERY_TOKEN", "JOULERY_TEAM"):
        monkeypatch.delenv(name, raising=False)
    team = request.node.name[:60]
    if request.param == "local":
        return tmp_path / "store.sqlite", team
    address, folder = request.getfixturevalue("server")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return address, team


@pytest.fixture
def backend(where):
    """A backend, with time enough for a busy machine."""
    opened = open_backend(where[0], where[1], seconds=20.0)
    yield opened
    opened.close()


def test_a_job_is_made_once_and_changed_when_it_changes(backend):
    """If this fails, every process makes a job of its own, or changes are lost."""
    first = backend.define(Definition(JOB, "V100"))
    assert (first.version, first.inherits, first.warm_start) == (1, None, "")
    assert backend.define(Definition(JOB, "V100")) == first
    decision = backend.decide(first.id, Request("a"))
    backend.report(decision, REACHED, "a")
    changed = backend.define(Definition(replace(JOB, max_epochs=50), "V100"))
    assert changed.version == 2
    assert changed.inherits == first.id
    assert changed.warm_start
    other = backend.define(Definition(JOB, "A40"))
    assert other.version == 1
    assert other.id != first.id


def test_objectives_and_policies_travel(backend):
    """If this fails, a job is decided for by other rules than its owner's."""
    job = replace(JOB, objective=LeastEnergy(max_slowdown=0.05))
    backend.define(Definition(job, "V100", policy="zeus", parameters={"beta": 3.0}))
    entry = backend.job(job.name, "V100")
    assert entry.definition == Definition(job, "V100", "zeus", {"beta": 3.0})


def test_the_same_key_gives_the_same_decision(backend):
    """If this fails, a repeated request hands out two decisions."""
    job = backend.define(Definition(JOB)).id
    first = backend.decide(job, Request("a"))
    again = backend.decide(job, Request("a"))
    assert replace(again, expires_wall_seconds=0.0) == replace(first, expires_wall_seconds=0.0)
    assert backend.decide(job, Request("b")).id != first.id
    with pytest.raises(ConflictError):
        backend.decide(job, Request("a", after=first.id))


def test_a_decision_says_all_there_is_to_run(backend):
    """If this fails, a training does not know what to do."""
    decision = backend.decide(backend.define(Definition(JOB)).id, Request("a"))
    assert decision.kind == ActionKind.TRAIN
    assert decision.batch_size == 128
    assert decision.cost_ceiling_joules == math.inf
    assert decision.recurrence == 0
    assert decision.reason
    assert decision.expires_wall_seconds > 1.7e9


def test_a_recurrence_goes_on_after_a_decision(backend):
    """If this fails, retries count as nights of their own."""
    job = backend.define(Definition(JOB)).id
    first = backend.decide(job, Request("a"))
    backend.report(first, Outcome(RunEnd.STOPPED, 2.0, 1.0, 200.0), "a")
    second = backend.decide(job, Request("b", first.id))
    assert second.recurrence == first.recurrence == 0
    assert backend.decide(job, Request("c")).recurrence == 1
    with pytest.raises(UnknownRecordError):
        backend.decide(job, Request("d", f"{job}.999"))


def test_reports_count_once_under_their_key(backend):
    """If this fails, a repeated report teaches twice."""
    job = backend.define(Definition(JOB)).id
    decision = backend.decide(job, Request("a"))
    receipt = backend.report(decision, REACHED, "a")
    assert backend.report(decision, REACHED, "a") == receipt
    assert not receipt.late
    with pytest.raises(ConflictError):
        backend.report(decision, replace(REACHED, epochs=21.0), "b")
    entries, following = backend.decisions(job)
    assert [entry.outcome for entry in entries] == [REACHED]
    assert following is None


def test_heartbeats_prolong_and_end_with_the_report(backend):
    """If this fails, long runs lose their lease, or ended ones keep it."""
    decision = backend.decide(backend.define(Definition(JOB)).id, Request("a"))
    lease = backend.heartbeat(decision, ABANDONED)
    assert lease.held
    assert lease.expires_wall_seconds >= decision.expires_wall_seconds
    assert backend.heartbeat(decision).held
    backend.report(decision, REACHED, "a")
    assert not backend.heartbeat(decision).held


@pytest.mark.parametrize(
    "outcome",
    [
        replace(REACHED, joules=1e9),
        replace(REACHED, seconds=1e6),
        replace(REACHED, epochs=41.0),
        replace(REACHED, end=RunEnd.PROBED),
        replace(REACHED, measured=(Measured(150.0, 1.0, 1e7, 0.1),)),
    ],
)
def test_what_cannot_be_is_refused(backend, outcome):
    """If this fails, one wrong report ruins a job."""
    decision = backend.decide(backend.define(Definition(JOB)).id, Request("a"))
    with pytest.raises(InvalidValueError):
        backend.report(decision, outcome, "a")


def test_probes_come_only_to_those_who_can_make_them(backend):
    """If this fails, a plain loop is asked to begin afresh."""
    job = backend.define(Definition(JOB)).id
    first = backend.decide(job, Request("a"))
    backend.report(first, REACHED, "a")
    assert backend.decide(job, Request("b", probing=False)).kind == ActionKind.TRAIN
    assert backend.decide(job, Request("c", probing=True)).kind in (
        ActionKind.TRAIN,
        ActionKind.PROBE,
    )


def test_who_runs_a_batch_size_anyway_is_granted_it_and_teaches(backend):
    """If this fails, those who watch or were offline teach nothing."""
    job = backend.define(Definition(JOB)).id
    decision = backend.decide(job, Request("a", only=256))
    assert (decision.kind, decision.batch_size) == (ActionKind.TRAIN, 256)
    assert decision.cost_ceiling_joules == math.inf
    assert "128 would be run" in decision.reason
    assert backend.decide(job, Request("a", only=256)).id == decision.id
    for other in (None, 64):
        with pytest.raises(ConflictError):
            backend.decide(job, Request("a", only=other))
    backend.report(decision, REACHED, "a")
    assert backend.decisions(job)[0][0].outcome == REACHED


@pytest.mark.parametrize(
    "asked",
    [
        {"only": 100},
        {"only": 0},
        {"ran_seconds": 100.0},
        {"only": 64, "ran_seconds": 8 * 86400.0},
        {"only": 64, "ran_seconds": -1.0},
    ],
)
def test_only_what_the_job_allows_is_granted(backend, asked):
    """If this fails, a typo runs what the owner forbids, or opens a door for wrong reports."""
    job = backend.define(Definition(JOB)).id
    with pytest.raises(InvalidValueError):
        backend.decide(job, Request("a", **asked))
    assert backend.decisions(job) == ([], None)


def test_what_was_run_before_it_was_asked_for_may_be_reported(backend):
    """If this fails, what was trained without an answer is refused as too long."""
    job = backend.define(Definition(JOB)).id
    # A day more than the decision is old, since a clock may have been set back by less.
    long = replace(REACHED, seconds=90_000.0, joules=9e6)
    with pytest.raises(InvalidValueError, match="cannot have passed"):
        backend.report(backend.decide(job, Request("a", only=64)), long, "a")
    decision = backend.decide(job, Request("b", only=64, ran_seconds=90_000.0))
    with pytest.raises(InvalidValueError, match="cannot have passed"):
        backend.report(decision, replace(long, seconds=180_000.0), "b")
    assert backend.report(decision, long, "b").decision == decision.id
    with pytest.raises(ConflictError):
        backend.decide(job, Request("b", only=64, ran_seconds=6000.0))


def test_people_see_pages_of_jobs_and_decisions(backend):
    """If this fails, long lists are cut or repeat themselves."""
    jobs = [
        backend.define(Definition(replace(JOB, name=f"job {number}"))).id for number in range(5)
    ]
    seen, after = [], 0
    while after is not None:
        page, after = backend.jobs(after, 2)
        assert len(page) <= 2
        seen += [entry.id for entry in page]
    assert seen == jobs
    made = [backend.decide(jobs[0], Request(f"key {number}")).id for number in range(5)]
    seen, after = [], 0
    while after is not None:
        page, after = backend.decisions(jobs[0], after, 2)
        seen += [entry.decision.id for entry in page]
    assert seen == made
    assert {entry.state for entry in page} == {"open"}


FRONTIER = Frontier.from_points(
    [
        OperatingPoint(
            2.0 + 0.1 / 3 * place,
            400.0 - 50.0 * place,
            Setting(power_limit_watts=250.0 - 25.0 * place, batch_size=128),
            Provenance(Origin.SIMULATED, "a model", 0.01),
        )
        for place in range(3)
    ],
    work="an epoch",
)


def test_profiles_are_kept_bit_for_bit_and_replaced(backend):
    """If this fails, what was measured of a batch size is lost, changed, or kept twice."""
    job = backend.define(Definition(JOB)).id
    assert backend.profiles(job) == []
    for size, frontier in ((128, FRONTIER.hull()), (64, FRONTIER), (128, FRONTIER)):
        backend.put_profile(job, ProfileEntry(size, "V100", frontier))
    kept = backend.profiles(job)
    assert [(one.batch_size, one.device) for one in kept] == [(64, "V100"), (128, "V100")]
    assert {one.frontier for one in kept} == {FRONTIER}
    assert {point.provenance.origin for point in kept[0].frontier} == {Origin.SIMULATED}
    assert all(one.wall_seconds > 1.7e9 for one in kept)
    backend.put_profile(job, ProfileEntry(128, "A40", FRONTIER))
    assert len(backend.profiles(job)) == 3


def test_energy_is_kept_in_pages_with_where_it_comes_from(backend):
    """If this fails, it is unknown what a job has used, or whether that was measured."""
    job = backend.define(Definition(JOB)).id
    decision = backend.decide(job, Request("a")).id
    reported = [
        EnergyEntry(decision, f"gpu {number}", 1.5, 100.1 * number, "simulated", "a model", 0.02)
        for number in range(4)
    ]
    reported.append(EnergyEntry(None, "gpu 0", 2.0, 7.0, "measured"))
    for used in reported:
        backend.add_energy(job, used)
    seen, after = [], 0
    while after is not None:
        page, after = backend.energy(job, after, 2)
        assert len(page) <= 2
        seen += page
    assert all(one.wall_seconds > 1.7e9 for one in seen)
    assert [replace(one, wall_seconds=None) for one in seen] == reported


def test_energy_of_a_decision_counts_once_for_each_device(backend):
    """If this fails, a request that is repeated doubles what a job has used."""
    job = backend.define(Definition(JOB)).id
    decision = backend.decide(job, Request("a")).id
    used = EnergyEntry(decision, "gpu 0", 1.5, 100.0, "measured", "a counter")
    for _ in range(3):
        backend.add_energy(job, used)
    backend.add_energy(job, replace(used, device="gpu 1"))
    for other in (replace(used, joules=101.0), replace(used, origin="simulated")):
        with pytest.raises(ConflictError):
            backend.add_energy(job, other)
    unnamed = replace(used, decision=None)
    for _ in range(2):  # these may be the same or not
        backend.add_energy(job, unnamed)
    assert [one.joules for one in backend.energy(job)[0]] == [100.0] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"joules": math.nan},
        {"joules": -1.0},
        {"seconds": math.inf},
        {"origin": "guessed"},
        {"device": "a\nb"},
        {"source": "x" * 300},
    ],
)
def test_energy_that_makes_no_sense_is_refused(backend, wrong):
    """If this fails, one wrong figure spoils what a job has used."""
    job = backend.define(Definition(JOB)).id
    with pytest.raises(InvalidValueError):
        backend.add_energy(job, replace(EnergyEntry(None, "gpu", 1.0, 1.0, "measured"), **wrong))
    with pytest.raises(InvalidValueError):
        backend.put_profile(job, ProfileEntry(0, "V100", FRONTIER))
    assert backend.energy(job) == ([], None)
    assert backend.profiles(job) == []


def test_measurements_belong_to_a_job(backend):
    """If this fails, measurements of deleted jobs pile up, or reach the wrong job."""
    job = backend.define(Definition(JOB)).id
    other = backend.define(Definition(replace(JOB, name="other"))).id
    foreign = backend.decide(other, Request("a")).id
    backend.delete(other)
    used = EnergyEntry(None, "gpu", 1.0, 1.0)
    for question in (
        lambda: backend.add_energy(job, replace(used, decision=foreign)),
        lambda: backend.add_energy(job, replace(used, decision="nonsense")),
        lambda: backend.add_energy(other, used),
        lambda: backend.energy(other),
        lambda: backend.profiles(other),
        lambda: backend.put_profile(other, ProfileEntry(64, "V100", FRONTIER)),
    ):
        with pytest.raises(UnknownRecordError):
            question()
    assert backend.energy(job) == ([], None)


def test_paused_jobs_decide_nothing_until_they_are_resumed(backend):
    """If this fails, pausing does not pause."""
    job = backend.define(Definition(JOB)).id
    backend.pause(job)
    assert backend.job(JOB.name).paused
    with pytest.raises(ConflictError, match="paused"):
        backend.decide(job, Request("a"))
    backend.pause(job, paused=False)
    assert backend.decide(job, Request("a")).id


def test_deleted_jobs_are_gone(backend):
    """If this fails, deleted jobs come back."""
    job = backend.define(Definition(JOB)).id
    decision = backend.decide(job, Request("a"))
    backend.delete(job)
    for question in (
        lambda: backend.job(JOB.name),
        lambda: backend.decide(job, Request("b")),
        lambda: backend.report(decision, REACHED, "a"),
    ):
        with pytest.raises(UnknownRecordError):
            question()


def test_teams_do_not_see_each_other(backend, where):
    """If this fails, teams read each other's jobs."""
    backend.define(Definition(JOB))
    other = open_backend(where[0], where[1][:50] + " others", seconds=20.0)
    try:
        assert other.jobs() == ([], None)
        with pytest.raises(UnknownRecordError):
            other.job(JOB.name)
    finally:
        other.close()


def test_closing_twice_is_fine(backend):
    """If this fails, the end of a process raises."""
    backend.close()
    backend.close()


def test_a_wrong_token_opens_nothing(server, monkeypatch, tmp_path):
    """If this fails, any client may read and write."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for token in (None, "joulery_wrong"):
        stranger = open_backend(server[0], "team", token, seconds=20.0)
        with pytest.raises(JouleryError) as refused:
            stranger.jobs()
        assert not isinstance(refused.value, StoreBusyError)
        stranger.close()


def test_a_decision_is_reported_on_with_its_own_token_only(server, monkeypatch):
    """If this fails, workers need the rights of their team, or others can report for them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(server[1]))
    holder = open_backend(server[0], "own token", seconds=20.0)
    decision = holder.decide(holder.define(Definition(JOB)).id, Request("a"))
    assert decision.token
    stranger = open_backend(server[0], "others", "joulery_wrong", seconds=20.0)
    with pytest.raises(JouleryError):
        stranger.report(replace(decision, token="forged" * 8), REACHED, "a")
    with pytest.raises(JouleryError):
        holder.report(replace(decision, token=""), REACHED, "a")
    assert stranger.report(decision, REACHED, "a").decision == decision.id
    holder.close()
    stranger.close()


def test_a_run_is_stored_once_under_its_key_and_found_by_text(backend):
    """If this fails, a run that reports every minute fills the list, or nobody finds it."""
    curve = RunCurve("watts", "A100 0", ((1.0, 250.0), (2.0, 260.0)))
    run = RunEntry("k1", "fine-tune", 1.7e9, 10.0, 2500.0, tags={"lr": "0.1"})
    backend.put_run(run)
    ended = replace(run, seconds=20.0, joules=None, ended=True, curves=(curve,))
    backend.put_run(ended)
    backend.put_run(replace(run, key="k2", name="100%_sure"))
    entries, following = backend.runs(limit=1)
    assert [entry.name for entry in entries] == ["100%_sure"]
    (first,), end = backend.runs(below=following, limit=1)
    assert (first.name, first.seconds, first.joules, first.ended, end) == (
        *("fine-tune", 20.0, None, True),
        None,
    )
    assert first.curves == ()
    whole = backend.run(first.id)
    assert replace(whole, id=0, team="") == ended
    for text, names in (("LR", 2), ("FINE", 1), ("%", 1), ("_s", 1), ("nothing", 0)):
        assert len(backend.runs(text)[0]) == names, text
    with pytest.raises(UnknownRecordError):
        backend.run(10**9)


def test_a_report_that_was_delayed_does_not_undo_a_later_one(backend):
    """If this fails, a run that has ended is listed as lost, with the figures of its first hour."""
    run = RunEntry("k1", "fine-tune", 1.7e9, 3600.0, 1e6, ended=True)
    backend.put_run(run)
    backend.put_run(replace(run, seconds=60.0, joules=1e4, ended=False))
    backend.put_run(replace(run, seconds=7200.0, ended=False))
    (stored,), _ = backend.runs()
    assert (stored.seconds, stored.joules, stored.ended) == (3600.0, 1e6, True)
    for seconds in (120.0, 60.0):
        backend.put_run(replace(run, key="k2", seconds=seconds, ended=False))
    assert backend.runs(limit=1)[0][0].seconds == 120.0
    backend.put_run(replace(run, key="k3"))
    (under_way,), _ = backend.runs(limit=1, open_only=True)  # however many began since
    assert under_way.key == "k2"


@pytest.mark.parametrize(
    "wrong",
    [
        {"joules": -1.0},
        {"seconds": math.nan},
        {"energy_saving": 2.0},
        {"seconds": 1e15},
        {"started_wall_seconds": 1e12},
        {"joules": 1e15},
        {"devices": (RunDevice("A40", joules=1e6),), "joules": 1e6},
        {"devices": (RunDevice("A40", joules=1.0), RunDevice("A40", joules=1.0))},
        {"devices": (RunDevice("A40", joules=90.0),), "joules": 5.0},
    ],
)
def test_a_run_that_cannot_be_is_refused(backend, wrong):
    """If this fails, one client's nonsense breaks the pages of its team."""
    with pytest.raises(InvalidValueError):
        backend.put_run(replace(RunEntry("k", "n", 1.7e9, 1.0), **wrong))
