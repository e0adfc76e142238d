"""The state of a transaction between its operations: what is locked, known, and to be written.

A statement costs far more than a row, and a message more than a statement. So rows wait here until
the transaction ends, or until a query has to see them, and go to the database in bulk; an operation
that fails takes its own back before they ever get there. Only operations that have to write at once
get a savepoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.exc import DataError, IntegrityError

from joulery.errors import ConflictError, StoreError
from joulery.storage import bulk
from joulery.storage.engines import explained
from joulery.storage.rows import decision_of, job_of, outcome_of, snapshot_row

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from joulery.storage.bulk import Rows
    from joulery.storage.lines import Line
    from joulery.storage.records import DecisionRecord, JobRecord, OutcomeRecord, Snapshot, Subject

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


class UnitOfWork:
    """See above.

    Args:
        line: To the database.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self.locked: dict[int, LockedJob] = {}
        self.decisions: dict[Place, DecisionRecord | None] = {}
        self.decisions_for: dict[Key, DecisionRecord | None] = {}
        self.outcomes: dict[Place, OutcomeRecord | None] = {}
        self.outcomes_for: dict[Key, OutcomeRecord | None] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self._grown: set[int] = set()
        self._rows: list[tuple[bulk.Write, dict[str, Any]]] = []
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
            self._line.connection.exec_driver_sql("RELEASE SAVEPOINT operation")
        self._undo_all += self._undo
        self._undo = []

    def undo_unless_lost(self, error: BaseException) -> None:
        """It failed: undo it, unless the whole transaction is lost anyway."""
        if isinstance(error, (StoreError, RefusedRowsError)):
            return
        if self._guarded:
            self._line.connection.exec_driver_sql("ROLLBACK TO SAVEPOINT operation")
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
            self._write_rows(self._line.write)

    def guard(self) -> None:
        """Make sure that what the operation writes at once can be undone."""
        if not self._guarded:
            own = self._rows[self._first_row :]
            del self._rows[self._first_row :]
            self._write_rows(self._line.write)
            self._line.connection.exec_driver_sql("SAVEPOINT operation")
            self._guarded = True
            self._rows = own
        self._write_rows(self._line.write)

    def finish(self) -> None:
        """Write everything; only the commit may follow."""
        self._count()
        self._put_snapshots()
        self._write_rows(self._line.finish)

    def _count(self) -> None:
        for job in sorted(self._grown):
            locked = self.locked[job]
            row = {"of": job, "to_events": locked.events, "to_recurrences": locked.recurrences}
            self.write(bulk.COUNT, row)
        self._grown.clear()

    def _put_snapshots(self) -> None:
        for job in sorted(self.snapshots):
            self.write(bulk.DROP_SNAPSHOT, {"of": job})
            self.write(bulk.ADD_SNAPSHOT, snapshot_row(self.snapshots[job]))
        self.snapshots.clear()

    def _write_rows(self, carry_out: Callable[[Sequence[tuple[bulk.Write, Rows]]], None]) -> None:
        rows, self._rows, self._first_row = self._rows, [], 0
        of_each: dict[bulk.Write, list[Any]] = {}
        for statement, row in rows:
            of_each.setdefault(statement, []).append(row)
        try:
            carry_out([(each, of_each[each]) for each in bulk.WRITES if each in of_each])
        except (DataError, IntegrityError) as error:
            told = explained(error)
            raise RefusedRowsError(told.message, remedy=told.remedy) from error

    def write(self, statement: bulk.Write, row: dict[str, Any]) -> None:
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
        places = {(one.job, one.decision) for one in subjects if one.decision is not None}
        decision_keys = _keys((one.job, one.decision_key) for one in subjects)
        outcome_keys = _keys((one.job, one.outcome_key) for one in subjects)
        self.decisions.update(dict.fromkeys(places))
        self.outcomes.update(dict.fromkeys(places))
        self.decisions_for.update(dict.fromkeys(decision_keys))
        self.outcomes_for.update(dict.fromkeys(outcome_keys))
        found = self._line.read(
            [
                (bulk.LOCK, sorted({one.job for one in subjects if one.job})),
                # After the lock, to be seen as whoever had it before has left them.
                (bulk.DECISIONS_AT, sorted(places)),
                (bulk.OUTCOMES_AT, sorted(places)),
                (bulk.DECISIONS_FOR, sorted(decision_keys)),
                (bulk.OUTCOMES_FOR, sorted(outcome_keys)),
            ]
        )
        self._take(*found)

    def _take(
        self, jobs: Rows, decisions: Rows, outcomes: Rows, decisions_for: Rows, outcomes_for: Rows
    ) -> None:
        for record in map(job_of, jobs):
            self.locked[record.id] = LockedJob(record, record.events, record.recurrences)
        for row in decisions:
            self.decisions[row.job_id, row.sequence] = decision_of(row)
        for row in outcomes:
            self.outcomes[row.job_id, row.decision] = outcome_of(row)
        for row in decisions_for:
            self.decisions_for[row.job_id, row.key] = decision_of(row)
        for row in outcomes_for:
            self.outcomes_for[row.job_id, row.key] = outcome_of(row)


def _keys(keys: Iterable[tuple[int, str | None]]) -> set[Key]:
    return {(job, key) for job, key in keys if key is not None}


def _remove(known: dict[Name, Record], name: Name) -> None:
    known.pop(name, None)
