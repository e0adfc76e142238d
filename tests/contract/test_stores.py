"""What the store promises on every database."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from msgspec import structs
from sqlalchemy import select, text
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError

from joulery.errors import (
    ConflictError,
    InvalidValueError,
    StoreBusyError,
    StoreError,
    StoreReplacedError,
    UnknownRecordError,
)
from joulery.frontier import Frontier, OperatingPoint
from joulery.jobs import RunEntry
from joulery.jobs._run_log import run_record
from joulery.storage import (
    DecisionRecord,
    DecisionState,
    EnergyRecord,
    Event,
    EventKind,
    JobRecord,
    OutcomeRecord,
    ProfileRecord,
    RunQuery,
    RunRecord,
    Snapshot,
    Store,
    Subject,
    _engines as engines,
    _queries,
    _schema as schema,
    _transaction as transaction_module,
    count_runs,
    list_runs,
    other_energy,
    put_run,
    records,
    run_totals,
)
from joulery.storage._engines import open_engine
from joulery.storage._migrate import HEAD, MIGRATIONS, current, renew_generation
from support.one_group import one_group

JOB = JobRecord(
    *("team", "job", {"batch_sizes": [8, 16]}, "zeus", {"beta": 2.0}),
    seed=2**64 - 1,
    created_wall_seconds=12.5,
)
BODY = {"cost": 0.1 + 0.2, "tiny": 5e-324, "large": 1.7976931348623157e308, "none": None}


@pytest.fixture
def store(location):
    """An empty store."""
    with Store.open(location) as store:
        yield store


def add_job(store, job=JOB):
    """Add one."""
    return store.write(lambda transaction: transaction.add_job(job)).id


def event(number, body=None):
    """An event of decision 1."""
    return Event(number, EventKind.OUTCOME, 1, body or {"number": number}, 3.25)


def pausing(job, *, paused=True):
    """An operation that pauses a job, or resumes it."""
    return lambda one: one.put(dataclasses.replace(one.lock(job), paused=paused))


def recurring(job):
    """An operation that begins a recurrence."""

    def operation(transaction):
        record = transaction.lock(job)
        transaction.put(dataclasses.replace(record, recurrences=record.recurrences + 1))

    return operation


def append_next(job):
    """An operation that adds the next event, whatever its number is."""

    def operation(transaction):
        number = transaction.lock(job).events + 1
        transaction.append(job, event(number))
        return number

    return operation


def decision(job, sequence, key="key", deadline=100.0):
    """A decision as the desk would store it."""
    return DecisionRecord(
        job, sequence, key, 0, {"arm": 1}, "because", {"after": None}, 1.5, deadline
    )


def test_a_job_comes_back_as_it_was_given(store):
    """A server that restarts would decide for another job than was defined."""
    number = add_job(store)
    with store.reading() as transaction:
        record = transaction.job(number)
        assert transaction.newest("team", "job") == record
        assert transaction.jobs("team") == [record]
        assert transaction.jobs("other team") == []
        assert transaction.newest("other team", "job") is None
    assert record == dataclasses.replace(JOB, id=number, version=1)
    assert (record.paused, record.events, record.recurrences) == (False, 0, 0)
    assert record.created_wall_seconds == 12.5


def test_the_same_name_again_is_the_next_version(store):
    """A changed job would overwrite the history of the one before."""
    first = add_job(store)
    heir = dataclasses.replace(JOB, inherits=first, seed=0)
    second = add_job(store, heir)
    with store.reading() as transaction:
        newest = transaction.newest("team", "job")
    assert newest == dataclasses.replace(heir, id=second, version=2)


def test_devices_have_versions_of_their_own(store):
    """A job on a new kind of device would pass for a changed one."""
    numbers = [
        add_job(store, dataclasses.replace(JOB, device=device))
        for device in ("", "V100", "V100", "A100")
    ]
    with store.reading() as transaction:
        newest = [
            transaction.newest("team", "job", one) for one in ("", "V100", "A100", "H100", None)
        ]
        siblings = transaction.siblings("team", "job")
    assert [one and (one.id, one.version, one.device) for one in newest] == [
        (numbers[0], 1, ""),
        (numbers[2], 2, "V100"),
        (numbers[3], 1, "A100"),
        None,
        (numbers[3], 1, "A100"),
    ]
    assert [one.id for one in siblings] == [numbers[0], numbers[2], numbers[3]]


def test_siblings_that_were_run_most_come_first(store):
    """A new device would start from the one that has shown least."""
    idle, busy = (add_job(store, dataclasses.replace(JOB, device=one)) for one in ("a", "b"))
    store.write(recurring(busy), busy)
    with store.reading() as transaction:
        assert [one.id for one in transaction.siblings("team", "job")] == [busy, idle]
        assert [one.id for one in transaction.siblings("team", "job", limit=1)] == [busy]


def test_events_are_numbered_and_exact(store):
    """Beliefs folded from other bits would differ from those that decided."""
    job = add_job(store)
    store.write(lambda transaction: transaction.append(job, event(1, BODY)), job)
    store.write(lambda transaction: transaction.append(job, event(2)), job)
    with store.reading() as transaction:
        assert list(transaction.events(job)) == [event(1, BODY), event(2)]
        assert list(transaction.events(job, after=1)) == [event(2)]
        assert transaction.job(job).events == 2


def test_many_threads_leave_no_gap(store):
    """Two events under one number, or a number missing, and histories cannot be replayed."""
    jobs = [add_job(store, dataclasses.replace(JOB, name=f"job {n}")) for n in range(3)]
    with ThreadPoolExecutor(16) as threads:
        numbers = list(
            threads.map(lambda n: store.write(append_next(jobs[n % 3]), jobs[n % 3]), range(120))
        )
    for place, job in enumerate(jobs):
        assert sorted(numbers[place::3]) == list(range(1, 41))
        with store.reading() as transaction:
            assert [one.sequence for one in transaction.events(job)] == list(range(1, 41))


def test_several_processes_leave_no_gap(store, location):
    """Workers of a server share nothing but the database."""
    jobs = [add_job(store, dataclasses.replace(JOB, name=f"job {n}")) for n in range(3)]
    others = [Store.open(location) for _ in range(3)]
    # Each asks for the jobs in an order of its own: whoever waits in a circle never ends.
    futures = [
        other.submit(append_next(jobs[(turn * step) % 3]), jobs[(turn * step) % 3])
        for turn in range(60)
        for step, other in enumerate(others, start=1)
    ]
    for future in futures:
        future.result(60)
    for other in others:
        other.close()
    with store.reading() as transaction:
        histories = [[one.sequence for one in transaction.events(job)] for job in jobs]
    assert sum(map(len, histories)) == 180
    assert all(history == list(range(1, len(history) + 1)) for history in histories)


def test_one_failure_does_not_touch_the_others_of_its_group(store):
    """One bad request would undo, or renumber, what others were told is kept."""
    job = add_job(store)

    def failing(transaction):
        recurring(job)(transaction)
        append_next(job)(transaction)
        raise InvalidValueError("no", remedy="none")

    def crashing(transaction):
        append_next(job)(transaction)
        return 1 // 0

    def clashing(transaction):
        append_next(job)(transaction)
        transaction.add(decision(job, 1))
        transaction.decisions(job)
        transaction.change(schema.decisions.insert(), dataclasses.asdict(decision(job, 1)))

    operations = [append_next(job), failing, append_next(job), crashing, clashing, append_next(job)]
    with one_group(store):
        futures = [store.submit(operation, job) for operation in operations]
    assert [futures[n].result(60) for n in (0, 2, 5)] == [1, 2, 3]
    for number, kind in ((1, InvalidValueError), (3, ZeroDivisionError), (4, ConflictError)):
        with pytest.raises(kind):
            futures[number].result(60)
    with store.reading() as transaction:
        record = transaction.job(job)
        assert (record.events, record.recurrences) == (3, 0)
        assert [one.sequence for one in transaction.events(job)] == [1, 2, 3]
        assert transaction.decisions(job) == []


def test_undoing_is_told_once_and_only_where_needed(store):
    """What a process keeps in memory would run ahead of the store."""
    job = add_job(store)
    undone = []

    def operation(name, fails):
        def run(transaction):
            transaction.on_rollback(lambda: undone.append(name))
            append_next(job)(transaction)
            if fails:
                raise ConflictError("no", remedy="none")

        return run

    kept = store.submit(operation("kept", fails=False), job)
    lost = store.submit(operation("lost", fails=True), job)
    kept.result(60)
    with pytest.raises(ConflictError):
        lost.result(60)
    assert undone == ["lost"]


def test_a_failed_commit_undoes_and_refuses_all(store):
    """An operation must not be acknowledged that the disk did not keep."""
    job = add_job(store)
    undone = []

    def doomed(transaction):
        transaction.on_rollback(lambda: undone.append(1))
        append_next(job)(transaction)

    def fatal(transaction):
        raise StoreError("the disk is full", remedy="none")

    with one_group(store):
        futures = [store.submit(doomed, job), store.submit(fatal, job)]
    for future in futures:
        with pytest.raises(StoreError, match="disk is full"):
            future.result(60)
    assert undone == [1]
    with store.reading() as transaction:
        assert (transaction.job(job).events, list(transaction.events(job))) == (0, [])


@pytest.mark.parametrize("fails", [False, True])
def test_a_database_that_dies_at_a_savepoint_undoes_all(store, monkeypatch, fails):
    """A process whose memory runs ahead of the store numbers decisions that nobody can follow."""
    job = add_job(store)
    undone = []

    def lose(*_):
        raise OperationalError("", {}, Exception("the database crashed"))

    def doomed(transaction):
        transaction.on_rollback(lambda: undone.append(1))
        append_next(job)(transaction)
        transaction.query(select(schema.jobs))  # sees its own rows, after a savepoint
        if fails:
            raise InvalidValueError("no", remedy="none")

    for name in ("release", "rollback_to"):
        monkeypatch.setattr(DefaultDialect, f"do_{name}_savepoint", lose)
    with pytest.raises(StoreError, match="crashed"):
        store.submit(doomed, job).result(60)
    assert undone == [1]
    monkeypatch.undo()
    with store.reading() as transaction:
        assert (transaction.job(job).events, list(transaction.events(job))) == (0, [])


def test_what_the_database_asks_to_repeat_is_repeated(store):
    """A deadlock with another process would reach a client as an error."""
    job = add_job(store)
    tries = []

    def busy_once(transaction):
        tries.append(1)
        append_next(job)(transaction)
        if len(tries) == 1:
            raise StoreBusyError("deadlock", remedy="again")

    store.write(busy_once, job)
    assert len(tries) == 2
    with store.reading() as transaction:
        assert transaction.job(job).events == 1


def test_decisions_are_found_by_number_and_by_key(store):
    """A client that asks again would get another decision."""
    job = add_job(store)
    made = [decision(job, 1, "a"), decision(job, 2, "b", deadline=50.0)]
    for one in made:
        store.write(lambda transaction, one=one: transaction.add(one), job)
    with store.reading() as transaction:
        assert (
            transaction.find(DecisionRecord, job, sequence=2)
            == transaction.find(DecisionRecord, job, key="b")
            == made[1]
        )
        assert transaction.decisions(job) == made
        assert transaction.decisions(job, after=1) == made[1:]
        assert transaction.find(DecisionRecord, job, sequence=3) is None
        assert transaction.find(DecisionRecord, job, key="c") is None


def test_only_silent_holders_are_overdue(store):
    """A living worker's decision would be given to another."""
    job = add_job(store)
    for number, deadline in ((1, 50.0), (2, 50.0), (3, 50.0), (4, 200.0)):
        one = decision(job, number, f"key {number}", deadline)
        store.write(lambda transaction, one=one: transaction.add(one), job)
    ended = dataclasses.replace(decision(job, 1, "key 1"), state=DecisionState.REPORTED)
    store.write(lambda transaction: transaction.put(ended), job)
    beat = dataclasses.replace(
        decision(job, 2, "key 2", deadline=300.0),
        heartbeat_wall_seconds=49.0,
        progress={"seconds": 1.5},
    )
    store.write(lambda transaction: transaction.put(beat), job)
    with store.reading() as transaction:
        assert [one.sequence for one in transaction.overdue(job, 100.0)] == [3]
        assert transaction.jobs_with_overdue(100.0) == [job]
        assert transaction.jobs_with_overdue(50.0) == []
        prolonged = transaction.find(DecisionRecord, job, sequence=2)
    assert prolonged.progress == {"seconds": 1.5}
    assert (prolonged.heartbeat_wall_seconds, prolonged.deadline_wall_seconds) == (49.0, 300.0)


