"""A store moves to another one, on every database, without losing anything."""

import io
import json
import time
from hashlib import sha256

import pytest

from joulery.clock import VirtualClock
from joulery.errors import ConflictError, FileError
from joulery.frontier import Frontier, OperatingPoint
from joulery.jobs import Definition, JobService, Measured, Outcome, Request
from joulery.jobs.policies import RunEnd
from joulery.storage import (
    EnergyRecord,
    Permission,
    ProfileRecord,
    RunRecord,
    Store,
    TokenRecord,
    _backup as transfer,
    add_energy,
    add_token,
    decision_secret,
    find_run,
    put_profile,
    put_run,
)
from joulery.storage._backup import exported
from joulery.storage._migrate import HEAD
from joulery.testing.policy_contract import assert_identical
from joulery.testing.workloads import made_up_workload

JOB = made_up_workload().job()


def imported(location, lines, **options):
    """Import a file of these lines."""
    return transfer.imported(location, io.BytesIO(b"".join(lines)), **options)


def fill(location):
    """A store with some of everything; the number of a job that goes on."""
    clock = VirtualClock()
    with Store.open(location) as store:
        service = JobService(store, clock)
        number = (
            service.for_team("vision")
            .define(Definition(JOB, "V100", policy="joulery"), seed=2**63 + 5)
            .id
        )
        for turn in range(6):
            decision = service.decide(number, Request(f"ü{turn}", probing=False))
            clock.sleep(700.0 if turn == 3 else 60.0)
            outcome = Outcome(RunEnd.REACHED, 3 + turn, 50.0, 7000.0 / 3, None, (measured(),))
            if turn != 5:
                service.report(decision, outcome, f"r{turn}")
        forgotten = (
            service.for_team("vision")
            .define(Definition(made_up_workload().job(), "gone", policy="zeus"))
            .id
        )
        service.delete(forgotten)
        profile = Frontier.from_points([OperatingPoint(0.1 + 0.2, 7.0)]).to_dict()
        store.write(
            lambda transaction: put_profile(
                transaction, ProfileRecord(number, 64, "V100", profile, 1.5)
            )
        )
        used = EnergyRecord(number, 1, "V100", 1.0, 5e-324, {"origin": "measured"}, 2.5)
        store.write(lambda transaction: add_energy(transaction, used))
        wanted = TokenRecord("vision", Permission.WORK, "ünï", 1e9)
        store.write(lambda transaction: add_token(transaction, wanted, 1.0))
        store.write(decision_secret)
    return number, forgotten


def measured():
    """An epoch under no limit in particular."""
    return Measured(JOB.limits_watts[0] if JOB.limits_watts else None, 10.0, 700.0 / 3, 0.01)


def beliefs(location, job):
    """What is believed in the end."""
    with Store.open(location) as store:
        return JobService(store, VirtualClock()).rebuild(job)


def test_a_moved_store_is_the_same(location, tmp_path, request):
    """Teams that move to another database would lose jobs, or get other decisions."""
    number, forgotten = fill(location)
    lines = list(exported(location))
    others = [str(tmp_path / "other.sqlite")]
    if location.startswith("postgresql"):
        others.append(request.getfixturevalue("postgresql").new_database())
    for other in others:
        counts = imported(other, lines)
        assert counts["jobs"] == 1
        assert list(exported(other)) == lines
        assert_identical(beliefs(other, number), beliefs(location, number))
        with Store.open(other) as store:
            assert (
                JobService(store)
                .for_team("vision")
                .define(Definition(JOB, "new", policy="grid"))
                .id
                > forgotten
            )


def test_jobs_that_are_there_are_not_overwritten(location):
    """A mistyped address would delete a team's history."""
    fill(location)
    lines = list(exported(location))
    with pytest.raises(ConflictError):
        imported(location, lines)
    imported(location, lines, replace=True)
    assert list(exported(location)) == lines


@pytest.mark.parametrize("cut", [0, 1, -1, -2])
def test_what_is_not_whole_is_refused(tmp_path, cut):
    """Half a history would be taken for all of it."""
    source, other = tmp_path / "source.sqlite", tmp_path / "other.sqlite"
    fill(source)
    lines = list(exported(source))
    with pytest.raises(FileError):
        imported(other, lines[:cut])
    with Store.open(other) as store, store.reading() as transaction:
        assert transaction.jobs("vision") == []


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"jobs":{}}', b'{"a":1,"b":2}', b"7"])
@pytest.mark.parametrize("place", [0, 1, 3, -1])
def test_lines_that_were_changed_are_noticed(tmp_path, line, place):
    """An import would stop with an error of the database's, or store what was never there."""
    fill(tmp_path / "source.sqlite")
    lines = list(exported(tmp_path / "source.sqlite"))
    lines[place] = line + b"\n"
    with pytest.raises(FileError):
        imported(tmp_path / "other.sqlite", lines)


@pytest.mark.parametrize("value", [{"a": 1}, "7", 2**64, 1.5, True, 7])
def test_a_value_that_was_changed_is_noticed(tmp_path, value):
    """An edited file would be taken for what a server has acknowledged."""
    fill(tmp_path / "source.sqlite")
    lines = list(exported(tmp_path / "source.sqlite"))
    row = json.loads(lines[1])
    row["jobs"]["seed"] = value
    lines[1] = json.dumps(row).encode() + b"\n"
    with pytest.raises(FileError, match="changed"):
        imported(tmp_path / "other.sqlite", lines)


def test_other_files_and_versions_are_refused(tmp_path):
    """Rows of another version would be put into tables that they do not fit."""
    for header in (b'{"format":"other"}', b'{"format":"joulery-store-1","revision":"r9999"}'):
        with pytest.raises(FileError):
            imported(tmp_path / "other.sqlite", [header])


def test_an_export_takes_little_memory(tmp_path):
    """The export of a large store would not fit into memory."""
    import tracemalloc

    fill(tmp_path / "source.sqlite")
    with Store.open(tmp_path / "source.sqlite") as store:
        store.write(
            lambda transaction: [
                add_energy(transaction, EnergyRecord(1, None, "x" * 200, 1.0, 1.0, {}, time.time()))
                for _ in range(8000)
            ]
        )
    tracemalloc.start()
    count = sum(1 for _ in exported(tmp_path / "source.sqlite"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count > 8000
    assert peak < 6e6


def test_runs_of_an_older_export_say_what_their_jobs_have(tmp_path):
    """After a move the overview would count the energy of recurring runs twice."""
    run = RunRecord("a", "1", "", "", "run", "", 0.0, 1.0, 30.0, True, {"decision": "1.1"}, 30.0)  # noqa: FBT003
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        store.write(lambda transaction: put_run(transaction, run, []))
    lines = [line.replace(b'"decision_joules":30.0,', b"") for line in exported(path)]
    assert b"decision_joules" not in b"".join(lines)
    lines[0] = lines[0].replace(HEAD.encode(), b"r0004")
    lines[-1] = f'{{"sha256":"{sha256(b"".join(lines[:-1])).hexdigest()}"}}\n'.encode()
    imported(tmp_path / "other.sqlite", lines)
    with Store.open(tmp_path / "other.sqlite") as store, store.reading() as transaction:
        assert find_run(transaction, 1)[0].decision_joules == 30.0
