"""How many round trips a transaction takes on PostgreSQL, and what becomes of it if one fails."""

import dataclasses
import os
import signal
import threading
import time
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import event, text

from joulery.errors import ConflictError, StoreBusyError
from joulery.storage import (
    DecisionRecord,
    DecisionState,
    Event,
    EventKind,
    JobRecord,
    OutcomeRecord,
    Snapshot,
    Store,
    Subject,
)
from joulery.storage._engines import open_engine
from support.one_group import one_group

JOB = JobRecord("team", "job", {"batch_sizes": [8, 16]}, "zeus", {}, seed=7)


@pytest.fixture
def location(postgresql):
    """An empty database."""
    return postgresql.new_database()


@pytest.fixture
def store(location):
    """An empty store."""
    with Store.open(location) as store:
        yield store


def add_jobs(store, count):
    """Some."""
    return [
        store.write(lambda book, n=n: book.add_job(dataclasses.replace(JOB, name=f"{n}"))).id
        for n in range(count)
    ]


def recur(transaction, job):
    """Begin a recurrence."""
    record = transaction.lock(job)
    transaction.put(dataclasses.replace(record, recurrences=record.recurrences + 1))


def decision(job, sequence, key, reason="because"):
    """A decision as the desk would store it."""
    return DecisionRecord(job, sequence, key, 0, {"arm": 1}, reason, {}, 1.5, 100.0)


def decide(job, key, reason="because"):
    """An operation that makes a decision, unless there is one under that key."""

    def operation(transaction):
        known = transaction.find(DecisionRecord, job, key=key)
        if known is None:
            number = transaction.lock(job).events + 1
            transaction.append(job, Event(number, EventKind.ISSUED, number, {}, 1.5))
            recur(transaction, job)
            known = decision(job, number, key, reason)
            transaction.add(known)
        return known.sequence

    return operation


def asks(store, job, key, reason="because"):
    """Have a decision made."""
    return store.submit(decide(job, key, reason), Subject(job, decision_key=key))


def report(job, number, content=b"beliefs"):
    """An operation that does everything that is written before a commit."""

    def operation(transaction):
        found = transaction.find(DecisionRecord, job, sequence=number)
        assert transaction.find(OutcomeRecord, job, decision=number) is None
        event = transaction.lock(job).events + 1
        transaction.append(job, Event(event, EventKind.OUTCOME, number, {}, 2.5))
        transaction.add(
            OutcomeRecord(job, number, "report", {}, event, late=False, wall_seconds=2.5)
        )
        beat = {"heartbeat_wall_seconds": 2.0, "deadline_wall_seconds": 200.0}
        transaction.put(dataclasses.replace(found, **beat, progress={"seconds": 1.0}))
        latest = transaction.find(DecisionRecord, job, sequence=number)
        transaction.put(dataclasses.replace(latest, state=DecisionState.REPORTED))
        transaction.put_snapshot(Snapshot(job, event, "code", content))

    return operation


@contextmanager
def traced(store, path):
    """The messages on the store's only line meanwhile, each with the answer that was waited for."""
    with store._engine.connect() as connection:
        driver = connection.connection.driver_connection
    messages = []
    with path.open("w") as file:
        driver.pgconn.trace(file.fileno())
        try:
            yield messages
        finally:
            driver.pgconn.untrace()
    kinds = [line.split("\t") for line in path.read_text().splitlines()]
    # The server says that it is ready once for every time that somebody waits for it.
    messages += [each for each in kinds if each[1:2] == ["B"] and each[3] == "ReadyForQuery"]


def decided(store, job):
    """The keys of what is kept, having checked that it is whole."""
    with store.reading() as transaction:
        decisions = transaction.decisions(job)
        events = [one.sequence for one in transaction.events(job)]
        assert events == [one.sequence for one in decisions] == list(range(1, len(events) + 1))
        assert transaction.job(job).events == transaction.job(job).recurrences == len(events)
    return [one.key for one in decisions]


def round_trips(store, path, jobs, keys):
    """How many a group takes that makes decisions under some keys for some jobs."""
    with traced(store, path) as messages:
        with one_group(store):
            made = [asks(store, job, key) for job in jobs for key in keys]
        for one in made:
            one.result(60)
    return len(messages)