def test_a_decision_has_one_outcome(store):
    """A report that is sent twice would count twice."""
    job = add_job(store)
    store.write(lambda transaction: transaction.add(decision(job, 1)), job)
    report = OutcomeRecord(job, 1, "key", BODY, 2, late=True, wall_seconds=8.0)
    store.write(lambda transaction: transaction.add(report), job)
    with pytest.raises(ConflictError):
        store.write(lambda transaction: transaction.add(report), job)
    with store.reading() as transaction:
        assert transaction.find(OutcomeRecord, job, decision=1) == report
        assert transaction.find(OutcomeRecord, job, decision=9) is None


def test_profiles_are_replaced_and_energy_adds_up(store):
    """A measurement would be lost, or an old one shadow the new."""
    job = add_job(store)
    for joules in (10.0, 5.0):
        frontier = Frontier.from_points([OperatingPoint(2.0, joules)]).to_dict()
        profile = ProfileRecord(job, 64, "V100", frontier, 1.0)
        store.write(lambda transaction, one=profile: _queries.put_profile(transaction, one), job)
        used = EnergyRecord(job, None, "gpu:0", 2.0, joules, {"origin": "measured"}, 1.0)
        store.write(lambda transaction, one=used: _queries.add_energy(transaction, one), job)
    with store.reading() as transaction:
        assert records(transaction, ProfileRecord, job) == [profile]
        assert [one.joules for one in records(transaction, EnergyRecord, job)] == [10.0, 5.0]
    assert Frontier.from_dict(profile.frontier).points[0].joules == 5.0


