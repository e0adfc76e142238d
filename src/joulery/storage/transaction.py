"""One transaction on the store: what can be read and written in it.

The row of a job orders everything that happens to the job: whoever changes it locks that row first
(SQLite locks the whole database instead), so events are numbered without gaps in the order of
commits, by any number of processes.

A transaction serves many operations. What they are known to look for is read for all of them at
once, and what they add is written for all of them at once, before the commit; see
:mod:`joulery.storage.unit_of_work`.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from joulery.errors import UnknownRecordError
from joulery.storage import bulk, statements
from joulery.storage.documents import to_text
from joulery.storage.engines import explained, take_time
from joulery.storage.records import DecisionState, JobRecord, Snapshot
from joulery.storage.rows import (
    decision_of,
    decision_row,
    event_of,
    event_row,
    job_of,
    job_row,
    outcome_of,
    outcome_row,
)
from joulery.storage.unit_of_work import LockedJob, UnitOfWork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import Connection, CursorResult, Executable

    from joulery.storage.lines import Line
    from joulery.storage.records import (
        DecisionRecord,
        Document,
        Event,
        NewJob,
        OutcomeRecord,
        Subject,
    )

_EVENTS = 4096  # at a time, so that no statement takes long, however long a history is


class Transaction:
    """Reads and writes within one transaction.

    Args:
        line: To the database.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._pages = UnitOfWork(line)

    @property
    def _connection(self) -> Connection:
        return self._line.connection

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Whatever is done inside is done whole or, if an error leaves it, not at all.

        Raises:
            InvalidValueError, ConflictError: The database refused a value; only this is undone.
            StoreError: The database failed; the transaction is lost.
        """
        self._pages.begin()
        try:
            yield
        except DBAPIError as error:
            told = explained(error)
            self._pages.undo_unless_lost(told)
            raise told from error
        except BaseException as error:
            self._pages.undo_unless_lost(error)
            raise
        self._pages.end()

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` if what this operation does is not kept."""
        self._pages.on_rollback(undo)

    def rolled_back(self) -> None:
        """Nothing of this transaction was kept."""
        self._pages.rolled_back()

    def committed(self) -> None:
        """All of this transaction is kept."""
        self._pages.committed()

    def finish(self) -> None:
        """Write what is still to be written; only the commit may follow, if it did not go along."""
        self._pages.finish()

    def prepare(self, subjects: Iterable[Subject]) -> None:
        """Lock and read what operations are known to need, for all of them at once."""
        self._pages.prepare(list(subjects))

    def query(
        self, statement: Executable, given: Mapping[str, Any] | None = None
    ) -> CursorResult[Any]:
        """Read, after all that was written before."""
        self._pages.settle()
        return self._connection.execute(statement, given)

    def change(
        self, statement: Executable, given: Mapping[str, Any] | None = None
    ) -> CursorResult[Any]:
        """Write at once, to be undone with the operation."""
        self._pages.guard()
        return self._connection.execute(statement, given)

    def lock(self, job: int) -> LockedJob:
        """The job, which nobody else changes from now on until the transaction ends.

        Raises:
            UnknownRecordError: There is none.
        """
        locked = self._pages.locked.get(job)
        if locked is None:
            row = self.query(statements.LOCK, {"of": job}).one_or_none()
            if row is None:
                raise _unknown_job(job)
            locked = self._pages.add_locked(job_of(row))
        return locked

    def job(self, job: int) -> JobRecord:
        """One job.

        Raises:
            UnknownRecordError: There is none.
        """
        row = self.query(statements.JOB, {"of": job}).one_or_none()
        if row is None:
            raise _unknown_job(job)
        return job_of(row)

    def newest(self, team: str, name: str, device: str | None = "") -> JobRecord | None:
        """The newest version of a job, if there is any; None looks on every device."""
        given = {"of_team": team, "of_name": name}
        if device is None:
            found = self.query(statements.NEWEST_OF_ANY, given)
        else:
            found = self.query(statements.NEWEST, given | {"of_device": device})
        row = found.one_or_none()
        return None if row is None else job_of(row)

    def siblings(self, team: str, name: str, limit: int = 100) -> list[JobRecord]:
        """The newest version of a job on every device, those with most recurrences first."""
        given = {"of_team": team, "of_name": name, "most": limit}
        return [job_of(row) for row in self.query(statements.SIBLINGS, given)]

    def jobs(self, team: str, after: int = 0, limit: int = 1000) -> list[JobRecord]:
        """The jobs of a team by number, those after ``after``."""
        given = {"of_team": team, "after": after, "most": limit}
        return [job_of(row) for row in self.query(statements.JOBS, given)]

    def add_job(self, job: NewJob, wall_seconds: float) -> JobRecord:
        """Add a job, as the next version of its name on that device."""
        newest = self.newest(job.team, job.name, job.device)
        version = 1 if newest is None else newest.version + 1
        values = job_row(job) | {"version": version, "created_wall_seconds": wall_seconds}
        number = self.change(statements.ADD_JOB, values).scalar_one()
        return JobRecord(number, version, job, wall_seconds, paused=False, events=0, recurrences=0)

    def pause(self, job: int, *, paused: bool) -> None:
        """Refuse decisions from now on, or make them again."""
        locked = self.lock(job)
        before = locked.record
        self.change(statements.PAUSE, {"of": job, "to": paused})
        locked.record = dataclasses.replace(before, paused=paused)
        self.on_rollback(lambda: setattr(locked, "record", before))

    def forget(self, job: int) -> None:
        """Delete a job with all that belongs to it."""
        self.lock(job)
        take_time(self._connection)
        self.change(statements.FORGET, {"of": job})
        self._pages.forget(job)

    def begin_recurrence(self, job: int) -> int:
        """The number of a new recurrence; counts from 0."""
        locked = self._pages.growing(self.lock(job))
        locked.recurrences += 1
        return locked.recurrences - 1

    def append(self, job: int, event: Event) -> None:
        """Add the next event of a job; it gets the next number, whatever it has."""
        locked = self._pages.growing(self.lock(job))
        locked.events += 1
        self._pages.write(bulk.ADD_EVENT, event_row(job, locked.events, event))

    def events(self, job: int, after: int = 0) -> Iterator[Event]:
        """What happened to a job after event number ``after``, in order."""
        while True:
            given = {"of": job, "after": after, "most": _EVENTS}
            rows = self.query(statements.EVENTS, given).all()
            yield from map(event_of, rows)
            if len(rows) < _EVENTS:
                return
            after = rows[-1].sequence

    def decision(self, job: int, sequence: int) -> DecisionRecord | None:
        """The decision that event number ``sequence`` issued."""
        known = self._pages.decisions
        if (job, sequence) not in known:
            given = {"of": job, "number": sequence}
            row = self.query(statements.DECISION, given).one_or_none()
            self._pages.note(known, (job, sequence), None if row is None else decision_of(row))
        return known[job, sequence]

    def decision_for(self, job: int, key: str) -> DecisionRecord | None:
        """The decision that was made for a client's key."""
        known = self._pages.decisions_for
        if (job, key) not in known:
            row = self.query(statements.DECISION_FOR, {"of": job, "under": key}).one_or_none()
            self._pages.note(known, (job, key), None if row is None else decision_of(row))
        return known[job, key]

    def decisions(self, job: int, after: int = 0, limit: int = 1000) -> list[DecisionRecord]:
        """Decisions in the order in which they were made."""
        given = {"of": job, "after": after, "most": limit}
        return [decision_of(row) for row in self.query(statements.DECISIONS, given)]

    def add_decision(self, decision: DecisionRecord) -> None:
        """Add a decision; :meth:`append` its event as well."""
        self._pages.write(bulk.ADD_DECISION, decision_row(decision))
        self._pages.note_decision(decision)

    def close_decision(self, decision: DecisionRecord, state: DecisionState) -> None:
        """Note that a decision was reported on or has expired."""
        given = {"of": decision.job, "number": decision.sequence, "to": int(state)}
        self._pages.write(bulk.CLOSE, given)
        self._pages.note_decision(dataclasses.replace(decision, state=state))

    def prolong(
        self, decision: DecisionRecord, now: float, deadline: float, progress: Document | None
    ) -> None:
        """Note that the holder of a decision was heard from."""
        given = {
            "of": decision.job,
            "number": decision.sequence,
            "to_heartbeat_wall_seconds": now,
            "to_deadline_wall_seconds": deadline,
            "to_progress": None if progress is None else to_text(progress),
        }
        self._pages.write(bulk.PROLONG, given)
        self._pages.note_decision(
            dataclasses.replace(
                decision,
                heartbeat_wall_seconds=now,
                deadline_wall_seconds=deadline,
                progress=progress,
            )
        )

    def overdue(self, job: int, now: float, limit: int = 1000) -> list[DecisionRecord]:
        """Open decisions of a job whose holders were silent past the lease, oldest first."""
        given = {"of": job, "now": now, "most": limit}
        return [decision_of(row) for row in self.query(statements.OVERDUE, given)]

    def jobs_with_overdue(self, now: float, after: int = 0, limit: int = 1000) -> list[int]:
        """Jobs that have such decisions, by number, those after ``after``."""
        given = {"now": now, "after": after, "most": limit}
        return [row.job_id for row in self.query(statements.JOBS_WITH_OVERDUE, given)]

    def outcome(self, job: int, decision: int) -> OutcomeRecord | None:
        """The report on a decision."""
        known = self._pages.outcomes
        if (job, decision) not in known:
            row = self.query(statements.OUTCOME, {"of": job, "number": decision}).one_or_none()
            self._pages.note(known, (job, decision), None if row is None else outcome_of(row))
        return known[job, decision]

    def outcome_for(self, job: int, key: str) -> OutcomeRecord | None:
        """The report under a client's key."""
        known = self._pages.outcomes_for
        if (job, key) not in known:
            row = self.query(statements.OUTCOME_FOR, {"of": job, "under": key}).one_or_none()
            self._pages.note(known, (job, key), None if row is None else outcome_of(row))
        return known[job, key]

    def add_outcome(self, outcome: OutcomeRecord) -> None:
        """Add a report; :meth:`append` its event as well."""
        self._pages.write(bulk.ADD_OUTCOME, outcome_row(outcome))
        self._pages.note(self._pages.outcomes, (outcome.job, outcome.decision), outcome)
        self._pages.note(self._pages.outcomes_for, (outcome.job, outcome.key), outcome)

    def snapshot(self, job: int) -> Snapshot | None:
        """The latest snapshot of a job's beliefs."""
        known = self._pages.snapshots.get(job)
        if known is not None:
            return known
        row = self.query(statements.SNAPSHOT, {"of": job}).one_or_none()
        return None if row is None else Snapshot(row.job_id, row.sequence, row.code, row.content)

    def stale_snapshots(self, code: str, after: int = 0, limit: int = 1000) -> list[int]:
        """Jobs whose snapshots other code has made, by number, those after ``after``."""
        given = {"of_code": code, "after": after, "most": limit}
        return [row.job_id for row in self.query(statements.STALE, given)]

    def put_snapshot(self, snapshot: Snapshot) -> None:
        """Replace it; written with the rest, before the commit."""
        self._pages.note(self._pages.snapshots, snapshot.job, snapshot)


def _unknown_job(job: int) -> UnknownRecordError:
    return UnknownRecordError(f"no job number {job}", remedy="list the jobs; it may be forgotten")