def test_round_trips_do_not_grow_with_a_group(store, tmp_path):
    """Each decision would wait for one answer of the database after the other."""
    jobs = add_jobs(store, 3)
    few = round_trips(store, tmp_path / "few", jobs[:1], ["a", "b"])
    many = round_trips(store, tmp_path / "many", jobs, [f"key {number}" for number in range(30)])
    assert many <= few + 2 <= 14


def test_a_group_keeps_all_kinds_of_rows(store):
    """Rows are written in bulk; a kind that is forgotten would be lost."""
    (job,) = add_jobs(store, 1)
    asks(store, job, "first").result(60)
    with one_group(store):
        made = [asks(store, job, key) for key in ("a", "b")]
        about = Subject(job, decision=1)
        told = store.submit(report(job, 1, b"\0\xff'"), about)
    assert [one.result(60) for one in made] == [2, 3]
    told.result(60)
    with store.reading() as transaction:
        assert transaction.snapshot(job).content == b"\0\xff'"
        assert transaction.find(OutcomeRecord, job, decision=1).event == 4
        found = transaction.find(DecisionRecord, job, sequence=1)
    assert (found.state, found.progress) == (DecisionState.REPORTED, {"seconds": 1.0})


def test_what_is_looked_for_is_seen_as_the_one_before_has_left_it(store, location):
    """Two workers of a server would decide twice for one client that asks twice."""
    (job,) = add_jobs(store, 1)
    made, held = threading.Event(), threading.Event()

    def slowly(transaction):
        number = decide(job, "same")(transaction)
        made.set()
        assert held.wait(60)
        return number

    with Store.open(location) as other:
        first = store.submit(slowly, Subject(job, decision_key="same"))
        assert made.wait(60)
        second = asks(other, job, "same")
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with psycopg.connect(location, autocommit=True) as watcher:
            while watcher.execute(waits).fetchone() == (0,):
                time.sleep(0.01)
        held.set()
        assert first.result(60) == second.result(60) == 1
    assert decided(store, job) == ["same"]


@pytest.mark.parametrize(
    ("spoilt", "meaning"),
    [
        (
            lambda job: lambda transaction: transaction.add(decision(job, 1, "x")),
            "that name already",
        ),
        (lambda job: decide(job, "x", "NUL \0"), "cannot hold"),
    ],
)
def test_refused_rows_cost_only_whoever_gave_them(store, spoilt, meaning):
    """One request would undo what others of its group were told is kept, or fail them."""
    jobs = add_jobs(store, 2)
    asks(store, jobs[0], "first").result(60)
    with one_group(store):
        before = [asks(store, job, "a") for job in jobs]
        culprit = store.submit(spoilt(jobs[0]), jobs[0])
        after = [asks(store, job, "b") for job in jobs]
    with pytest.raises(ConflictError, match=meaning):
        culprit.result(60)
    assert [one.result(60) for one in (*before, *after)] == [2, 1, 3, 2]
    assert decided(store, jobs[0]) == ["first", "a", "b"]
    assert decided(store, jobs[1]) == ["a", "b"]


def test_a_lock_that_is_not_given_back_is_told_of(location):
    """Clients would hang for as long as somebody else's program does."""
    with Store.open(location) as store:
        (job,) = add_jobs(store, 1)
    store = Store(open_engine(location, busy_seconds=0.1))
    with psycopg.connect(location) as other:
        other.execute("SELECT * FROM jobs FOR UPDATE")
        with pytest.raises(StoreBusyError, match="lock timeout"):
            asks(store, job, "a").result(60)
    assert asks(store, job, "a").result(60) == 1
    assert decided(store, job) == ["a"]
    store.close()


def end_lines(location):
    """As an administrator, or a restart, does."""
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
    with psycopg.connect(location, autocommit=True) as other:
        other.execute(f"{ended} current_database() AND pid <> pg_backend_pid()")