def test_energy_of_a_decision_counts_once(store):
    """A repeated request would double what a job has used."""
    job = add_job(store)
    used = EnergyRecord(job, 3, "gpu:0", 2.0, 5.0, {"origin": "measured"}, 1.0)

    def add(one):
        store.write(lambda transaction: _queries.add_energy(transaction, one), job)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, [used] * 16))
    add(dataclasses.replace(used, wall_seconds=9.0))
    add(dataclasses.replace(used, device="gpu:1"))
    with pytest.raises(ConflictError):
        add(dataclasses.replace(used, joules=6.0))
    with store.reading() as transaction:
        kept = records(transaction, EnergyRecord, job)
    assert [(one.device, one.wall_seconds) for one in kept] == [("gpu:0", 1.0), ("gpu:1", 1.0)]


def test_pausing_is_kept(store):
    """A job that its owner stopped would go on after a restart."""
    job = add_job(store)
    store.write(pausing(job), job)
    with store.reading() as transaction:
        assert transaction.job(job).paused
    store.write(pausing(job, paused=False), job)
    with store.reading() as transaction:
        assert not transaction.job(job).paused


def test_pausing_and_forgetting_can_be_undone_by_a_failure(store):
    """A refused request would still delete, or leave counts that do not match the events."""
    job = add_job(store)

    def refused(change):
        def operation(transaction):
            append_next(job)(transaction)
            change(transaction)
            raise ConflictError("no", remedy="none")

        return operation

    changes = (
        lambda transaction: transaction.delete(job),
        pausing(job),
    )
    with one_group(store):
        before = store.submit(append_next(job), job)
        lost = [store.submit(refused(change), job) for change in changes]
        after = store.submit(lambda book: (append_next(job)(book), book.lock(job)), job)
    for future in lost:
        with pytest.raises(ConflictError):
            future.result(60)
    assert before.result(60) == 1
    number, record = after.result(60)
    assert (number, record.paused) == (2, False)
    with store.reading() as transaction:
        assert transaction.job(job).events == 2


