"""One transaction on the store, shared by a group of operations.

The row of a job orders everything that happens to the job: an operation that changes a job locks
that row first (SQLite locks the whole database instead), so events are numbered without gaps in the
order of commits, by any number of processes.

Operations of a group are executed one after the other. What they are known to look for is read for
all of them at once (``Transaction.prepare``); rows that they add are collected and written for
all of them at once, with ``executemany``, before the commit or before a query has to see them. An
operation that fails takes its own rows back before they are ever written; only one that has to
write at once gets a savepoint.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import bindparam, delete, func, insert, literal_column, select, update
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from joulery.errors import ConflictError, StoreError, UnknownRecordError
from joulery.storage._engines import explained
from joulery.storage._records import (
    DecisionRecord,
    Event,
    JobRecord,
    OutcomeRecord,
    Snapshot,
)
from joulery.storage._schema import decisions, events, jobs, outcomes, snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import (
        BindParameter,
        Connection,
        CursorResult,
        Executable,
        NestedTransaction,
        Table,
    )

    from joulery.storage._records import Subject

    Row = dict[str, Any]
    # Kind of record, column, job and value that a record is found by.
    Address = tuple[Any, str, int, int | str]

Found = TypeVar("Found", DecisionRecord, OutcomeRecord)

_EVENTS = 4096  # of one statement (by hand: some tens of milliseconds)
_SIGN = 2**63  # databases have signed numbers only


@dataclass(frozen=True, slots=True)
class _Form:
    """Storage form of a class of records.

    Attributes:
        table: Table of the records.
        key: Columns that tell them apart.
        changing: Columns that change.
        found_by: Columns that a record of a job is looked for by.
    """

    table: Table
    key: tuple[str, ...]
    changing: tuple[str, ...]
    found_by: tuple[str, ...] = ()


_FORMS: dict[Any, _Form] = {
    DecisionRecord: _Form(
        decisions,
        ("job", "sequence"),
        ("state", "heartbeat_wall_seconds", "deadline_wall_seconds", "progress"),
        ("sequence", "key"),
    ),
    OutcomeRecord: _Form(outcomes, ("job", "decision"), ("ignored",), ("decision",)),
    JobRecord: _Form(jobs, ("id",), ("paused", "events", "recurrences")),
}
_ADD = {kind: insert(form.table) for kind, form in _FORMS.items()}
_CHANGE = {
    kind: update(form.table)
    .where(*(form.table.c[name] == bindparam(f"of_{name}") for name in form.key))
    .values({name: bindparam(f"to_{name}") for name in form.changing})
    for kind, form in _FORMS.items()
}
_ADD_EVENT = insert(events)
_DROP_SNAPSHOT = delete(snapshots).where(snapshots.c.job == bindparam("of_job"))
_ADD_SNAPSHOT = insert(snapshots)
# Statements that are executed for many rows; none refers to rows of a later one.
_WRITES = (
    *(_ADD[DecisionRecord], _ADD_EVENT, _ADD[OutcomeRecord]),
    *_CHANGE.values(),
    *(_DROP_SNAPSHOT, _ADD_SNAPSHOT),
)
_JOBS: BindParameter[Any] = bindparam("jobs", expanding=True)
_VALUES: BindParameter[Any] = bindparam("values", expanding=True)
# In order, so that two processes never wait for each other in a circle. SQLite ignores the lock.
_LOCK_JOBS = (
    select(jobs).where(jobs.c.id.in_(_JOBS)).order_by(jobs.c.id).with_for_update(key_share=True)
)
# Columns that decisions are found by, by field of Subject. Each query finds all combinations of
# jobs and values, since neither database finds pairs by an index.
_LOOKUPS = {"decision": decisions.c.sequence, "decision_key": decisions.c.key}
_FIND_DECISIONS = {
    name: select(decisions).where(decisions.c.job.in_(_JOBS), column.in_(_VALUES))
    for name, column in _LOOKUPS.items()
}
# Literally, or the index of open decisions may not be used.
_IS_OPEN = decisions.c.state == literal_column("0")


class RefusedRowsError(ConflictError):
    """The database refused rows of some operation when they were written with those of others."""


@dataclass(slots=True)
class _Operation:
    """State of the operation that is being executed, merged into the transaction when it ends."""

    cache: ChainMap[Address, Any]  # what it has read and written, over what others have
    rows: dict[tuple[Executable, Any], Row] = field(default_factory=dict)
    undo: list[Callable[[], None]] = field(default_factory=list)
    savepoint: NestedTransaction | None = None


class Transaction:
    """Reads and writes within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cache: ChainMap[Address, Any] = ChainMap()
        self._rows: dict[tuple[Executable, Any], Row] = {}
        self._undo: list[Callable[[], None]] = []
        self._operation = _Operation(self._cache.new_child())

    @property
    def dialect(self) -> str:
        """Name of the database: ``sqlite`` or ``postgresql``."""
        return self._connection.dialect.name

    @property
    def connection(self) -> Connection:
        """Connection of the transaction, after all that was written before."""
        self._guard()
        return self._connection

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Make what is done inside one operation: it is done whole or, if it raises, not at all.

        Raises:
            InvalidValueError, ConflictError: The database refused a value; only this is undone.
            StoreError: The database failed; the transaction is lost.
        """
        try:
            yield
            if self._operation.savepoint is not None:
                self._operation.savepoint.commit()
        except BaseException as error:
            meaning = explained(error) if isinstance(error, DBAPIError) else error
            if not isinstance(meaning, (StoreError, RefusedRowsError)):
                self._undo_operation()
            if meaning is error:
                raise
            raise meaning from error
        operation, self._operation = self._operation, _Operation(self._cache.new_child())
        self._cache.update(operation.cache.maps[0])
        self._rows |= operation.rows
        self._undo += operation.undo

    def _undo_operation(self) -> None:
        failed, self._operation = self._operation, _Operation(self._cache.new_child())
        for undo in reversed(failed.undo):  # first, since the database may fail here as well
            undo()
        if failed.savepoint is not None:
            try:
                failed.savepoint.rollback()
            except DBAPIError as error:
                raise explained(error) from error

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` if what this operation does is not kept."""
        self._operation.undo.append(undo)

    def rolled_back(self) -> None:
        """Undo everything in memory, since nothing of this transaction was kept."""
        for undo in reversed((*self._undo, *self._operation.undo)):
            undo()

    def prepare(self, subjects: Iterable[Subject]) -> None:
        """Lock and read what operations are known to need, for all of them at once."""
        subjects = list(subjects)
        numbers = {subject.job for subject in subjects if subject.job}
        if numbers:
            for row in self._connection.execute(_LOCK_JOBS, {"jobs": list(numbers)}):
                self._cache[JobRecord, "id", row.id, 0] = _job_record(row)
        for name, column in _LOOKUPS.items():
            keys = [(subject.job, getattr(subject, name)) for subject in subjects]
            keys = [key for key in keys if key[1] is not None]
            if keys:
                prefix = DecisionRecord, column.name
                self._cache.update({(*prefix, *key): None for key in keys})
                parameters = {"jobs": list(numbers), "values": list({value for _, value in keys})}
                for row in self._connection.execute(_FIND_DECISIONS[name], parameters):
                    record = DecisionRecord(*row)
                    self._cache[*prefix, row.job, getattr(record, column.name)] = record

    def query(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Read, after all that was written before."""
        if self._operation.rows:
            self._guard()
        else:
            self.flush()
        return self._connection.execute(statement, parameters)

    def change(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Write at once, to be undone with the operation."""
        self._guard()
        return self._connection.execute(statement, parameters)

    def _guard(self) -> None:
        """Write all rows, the operation's own ones after a savepoint."""
        self.flush()
        if self._operation.savepoint is None:
            self._operation.savepoint = self._connection.begin_nested()
        self._rows, self._operation.rows = self._operation.rows, self._rows
        self.flush()

    def flush(self) -> None:
        """Write the rows of operations that have ended."""
        try:
            for write in _WRITES:
                rows = [row for (kind, _), row in self._rows.items() if kind is write]
                if rows:
                    self._connection.execute(write, rows)
        except (DataError, IntegrityError) as error:
            meaning = explained(error)
            raise RefusedRowsError(meaning.message, remedy=meaning.remedy) from error
        self._rows.clear()

    def add(self, record: DecisionRecord | OutcomeRecord) -> None:
        """Have a record added before the commit; ``append`` its event as well."""
        form = _FORMS[type(record)]
        address = _ADD[type(record)], tuple(getattr(record, name) for name in form.key)
        if address in self._operation.rows or address in self._rows:
            raise ConflictError("the record exists already", remedy="add each record once")
        self._operation.rows[address] = _row(record)
        self._remember(record)

    def put(self, record: JobRecord | DecisionRecord | OutcomeRecord) -> None:
        """Have the changed fields of a record written before the commit."""
        form = _FORMS[type(record)]
        row = {f"of_{name}": getattr(record, name) for name in form.key}
        key = tuple(row.values())
        row |= {f"to_{name}": getattr(record, name) for name in form.changing}
        self._operation.rows[_CHANGE[type(record)], key] = row
        self._remember(record)

    def _remember(self, record: JobRecord | DecisionRecord | OutcomeRecord) -> None:
        """Give this record to those who look for it in this transaction."""
        cache, kind = self._operation.cache, type(record)
        if isinstance(record, JobRecord):
            cache[kind, "id", record.id, 0] = record
        else:
            for column in _FORMS[kind].found_by:
                cache[kind, column, record.job, getattr(record, column)] = record

    def find(self, kind: type[Found], job: int, **by: int | str) -> Found | None:
        """A decision by its ``sequence`` or ``key``, or an outcome by its ``decision``, if any."""
        ((column, value),) = by.items()
        cache, address = self._operation.cache, (kind, column, job, value)
        if address not in cache:
            table = _FORMS[kind].table
            query = select(table).where(table.c.job == job, table.c[column] == value)
            row = self.query(query).one_or_none()
            cache[address] = None if row is None else kind(*row)
        record: Found | None = cache[address]
        return record

    # Jobs

    def lock(self, job: int) -> JobRecord:
        """The job as it is now; no other process changes it until the transaction ends.

        Raises:
            UnknownRecordError: There is none.
        """
        record = self._operation.cache.get((JobRecord, "id", job, 0))
        if record is None:
            record = self._job(job, lock=True)
            self._remember(record)
        found: JobRecord = record
        return found

    def job(self, job: int) -> JobRecord:
        """One job, not locked.

        Raises:
            UnknownRecordError: There is none.
        """
        return self._job(job, lock=False)

    def _job(self, job: int, *, lock: bool) -> JobRecord:
        query = select(jobs).where(jobs.c.id == job)
        row = self.query(query.with_for_update(key_share=True) if lock else query).one_or_none()
        if row is None:
            raise UnknownRecordError(
                f"no job number {job}",
                remedy="`joulery jobs list` shows the jobs; it may be deleted",
            )
        return _job_record(row)

    def newest(self, team: str, name: str, device: str | None = "") -> JobRecord | None:
        """The newest version of a job, if there is any; None looks on every device."""
        query = select(jobs).where(jobs.c.team == team, jobs.c.name == name)
        if device is None:
            query = query.order_by(jobs.c.id.desc())
        else:
            query = query.where(jobs.c.device == device).order_by(jobs.c.version.desc())
        row = self.query(query.limit(1)).one_or_none()
        return None if row is None else _job_record(row)

    def siblings(self, team: str, name: str, limit: int = 100) -> list[JobRecord]:
        """The newest version of a job on every device, those with most recurrences first."""
        versions = jobs.alias("other")
        newest = select(func.max(versions.c.version)).where(
            *(versions.c[column] == jobs.c[column] for column in ("team", "name", "device"))
        )
        query = (
            select(jobs)
            .where(
                jobs.c.team == team,
                jobs.c.name == name,
                jobs.c.version == newest.scalar_subquery(),
            )
            .order_by(jobs.c.recurrences.desc(), jobs.c.id)
            .limit(limit)
        )
        return [_job_record(row) for row in self.query(query)]

    def jobs(self, team: str, after: int = 0, limit: int = 1000) -> list[JobRecord]:
        """The jobs of a team by number, those after ``after``."""
        query = select(jobs).where(jobs.c.team == team, jobs.c.id > after)
        return [_job_record(row) for row in self.query(query.order_by(jobs.c.id).limit(limit))]

    def add_job(self, job: JobRecord) -> JobRecord:
        """Add a job, as the next version of its name on that device."""
        newest = self.newest(job.team, job.name, job.device)
        version = 1 if newest is None else newest.version + 1
        row = _row(job) | {"version": version, "seed": job.seed % (2 * _SIGN) - _SIGN}
        del row["id"]  # the database gives it
        return _job_record(self.change(insert(jobs).returning(jobs), row).one())

    def delete(self, job: int) -> None:
        """Delete a job with all that belongs to it."""
        last = self.lock(job).events
        for until in range(_EVENTS, last, _EVENTS):  # so that no statement takes long
            for table in (decisions, events):
                self.change(delete(table).where(table.c.job == job, table.c.sequence <= until))
        self.change(delete(jobs).where(jobs.c.id == job))
        for address in list(self._operation.cache):
            if address[2] == job:
                self._operation.cache[address] = None

    # Events and snapshots

    def append(self, job: int, event: Event) -> None:
        """Add the next event of a job; it gets the next number, whatever it has."""
        record = self.lock(job)
        number = record.events + 1
        self.put(dataclasses.replace(record, events=number))
        row = _row(event) | {"job": job, "sequence": number}
        self._operation.rows[_ADD_EVENT, (job, number)] = row

    def events(self, job: int, after: int = 0) -> Iterator[Event]:
        """The events of a job after number ``after``, in order."""
        while True:
            query = select(events).where(events.c.job == job, events.c.sequence > after)
            rows = self.query(query.order_by(events.c.sequence).limit(_EVENTS)).all()
            for row in rows:
                yield Event(*row[:-1])
            if len(rows) < _EVENTS:
                return
            after = rows[-1].sequence

    def snapshot(self, job: int) -> Snapshot | None:
        """The latest snapshot of a job's posterior."""
        row = self.query(select(snapshots).where(snapshots.c.job == job)).one_or_none()
        return None if row is None else Snapshot(*row)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the snapshot of a job."""
        self._operation.rows[_DROP_SNAPSHOT, snapshot.job] = {"of_job": snapshot.job}
        self._operation.rows[_ADD_SNAPSHOT, snapshot.job] = _row(snapshot)

    # Decisions

    def decisions(self, job: int, after: int = 0, limit: int = 1000) -> list[DecisionRecord]:
        """Decisions in the order in which they were made."""
        query = select(decisions).where(decisions.c.job == job, decisions.c.sequence > after)
        rows = self.query(query.order_by(decisions.c.sequence).limit(limit))
        return [DecisionRecord(*row) for row in rows]

    def overdue(self, job: int, now: float, limit: int = 1000) -> list[DecisionRecord]:
        """Open decisions of a job whose leases have ended, oldest first."""
        query = select(decisions).where(
            _IS_OPEN, decisions.c.job == job, decisions.c.deadline_wall_seconds < now
        )
        rows = self.query(query.order_by(decisions.c.sequence).limit(limit))
        return [DecisionRecord(*row) for row in rows]

    def jobs_with_overdue(self, now: float, limit: int = 1000) -> list[int]:
        """Jobs that have such decisions, by number."""
        query = (
            select(decisions.c.job)
            .where(_IS_OPEN, decisions.c.deadline_wall_seconds < now)
            .distinct()
            .order_by(decisions.c.job)
            .limit(limit)
        )
        return list(self.query(query).scalars())


def _row(record: Any) -> Row:
    return {part.name: getattr(record, part.name) for part in dataclasses.fields(record)}


def _job_record(row: Any) -> JobRecord:
    return dataclasses.replace(JobRecord(*row), seed=row.seed + _SIGN)
