"""Durable decisions for recurring jobs: made, leased and reported on, each exactly once.

All state is in the store; processes that die lose nothing, and any number of them may decide for
the same job. The posterior of a job is a fold over its stored events
(``joulery.jobs._posterior``), cached and continued within each transaction, so a decision costs
the same after ten recurrences and after ten thousand. The same request gets the same answer;
another request under its key is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from joulery.clock import REAL_CLOCK
from joulery.documents import check_name
from joulery.errors import ConflictError, UnknownRecordError
from joulery.jobs._client_actions import client_action
from joulery.jobs._documents import (
    decision_from,
    decision_page,
    energy_page,
    energy_record,
    job_entry,
    job_page,
    profile_list,
    profile_record,
)
from joulery.jobs._job_registry import define_job, policy_from
from joulery.jobs._models import (
    DecisionLease,
    Outcome,
    Receipt,
    decision_id,
    parse_decision_id,
)
from joulery.jobs._posterior import PosteriorCache, rebuilt
from joulery.jobs._replay import ROW, outcome_document
from joulery.jobs._run_log import run_entry, run_record
from joulery.jobs._validation import check_outcome, check_run
from joulery.jobs.policies import ActionKind, CounterRng, RunEnd
from joulery.storage import (
    DecisionRecord,
    DecisionState,
    Event,
    EventKind,
    JobRecord,
    OutcomeRecord,
    RunQuery,
    Subject,
    add_energy,
    find_run,
    list_runs,
    put_profile,
    put_run,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from joulery.clock import Clock
    from joulery.jobs._models import (
        Decision,
        DecisionEntry,
        Definition,
        EnergyEntry,
        JobEntry,
        LiveState,
        ProfileEntry,
        Request,
    )
    from joulery.jobs._posterior import JobState
    from joulery.jobs._run_log import RunEntry
    from joulery.storage import Document, Store, Transaction

_SWEEP_SECONDS = 10.0  # between looks for expired leases of a job (by hand)
_STEP = 256  # decisions released at once (by hand: other operations wait a few milliseconds)


class JobService:
    """Makes decisions for the recurring jobs of a team, and learns from their reports.

    It has the methods of ``joulery.client.DecisionBackend``, which check their arguments and
    wait until what they did is durable. Those that a server is busy with come with a second form:
    ``decide_soon`` takes arguments that were read from documents, of any team, and returns a
    future, so that a server waits for many answers at once.

    Args:
        store: Store that holds everything.
        clock: Clock, monotonic for pauses and wall for what is stored.
        lease_seconds: Time for which a holder may be silent.
        cached_jobs: Number of jobs whose posteriors are kept in memory.
        team: Team whose jobs are defined and listed; numbers of jobs find those of any team.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock = REAL_CLOCK,
        lease_seconds: float = 600.0,
        cached_jobs: int = 2000,
        *,
        team: str = "default",
    ) -> None:
        self._store = store
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._cache = PosteriorCache(cached_jobs)
        self._team = team

    def for_team(self, team: str) -> JobService:
        """The same service for the jobs of another team."""
        service = copy.copy(self)
        service._team = team  # noqa: SLF001 - of this class
        return service

    def define(self, definition: Definition, seed: int | None = None) -> JobEntry:
        """The job of that name and device, created or changed if need be.

        A job that was changed becomes a new version, which starts from the epochs that the version
        before needed, with doubt. The first of a name on a device starts from those of another
        device, without doubt; its ``warm_start`` describes it.
        """
        definition = definition.checked()
        specification = definition.job.to_document()
        record = JobRecord(
            team=check_name(self._team, "a team's name"),
            name=specification.pop("name"),
            specification=specification,
            policy=definition.policy,
            parameters=dict(definition.parameters),
            seed=secrets.randbits(64) if seed is None else seed,
            device=definition.device,
            created_wall_seconds=self._clock.wall(),
        )
        policy_from(record, definition.job)  # so that a wrong one is refused here
        return job_entry(self._store.write(partial(define_job, self._cache, record)))

    def job(self, name: str, device: str | None = None) -> JobEntry:
        """The newest version of a job on a device; None takes the latest on any.

        Raises:
            UnknownRecordError: There is none.
        """
        with self._store.reading() as transaction:
            record = transaction.newest(self._team, name, device)
        if record is None:
            raise UnknownRecordError(
                f"no job {name[:40]!r} of {self._team[:40]!r}",
                remedy="`joulery jobs list` shows the jobs; a `Run` with batch_sizes defines one",
            )
        return job_entry(record)

    def jobs(self, after: int = 0, limit: int = 100) -> tuple[list[JobEntry], int | None]:
        """Jobs with numbers above ``after``, and where the next page begins."""
        with self._store.reading() as transaction:
            return job_page(transaction, self._team, after, limit)

    def decide(self, job: int, request: Request) -> Decision:
        """The next decision; see ``decide_soon``."""
        return self._store.wait(self.decide_soon(job, request.checked()))

    def decide_soon(self, job: int, request: Request) -> Future[Decision]:
        """The next decision; the same key gives the same decision.

        Raises (from the future):
            UnknownRecordError: No such job, or no such earlier decision.
            ConflictError: The job is paused, or the key was used for another request.
            InvalidValueError: The request names none of the job's batch sizes.
        """
        subject = Subject(job, decision_key=request.key)
        return self._store.submit(
            lambda transaction: self._decide(transaction, job, request), subject
        )

    def heartbeat(
        self,
        decision: Decision,
        progress: Outcome | None = None,
        live: LiveState | None = None,  # noqa: ARG002 - for those who watch a server
    ) -> DecisionLease:
        """Prolong the lease of a decision; see ``heartbeat_soon``."""
        progress = None if progress is None else progress.checked()
        return self._store.wait(self.heartbeat_soon(decision.id, progress))

    def heartbeat_soon(
        self, decision: str, progress: Outcome | None = None, issued: float | None = None
    ) -> Future[DecisionLease]:
        """Prolong the lease of a decision.

        Args:
            decision: Id of the decision.
            progress: Figures that count as those of an abandoned run if nothing more is ever
                reported.
            issued: Unix time at which the decision was made, as its token says; None for callers
                without one. Ids are used again after a store was restored, times are not.

        Raises (from the future):
            UnknownRecordError: No such decision.
            InvalidValueError: The progress is impossible.
        """
        key = parse_decision_id(decision)
        return self._store.submit(
            lambda transaction: self._heartbeat(
                transaction, _lock_decision(transaction, key, issued), progress
            ),
            Subject(*key),
        )

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        """Report how a decision ended; see ``report_soon``."""
        check_name(key, "key")
        return self._store.wait(self.report_soon(decision.id, outcome.checked(), key))

    def report_soon(
        self, decision: str, outcome: Outcome, key: str, issued: float | None = None
    ) -> Future[Receipt]:
        """Report how a decision ended; it counts once, however late and however often.

        Raises (from the future):
            UnknownRecordError: No such decision.
            ConflictError: Another outcome of it was reported already.
            InvalidValueError: The outcome is impossible.
        """
        owner = parse_decision_id(decision)
        return self._store.submit(
            lambda transaction: self._report(
                transaction, _lock_decision(transaction, owner, issued), outcome, key
            ),
            Subject(*owner),
        )

    def decisions(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[DecisionEntry], int | None]:
        """Decisions with their outcomes, in order, and where the next page begins."""
        with self._store.reading() as transaction:
            return decision_page(transaction, job, after, limit)

    def profiles(self, job: int) -> list[ProfileEntry]:
        """Time-energy frontiers of the batch sizes of a job."""
        with self._store.reading() as transaction:
            return profile_list(transaction, job)

    def put_profile(self, job: int, profile: ProfileEntry) -> None:
        """Store a frontier, in place of an earlier one of the same batch size and device."""
        record = profile_record(job, profile.checked(), self._clock.wall())
        self._store.write(lambda transaction: put_profile(transaction, record), job)

    def energy(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[EnergyEntry], int | None]:
        """Energy used, in the order of the reports, and where the next page begins."""
        with self._store.reading() as transaction:
            return energy_page(transaction, job, after, limit)

    def add_energy(self, job: int, energy: EnergyEntry) -> None:
        """Store energy that was used; where a decision is named, once for each device.

        Raises:
            UnknownRecordError: It names a decision of another job.
            ConflictError: Another figure is stored for that decision and device.
        """
        record = energy_record(job, energy.checked(), self._clock.wall())
        self._store.write(lambda transaction: add_energy(transaction, record), job)

    def put_run(self, run: RunEntry) -> None:
        """Store a run of any kind, in place of what was reported under its key before.

        Raises:
            InvalidValueError: It ends later than now, or draws more than any device.
        """
        check_run(run, self._clock.wall())
        record = run_record(run.checked(), check_name(self._team, "a team's name"))
        curves = [curve.to_document() for curve in run.curves]
        self._store.write(lambda transaction: put_run(transaction, record, curves))

    def runs(
        self, text: str = "", below: int = 0, limit: int = 100, *, open_only: bool = False
    ) -> tuple[list[RunEntry], int | None]:
        """Runs that contain a text, the latest first, and where the next page begins.

        A search for a text looks at the latest 20,000 runs. With ``open_only``, those that have not
        reported their end.
        """
        query = RunQuery(self._team, text, open_only=open_only, below=below, sort="number")
        with self._store.reading() as transaction:
            records = list_runs(transaction, query, limit + 1)
        following = records[limit - 1].id if len(records) > limit else None
        return list(map(run_entry, records[:limit])), following

    def run(self, number: int) -> RunEntry:
        """A run with its curves.

        Raises:
            UnknownRecordError: There is none.
        """
        with self._store.reading() as transaction:
            return run_entry(*find_run(transaction, number))

    def expire(self, now_wall_seconds: float | None = None) -> int:
        """Release decisions of any team whose leases have ended, and count them.

        Deciding does so for its own job; a server also calls this from time to time.
        """
        now = self._clock.wall() if now_wall_seconds is None else now_wall_seconds
        released = 0
        while True:
            with self._store.reading() as transaction:
                jobs = transaction.jobs_with_overdue(now)
            if not jobs:
                return released
            for job in jobs:
                released += self._store.write(partial(self._release, job=job, now=now), job)

    def pause(self, job: int, *, paused: bool = True) -> None:
        """Refuse decisions, or make them again; reports are always accepted."""

        def change(transaction: Transaction) -> None:
            transaction.put(dataclasses.replace(transaction.lock(job), paused=paused))

        self._store.write(change, job)

    def delete(self, job: int) -> None:
        """Delete a job with all its history."""
        self._store.write(lambda transaction: transaction.delete(job), job)
        self._store.write(lambda _: self._cache.drop(job), job)

    def rebuild(self, job: int) -> Any:
        """The policy's beliefs, folded from the first event on."""
        with self._store.reading() as transaction:
            return rebuilt(transaction, transaction.job(job)).beliefs

    def close(self) -> None:
        """Close the store. May be called twice."""
        self._store.close()

    def _decide(self, transaction: Transaction, job: int, request: Request) -> Decision:
        """Decide what to run next; the same as before if the key was used before."""
        record = transaction.lock(job)
        request_document = request.to_document()
        earlier = transaction.find(DecisionRecord, job, key=request.key)
        if earlier is not None and earlier.request != request_document:
            raise ConflictError(
                f"key {earlier.key!r} was used for another request",
                remedy="choose a new key for a new decision",
            )
        if earlier is not None:
            return decision_from(earlier)
        if record.paused:
            raise ConflictError(
                f"job {record.name!r} is paused", remedy="resume it, or run its default"
            )
        state = self._cache.current(transaction, record)
        if self._clock.now() - state.swept_seconds >= _SWEEP_SECONDS:
            self._release(transaction, job, self._clock.wall())
            state.swept_seconds = self._clock.now()
        before = _before(transaction, job, request.after) if request.after else None
        action, reason = _choose(state, request, before)
        if before is not None:
            recurrence = before.recurrence
        else:
            record = transaction.lock(job)
            recurrence = record.recurrences
            transaction.put(dataclasses.replace(record, recurrences=recurrence + 1))
        now = self._clock.wall()
        decision = DecisionRecord(
            job=job,
            sequence=state.sequence + 1,
            key=request.key,
            recurrence=recurrence,
            action=action,
            reason=reason,
            request=request_document,
            issued_wall_seconds=now,
            deadline_wall_seconds=now + self._lease_seconds,
        )
        transaction.add(decision)
        body = {"action": action, "recurrence": recurrence}
        event = Event(decision.sequence, EventKind.ISSUED, decision.sequence, body, now)
        self._cache.append(transaction, job, event)
        return decision_from(decision)

    def _heartbeat(
        self, transaction: Transaction, decision: DecisionRecord, progress: Outcome | None
    ) -> DecisionLease:
        """Prolong the lease of a decision, and store its progress."""
        if decision.state != DecisionState.OPEN:
            return DecisionLease(held=False, expires_wall_seconds=decision.deadline_wall_seconds)
        now = self._clock.wall()
        document = decision.progress
        if progress is not None:
            abandoned = replace(progress, end=RunEnd.ABANDONED)
            state = self._cache.current(transaction, transaction.lock(decision.job))
            kind = ActionKind(decision.action["kind"])
            check_outcome(abandoned, state.job, kind, _elapsed(decision, now))
            document = abandoned.to_document()
        deadline = now + self._lease_seconds
        transaction.put(
            dataclasses.replace(
                decision,
                heartbeat_wall_seconds=now,
                deadline_wall_seconds=deadline,
                progress=document,
            )
        )
        return DecisionLease(held=True, expires_wall_seconds=deadline)

    def _report(
        self, transaction: Transaction, decision: DecisionRecord, outcome: Outcome, key: str
    ) -> Receipt:
        """Learn how a decision ended; the same receipt if it was reported before."""
        name = decision_id(decision.job, decision.sequence)
        record = None
        if decision.state == DecisionState.REPORTED:
            record = transaction.find(OutcomeRecord, decision.job, decision=decision.sequence)
        if record is None:
            record = self._learn(transaction, decision, outcome, key)
        elif record.body != outcome.to_document():
            raise ConflictError(
                f"another outcome of decision {name} was reported",
                remedy="report each decision once; repeat a report unchanged",
            )
        reason = ""
        if record.quarantined:
            state = self._cache.current(transaction, transaction.lock(decision.job))
            reason = state.reports.reasons().get(decision.sequence, "")
        return Receipt(name, record.event, record.late, record.quarantined, reason)

    def _learn(
        self, transaction: Transaction, decision: DecisionRecord, outcome: Outcome, key: str
    ) -> OutcomeRecord:
        """Check and store the first report on a decision, and the verdicts that it changes."""
        job, sequence, now = decision.job, decision.sequence, self._clock.wall()
        state = self._cache.current(transaction, transaction.lock(job))
        kind = ActionKind(decision.action["kind"])
        check_outcome(outcome, state.job, kind, _elapsed(decision, now))
        late = decision.state == DecisionState.EXPIRED
        event_kind = EventKind.LATE if late else EventKind.OUTCOME
        event = self._end(transaction, decision, event_kind, outcome, now)
        quarantine = set(state.reports.quarantined())
        body, ignored = outcome.to_document(), sequence in quarantine
        record = OutcomeRecord(job, sequence, key, body, event, late, now, ignored, ignored)
        transaction.add(record)
        for changed_sequence in state.changed - {sequence}:
            earlier = transaction.find(OutcomeRecord, job, decision=changed_sequence)
            if earlier is not None:
                ignored = changed_sequence in quarantine
                transaction.put(dataclasses.replace(earlier, ignored=ignored))
        transaction.put(dataclasses.replace(decision, state=DecisionState.REPORTED))
        return record

    def _release(self, transaction: Transaction, job: int, now: float) -> int:
        """Release decisions whose leases have ended, at most ``_STEP``; count them."""
        transaction.lock(job)
        overdue = transaction.overdue(job, now, _STEP)
        for decision in overdue:
            document = decision.progress
            progress = None if document is None else Outcome.from_document(document)
            self._end(transaction, decision, EventKind.EXPIRED, progress, now)
            transaction.put(dataclasses.replace(decision, state=DecisionState.EXPIRED))
        return len(overdue)

    def _end(
        self,
        transaction: Transaction,
        decision: DecisionRecord,
        kind: EventKind,
        outcome: Outcome | None,
        now: float,
    ) -> int:
        """Append the event that ends a decision; its number."""
        state = self._cache.current(transaction, transaction.lock(decision.job))
        body = outcome_document(outcome, state.job, decision.action, decision.recurrence)
        event = Event(state.sequence + 1, kind, decision.sequence, body, now)
        self._cache.append(transaction, decision.job, event)
        return event.sequence