@pytest.mark.parametrize("step", [1, 4096])
def test_forgetting_leaves_nothing(store, monkeypatch, step):
    """Data that its owner deleted would still be there, or come back under a new job's number."""
    monkeypatch.setattr(transaction_module, "_EVENTS", step)
    job, other = add_job(store), add_job(store, dataclasses.replace(JOB, name="other"))
    for one in (job, other):
        for _ in range(3):
            store.write(append_next(one), one)
        store.write(lambda transaction, one=one: transaction.add(decision(one, 1)), one)
        report = OutcomeRecord(one, 1, "key", {}, 2, late=False, wall_seconds=8.0)
        store.write(lambda transaction, report=report: transaction.add(report), one)
        kept = Snapshot(one, 1, "code", b"\0\xff")
        store.write(lambda transaction, kept=kept: transaction.put_snapshot(kept), one)
    store.write(lambda transaction: transaction.delete(job), job)
    with store.reading() as transaction:
        assert list(transaction.events(job)) == transaction.decisions(job) == []
        assert transaction.find(OutcomeRecord, job, decision=1) is None
        assert transaction.snapshot(job) is None
        assert transaction.snapshot(other) == Snapshot(other, 1, "code", b"\0\xff")
        assert len(list(transaction.events(other))) == 3
        assert len(transaction.decisions(other)) == 1
        with pytest.raises(UnknownRecordError):
            transaction.job(job)
    with pytest.raises(UnknownRecordError):
        store.write(append_next(job), job)
    assert add_job(store) not in (job, other)