def test_a_line_that_breaks_between_reading_and_writing_costs_nothing(store, location):
    """A database that restarts would lose a decision, or have it made twice."""
    (job,) = add_jobs(store, 1)
    tries = []

    def broken_once(transaction):
        number = decide(job, "b")(transaction)
        if not tries:
            end_lines(location)
        tries.append(1)
        return number

    with one_group(store):
        made = [
            asks(store, job, "a"),
            store.submit(broken_once, Subject(job, decision_key="b")),
            asks(store, job, "c"),
        ]
    assert [one.result(60) for one in made] == [1, 2, 3]
    assert len(tries) == 2
    assert decided(store, job) == ["a", "b", "c"]


def test_a_line_that_breaks_after_a_commit(store, location):
    """The client would get a second decision, though the first is kept."""
    (job,) = add_jobs(store, 1)
    commits = []

    @event.listens_for(store._engine, "commit")
    def break_line(connection):
        commits.append(1)
        if len(commits) == 1:
            connection.exec_driver_sql("COMMIT")
            end_lines(location)
            connection.exec_driver_sql("SELECT 1")

    assert asks(store, job, "b").result(60) == 1
    assert len(commits) == 2
    assert decided(store, job) == ["b"]


HOSTILE = "'; ROLLBACK; DROP TABLE jobs; -- \\'); \\\\ $1 %s %(rows)s : \u2028 \U0001f600"


def test_text_comes_back_whatever_the_database_makes_of_quotes(postgresql):
    """A client that chooses a key would write statements."""
    location = postgresql.new_database()
    with psycopg.connect(location, autocommit=True) as owner:
        name = owner.info.dbname
        owner.execute(f"ALTER DATABASE {name} SET standard_conforming_strings = off")
        owner.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    with Store.open(location) as store:
        (job,) = add_jobs(store, 1)
        for _ in range(2):
            assert asks(store, job, HOSTILE, HOSTILE).result(60) == 1
        assert decided(store, job) == [HOSTILE]
        isolation = text("SELECT current_setting('transaction_isolation')")
        asked = store.submit(lambda transaction: transaction.query(isolation).scalar(), job)
        assert asked.result(60) == "read committed"
        with store.reading() as transaction:
            assert transaction.find(DecisionRecord, job, sequence=1).reason == HOSTILE


def test_a_reader_begins_a_transaction_and_ends_it(store):
    """What is read in several statements could not be undone, or would stay locked."""
    (job,) = add_jobs(store, 1)
    status = "SELECT state FROM pg_stat_activity WHERE pid ="
    with store.reading() as transaction:
        pid = transaction.query(text("SELECT pg_backend_pid()")).scalar()
        with store._engine.connect() as other:
            assert other.exec_driver_sql(f"{status} {pid}").scalar() == "idle in transaction"
        transaction.job(job)
    with store._engine.connect() as other:
        assert other.exec_driver_sql(f"{status} {pid}").scalar() != "idle in transaction"


def test_a_suspended_database_keeps_nobody_waiting(store, monkeypatch):
    """A database that hangs while its connections stay open would hang every caller."""
    monkeypatch.setattr("joulery.storage._store._ANSWER_SECONDS", 0.3)
    (job,) = add_jobs(store, 1)
    pid = store.write(lambda one: one.query(text("SELECT pg_backend_pid()")).scalar())
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreBusyError, match="did not answer"):
            store.write(lambda one: recur(one, job), job)
    finally:
        os.kill(pid, signal.SIGCONT)
    # It was executed late, and only once.
    monkeypatch.setattr("joulery.storage._store._ANSWER_SECONDS", 60.0)
    assert store.write(lambda one: one.lock(job), job).recurrences == 1


def test_a_suspended_database_keeps_no_reader_waiting(store, monkeypatch):
    """Lists of jobs, and servers that check tokens, would hang with the database."""
    monkeypatch.setattr("joulery.storage._engines.SUSPENDED_SECONDS", 0.3)
    (job,) = add_jobs(store, 1)
    with store.reading() as transaction:
        pid = transaction.query(text("SELECT pg_backend_pid()")).scalar()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreBusyError, match="does not answer"), store.reading() as transaction:
            transaction.job(job)
    finally:
        os.kill(pid, signal.SIGCONT)
    with store.reading() as transaction:  # on another connection
        assert transaction.job(job).id == job
