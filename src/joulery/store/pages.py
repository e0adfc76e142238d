"""The state of a transaction between its operations: what is locked, known, and to be written.

A statement costs far more than a row. So rows wait here until the transaction ends, or until a
query has to see them, and go to the database in bulk; an operation that fails takes its own back
before they ever get there. Only operations that have to write at once get a savepoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.exc import DataError, IntegrityError

from joulery.errors import ConflictError, StoreError
from joulery.store import bulk, statements
from joulery.store.engines import explained
from joulery.store.rows import decision_of, job_of, outcome_of, snapshot_row

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from sqlalchemy import Connection, Insert, Update

    from joulery.store.records import DecisionRecord, JobRecord, OutcomeRecord, Snapshot, Subject

Place = tuple[int, int]
Key = tuple[int, str]
Name = TypeVar("Name", bound="Hashable")
Record = TypeVar("Record")


class RefusedRowsError(ConflictError):
    """Rows of some operation were refused when they were written together with others'."""


@dataclass(slots=True)
class LockedJob:
    """A job that nobody else can change until this transaction ends.

    Attributes:
        record: As it was when it was locked; counts are below.
        events: How many there are by now; also the number of the last.
        recurrences: How many were begun by now.
    """

    record: JobRecord
    events: int
    recurrences: int