@pytest.mark.parametrize("odd", [Subject(0, decision_key="\ud800"), Subject(2**70)])
def test_what_no_database_can_look_for_is_refused_alone(store, odd):
    """One client with an odd name would fail everyone in its group."""
    job = add_job(store)
    with one_group(store):
        refused = store.submit(append_next(odd.job or job), odd)
        good = store.submit(append_next(job), job)
    assert good.result(60) == 1
    assert refused.exception(60) is not None


def test_rows_that_clash_are_refused_alone(store):
    """Rows are written together; the fault of one must not undo the rest."""
    job = add_job(store)
    with one_group(store):
        futures = [store.submit(append_next(job), job)]
        futures += [
            store.submit(lambda transaction, n=n: transaction.add(decision(job, n, "same")), job)
            for n in (1, 2)
        ]
        futures += [store.submit(append_next(job), job)]
    assert [futures[n].exception(60) is None for n in range(4)] == [True, True, False, True]
    assert isinstance(futures[2].exception(), ConflictError)
    with store.reading() as transaction:
        assert [one.sequence for one in transaction.events(job)] == [1, 2]
        assert [one.sequence for one in transaction.decisions(job)] == [1]


def test_what_was_read_ahead_is_what_is_there(store):
    """A repeated request would be taken for a new one."""
    job = add_job(store)
    made, report = (
        decision(job, 1),
        OutcomeRecord(job, 1, "key", BODY, 2, late=False, wall_seconds=8.0),
    )
    store.write(lambda transaction: (transaction.add(made), transaction.add(report)), job)

    def look(transaction):
        before = (
            transaction.find(DecisionRecord, job, key="key"),
            transaction.find(DecisionRecord, job, sequence=1),
            transaction.find(OutcomeRecord, job, decision=1),
        )
        return *before, transaction.find(OutcomeRecord, job, decision=5)

    about = Subject(job, 1, "key")
    assert store.write(look, about) == store.write(look, job) == (made, made, report, None)