def _choose(
    state: JobState, request: Request, before: DecisionRecord | None
) -> tuple[Document, str]:
    """The policy's choice, as far as the client can run it; and the reason in words."""
    rng = CounterRng.of(state.batch.seeds, np.array([state.sequence + 1]))
    actions = state.policy.decide(state.beliefs, ROW, rng)
    doubted = before is not None and before.sequence in state.reports.quarantined()
    action_before = None if before is None else before.action
    return client_action(state, actions, request, action_before, doubted=doubted)


def _elapsed(decision: DecisionRecord, now: float) -> float:
    """Seconds since a decision's run began, by the service's clock."""
    return now - decision.issued_wall_seconds + (decision.request.get("ran_seconds") or 0.0)


def _lock_decision(
    transaction: Transaction, key: tuple[int, int], issued: float | None = None
) -> DecisionRecord:
    """A decision by its job and event, of a job that is locked from now on.

    Raises:
        UnknownRecordError: There is none, or it was made at another time.
    """
    job, sequence = key
    transaction.lock(job)
    record = transaction.find(DecisionRecord, job, sequence=sequence)
    if record is None or issued not in (None, record.issued_wall_seconds):
        raise UnknownRecordError(
            f"no decision {decision_id(*key)}", remedy="give the id that came with the decision"
        )
    return record


def _before(transaction: Transaction, job: int, after: str) -> DecisionRecord:
    """The decision of the same recurrence that another one follows."""
    key = parse_decision_id(after)
    if key[0] != job:
        raise UnknownRecordError(
            f"decision {after} is of another job",
            remedy="continue after a decision of this job",
        )
    return _lock_decision(transaction, key)