class Pages:
    """See above.

    Args:
        connection: With its transaction begun.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.locked: dict[int, LockedJob] = {}
        self.decisions: dict[Place, DecisionRecord | None] = {}
        self.decisions_for: dict[Key, DecisionRecord | None] = {}
        self.outcomes: dict[Place, OutcomeRecord | None] = {}
        self.outcomes_for: dict[Key, OutcomeRecord | None] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self._grown: set[int] = set()
        self._rows: list[tuple[Insert | Update, dict[str, Any]]] = []
        self._undo_all: list[Callable[[], None]] = []
        # Of the operation under way.
        self._first_row = 0
        self._guarded = False
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin an operation."""
        self._first_row, self._guarded, self._undo = len(self._rows), False, []

    def end(self) -> None:
        """It was done."""
        if self._guarded:
            self._connection.exec_driver_sql("RELEASE SAVEPOINT operation")
        self._undo_all += self._undo
        self._undo = []

    def undo_unless_lost(self, error: BaseException) -> None:
        """It failed: undo it, unless the whole transaction is lost anyway."""
        if isinstance(error, (StoreError, RefusedRowsError)):
            return
        if self._guarded:
            self._connection.exec_driver_sql("ROLLBACK TO SAVEPOINT operation")
        del self._rows[self._first_row :]
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Have ``undo`` called if the operation under way is not kept."""
        self._undo.append(undo)

    def rolled_back(self) -> None:
        """The whole transaction was lost."""
        for undo in reversed((*self._undo_all, *self._undo)):
            undo()
        self._undo_all, self._undo = [], []

    def committed(self) -> None:
        """Nothing will be undone: let go of how, and with it of a circle of references."""
        self._undo_all = []

    def settle(self) -> None:
        """Write what waits, so that a query sees it."""
        if len(self._rows) > self._first_row:
            self.guard()
        elif self._rows:
            self._write_rows()

    def guard(self) -> None:
        """Make sure that what the operation writes at once can be undone."""
        if not self._guarded:
            own = self._rows[self._first_row :]
            del self._rows[self._first_row :]
            self._write_rows()
            self._connection.exec_driver_sql("SAVEPOINT operation")
            self._guarded = True
            self._rows = own
        self._write_rows()

    def flush(self) -> None:
        """Write everything."""
        self._write_rows()
        counts = [
            {"of": job, "to_events": locked.events, "to_recurrences": locked.recurrences}
            for job in sorted(self._grown)
            for locked in (self.locked[job],)
        ]
        if counts:
            bulk.write(self._connection, statements.COUNT, counts)
        self._grown.clear()
        if self.snapshots:
            self._write_snapshots()

    def _write_snapshots(self) -> None:
        kept = [self.snapshots[job] for job in sorted(self.snapshots)]
        self._connection.execute(statements.DROP_SNAPSHOT, [{"of": one.job} for one in kept])
        self._connection.execute(statements.ADD_SNAPSHOT, [snapshot_row(one) for one in kept])
        self.snapshots.clear()

    def _write_rows(self) -> None:
        rows, self._rows, self._first_row = self._rows, [], 0
        try:
            for statement in bulk.ORDER:
                of_it = [row for each, row in rows if each is statement]
                if of_it:
                    bulk.write(self._connection, statement, of_it)
        except (DataError, IntegrityError) as error:
            told = explained(error)
            raise RefusedRowsError(told.message, remedy=told.remedy) from error

    def write(self, statement: Insert | Update, row: dict[str, Any]) -> None:
        """Have a row written some time before the commit."""
        self._rows.append((statement, row))

    def note(self, known: dict[Name, Record], name: Name, record: Record) -> None:
        """Remember a record."""
        if name in known:
            before = known[name]
            self._undo.append(lambda: known.__setitem__(name, before))
        else:
            self._undo.append(lambda: _remove(known, name))
        known[name] = record

    def note_decision(self, decision: DecisionRecord) -> None:
        """Remember a decision as it is now."""
        self.note(self.decisions, (decision.job, decision.sequence), decision)
        self.note(self.decisions_for, (decision.job, decision.key), decision)

    def add_locked(self, record: JobRecord) -> LockedJob:
        """Remember a job that was just locked."""
        locked = self.locked[record.id] = LockedJob(record, record.events, record.recurrences)
        # Rolling back to a savepoint gives locks back that were taken since.
        self._undo.append(lambda: _remove(self.locked, record.id))
        return locked

    def growing(self, locked: LockedJob) -> LockedJob:
        """The same job, whose counts are about to grow."""
        counts = locked.events, locked.recurrences
        job = locked.record.id
        first = job not in self._grown

        def undo() -> None:
            locked.events, locked.recurrences = counts
            if first:
                self._grown.discard(job)

        self._undo.append(undo)
        self._grown.add(job)
        return locked

    def forget(self, job: int) -> None:
        """Let go of a job that was deleted."""
        locked = self.locked.pop(job)
        grown = job in self._grown
        self._grown.discard(job)
        snapshot = self.snapshots.pop(job, None)
        tables: tuple[dict[Any, Any], ...] = (
            self.decisions,
            self.decisions_for,
            self.outcomes,
            self.outcomes_for,
        )
        for known in tables:
            for name in [name for name in known if name[0] == job]:
                self.note(known, name, None)

        def undo() -> None:
            self.locked[job] = locked
            if grown:
                self._grown.add(job)
            if snapshot is not None:
                self.snapshots[job] = snapshot

        self._undo.append(undo)

    def prepare(self, subjects: Sequence[Subject]) -> None:
        """Lock and read what operations are known to need."""
        self._lock({subject.job for subject in subjects if subject.job})
        self._read(
            {(one.job, one.decision) for one in subjects if one.decision is not None},
            {(one.job, one.decision_key) for one in subjects if one.decision_key is not None},
            {(one.job, one.outcome_key) for one in subjects if one.outcome_key is not None},
        )

    def _lock(self, jobs: set[int]) -> None:
        if jobs:
            for row in bulk.locked_jobs(self._connection, sorted(jobs)):
                record = job_of(row)
                self.locked[record.id] = LockedJob(record, record.events, record.recurrences)

    def _read(self, places: set[Place], decision_keys: set[Key], outcome_keys: set[Key]) -> None:
        self.decisions.update(dict.fromkeys(places))
        self.outcomes.update(dict.fromkeys(places))
        self.decisions_for.update(dict.fromkeys(decision_keys))
        self.outcomes_for.update(dict.fromkeys(outcome_keys))
        for row in bulk.DECISIONS_AT.find(self._connection, sorted(places)):
            self.decisions[row.job_id, row.sequence] = decision_of(row)
        for row in bulk.OUTCOMES_AT.find(self._connection, sorted(places)):
            self.outcomes[row.job_id, row.decision] = outcome_of(row)
        for row in bulk.DECISIONS_FOR.find(self._connection, sorted(decision_keys)):
            self.decisions_for[row.job_id, row.key] = decision_of(row)
        for row in bulk.OUTCOMES_FOR.find(self._connection, sorted(outcome_keys)):
            self.outcomes_for[row.job_id, row.key] = outcome_of(row)


def _remove(known: dict[Name, Record], name: Name) -> None:
    known.pop(name, None)