def test_the_migrated_schema_is_that_of_the_tables(store):
    """A new installation and an upgraded one would differ."""
    with store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
        assert current(connection) == HEAD
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == HEAD


def as_first_released(connection):
    """Give an empty database the tables of the first release."""
    later = schema.runs, schema.curves, schema.sessions
    schema.metadata.create_all(
        connection,
        [table for table in schema.metadata.sorted_tables if table not in later],
    )
    double = schema.outcomes.c.wall_seconds.type.compile(connection.dialect)
    for statement in f"""DROP TABLE outcomes;
CREATE TABLE outcomes (
    job BIGINT NOT NULL, decision BIGINT NOT NULL, key TEXT NOT NULL, body JSON NOT NULL,
    event BIGINT NOT NULL, late BOOLEAN NOT NULL, wall_seconds {double} NOT NULL,
    quarantined BOOLEAN NOT NULL,
    CONSTRAINT pk_outcomes PRIMARY KEY (job, decision),
    CONSTRAINT uq_outcomes_job_key UNIQUE (job, key),
    CONSTRAINT fk_outcomes_job_decision FOREIGN KEY (job, decision)
        REFERENCES decisions (job, sequence) ON DELETE CASCADE);
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO alembic_version VALUES ('r0001')""".split(";"):  # noqa: S608 - a type's name
        connection.exec_driver_sql(statement)


def test_an_older_store_is_upgraded(location):
    """Users would lose what their jobs have learned with each new version."""
    engine = open_engine(location)
    with engine.connect() as connection, connection.begin():
        as_first_released(connection)
    engine.dispose()
    with Store.open(location) as store:
        test_the_migrated_schema_is_that_of_the_tables(store)
        test_a_decision_has_one_outcome(store)


def test_runs_of_an_older_store_say_what_their_jobs_have(location):
    """After an upgrade the overview would count the energy of recurring runs twice."""
    outer = RunEntry("a", "a", 0.0, 1.0, 100.0)
    inner = RunEntry("b", "b", 0.0, 1.0, 30.0, decision="1.1", part_of="a")
    with Store.open(location) as store:
        for run in (outer, inner, structs.replace(inner, key="c", joules=20.0, part_of="")):
            record = run_record(run, "vision")
            store.write(lambda transaction, record=record: put_run(transaction, record, []))
    engine = open_engine(location)
    with engine.connect() as connection, connection.begin():
        for statement in (
            "DROP INDEX ix_runs_team_started",
            "DROP INDEX ix_runs_started",
            "ALTER TABLE runs DROP COLUMN decision_joules",
            "CREATE INDEX ix_runs_team_started ON runs (team, started_wall_seconds)",
            "CREATE INDEX ix_runs_started ON runs (started_wall_seconds)",
            "UPDATE alembic_version SET version_num = 'r0004'",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()
    with Store.open(location) as store, store.reading() as transaction:
        (energy,) = other_energy(transaction, "vision")
        assert energy.joules == 70.0


def test_a_store_of_a_newer_version_is_refused(location):
    """Old code would write rows that new code cannot read."""
    Store.open(location).close()
    engine = open_engine(location)
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'r9999'")
    engine.dispose()
    with pytest.raises(StoreError, match="r9999"):
        Store.open(location)


def test_many_open_an_empty_store_at_once(location):
    """Ranks of one job start together; all but one would fail."""
    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(lambda _: Store.open(location), range(4)))
    job = add_job(stores[0])
    for store in stores:
        store.write(append_next(job), job)
    with stores[3].reading() as transaction:
        assert transaction.job(job).events == 4
    for store in stores:
        store.close()


def test_a_closed_store_has_finished_and_takes_no_more(location):
    """What was submitted just before the end would be lost."""
    store = Store.open(location)
    job = add_job(store)
    futures = [store.submit(append_next(job), job) for _ in range(50)]
    store.close()
    store.close()
    assert [future.result(0) for future in futures] == list(range(1, 51))
    with pytest.raises(StoreError, match="closed"):
        store.submit(append_next(job), job)


@contextmanager
def locked(location):
    """Another program has locked the database, or all of its jobs, and holds it."""
    engine = open_engine(location)
    with engine.connect() as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        yield
    engine.dispose()


def test_a_locked_database_is_told_of_and_waited_for_no_longer(store, location):
    """Clients would hang for as long as somebody else's program does."""
    job = add_job(store)
    with locked(location):
        first = store.submit(pausing(job), job)
        time.sleep(0.5)
        behind = store.submit(pausing(job), job)
        with pytest.raises(StoreBusyError):
            first.result(60)
        with pytest.raises(StoreBusyError):
            behind.result(60)
        assert store.write_failure
    store.write(pausing(job), job)
    assert store.write_failure is None


def test_a_moments_lock_is_waited_for(store, location):
    """Several processes that write at once would fail one another."""
    job = add_job(store)
    with locked(location):
        future = store.submit(pausing(job), job)
        time.sleep(0.3)
        assert not future.done()
    future.result(60)


def test_a_long_history_is_read_whole(store, monkeypatch):
    """Histories beyond a page would be cut off."""
    monkeypatch.setattr(transaction_module, "_EVENTS", 3)
    job = add_job(store)
    for number in range(1, 8):
        event = Event(number, EventKind.ISSUED, number, BODY, 1.0)
        store.write(lambda transaction, event=event: transaction.append(job, event), job)
        with store.reading() as transaction:
            found = [one.sequence for one in transaction.events(job)]
            rest = [one.sequence for one in transaction.events(job, 2)]
        assert found == list(range(1, number + 1))
        assert rest == found[2:]


def test_a_statement_without_end_is_ended(postgresql, monkeypatch):
    """A statement that hangs would keep every other waiting for ever."""
    monkeypatch.setattr(engines, "STATEMENT_SECONDS", 0.4)
    with Store.open(postgresql.new_database()) as store:
        with pytest.raises(StoreBusyError):
            store.write(lambda transaction: transaction.query(text("SELECT pg_sleep(60)")).all())
        add_job(store)


def test_migrations_and_exports_may_take_their_time(postgresql, monkeypatch):
    """Those of large stores would be cancelled."""
    monkeypatch.setattr(engines, "STATEMENT_SECONDS", 0.4)
    location = postgresql.new_database()
    for patient, timeout in ((True, "0"), (False, "400ms")):
        engine = open_engine(location, patient=patient)
        with engine.connect() as connection:
            asked = connection.exec_driver_sql("SELECT current_setting('statement_timeout')")
            assert asked.scalar() == timeout
        engine.dispose()


def test_a_store_in_memory_is_gone_when_it_is_closed():
    """Users' own tests would have to make up paths, and would leave files behind."""
    with Store.open(":memory:") as first, Store.open(":memory:") as second:
        first.write(lambda transaction: transaction.add_job(JobRecord("a", "b", {}, "zeus", {}, 1)))
        assert (first.counts()["jobs"], second.counts()["jobs"]) == (1, 0)
        folder = Path(first._folder.name)
        assert folder.is_dir()
    assert not folder.exists()


def test_runs_are_listed_in_every_order(store):
    """A list of runs would fail on one of the databases, or be out of order."""
    for number, (seconds, joules) in enumerate(((10.0, 100.0), (0.0, None), (5.0, 400.0))):
        texts = "vision", f"{number}", f"run {number}", "", "", f"run {number}"
        run = RunRecord(*texts, float(number), seconds, joules, True, {})  # noqa: FBT003
        store.write(lambda transaction, run=run: put_run(transaction, run, []))
    orders = {"started": "210", "energy": "201", "time": "021", "power": "201", "name": "012"}
    with store.reading() as transaction:
        for sort, keys in orders.items():
            found = list_runs(transaction, RunQuery("vision", sort=sort), 10)
            assert "".join(run.key for run in found) == keys, sort
        assert count_runs(transaction, RunQuery(None, "RUN 1")) == 1
        assert run_totals(transaction, "vision", 0.0, 1.5) == (2, 100.0)
        assert count_runs(transaction, RunQuery("speech")) == 0


def test_energy_besides_jobs_leaves_out_what_jobs_have(store):
    """The overview would add the energy of a recurring run twice, or leave out all other runs."""
    runs = (
        ("vision", 100.0, 50.0, None),
        ("vision", 1000.0, 30.0, 30.0),  # of a recurring job
        ("vision", 1900.0, 70.0, None),
        ("vision", 1950.0, None, 20.0),  # of a recurring job, within the run before
        ("speech", 100.0, 5.0, None),
    )
    for number, (team, start, joules, decision_joules) in enumerate(runs):
        texts = team, f"{number}", "", "", "", ""
        run = RunRecord(*texts, start, 1.0, joules, True, {}, decision_joules)  # noqa: FBT003
        store.write(lambda transaction, run=run: put_run(transaction, run, []))
    with store.reading() as transaction:
        sums = sorted((entry.team, entry.joules) for entry in other_energy(transaction, None))
        assert sums == [("speech", 5.0), ("vision", 100.0)]
        (vision,) = other_energy(transaction, "vision", 90.0, 1000.0)
        assert (vision.wall_seconds, vision.joules) == (100.0, 50.0)
        parts = other_energy(transaction, "vision", by_time=True)
        assert sorted((part.wall_seconds, part.joules) for part in parts) == [
            *((100.0, 50.0), (1000.0, 0.0), (1900.0, 50.0))
        ]


def test_open_runs_are_listed_by_time(store):
    """Runs under way would be out of order, or those that have ended be among them."""
    for number, ended in enumerate((False, True, False)):
        texts = "vision", f"{number}", f"run {number}", "", "", ""
        run = RunRecord(*texts, float(number), 1.0, 1.0, ended, {})
        store.write(lambda transaction, run=run: put_run(transaction, run, []))
    with store.reading() as transaction:
        query = RunQuery(None, open_only=True)
        assert [run.key for run in list_runs(transaction, query, 10)] == ["2", "0"]
        assert count_runs(transaction, query) == 2


def test_pages_of_very_many_runs_read_an_index_only(tmp_path):
    """The overview of a team with 100,000 runs would take a second, each time it is opened."""
    statements = (
        "SELECT count(*), sum(joules) FROM runs WHERE started_wall_seconds > 9",
        "SELECT count(*), sum(joules) FROM runs WHERE started_wall_seconds > 9 AND team = 'a'",
        "SELECT team, sum(decision_joules) FROM runs WHERE started_wall_seconds > 9",
        "SELECT id FROM runs ORDER BY started_wall_seconds DESC, id DESC",
    )
    with Store.open(tmp_path / "store.sqlite") as store, store.reading() as transaction:
        for statement in statements:
            steps = [row[-1] for row in transaction.query(text(f"EXPLAIN QUERY PLAN {statement}"))]
            assert len(steps) == 1, (statement, steps)
            assert "COVERING INDEX ix_runs" in steps[0], (statement, steps)


def test_a_store_whose_content_was_replaced_is_refused(store, location):
    """A process would decide from what it knows of a content that is gone."""
    job = add_job(store)
    engine = open_engine(location)
    with engine.connect() as connection, connection.begin():
        renew_generation(connection)
    engine.dispose()
    for work in (lambda: store.write(append_next(job), job), store.counts):
        with pytest.raises(StoreReplacedError, match="replaced"):
            work()
    assert store.replaced
