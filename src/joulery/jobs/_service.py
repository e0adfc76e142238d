"""Durable decisions for recurring jobs: made, leased and reported on, each exactly once.

All state is in the store; processes that die lose nothing, and any number of them may decide for
the same job. The posterior of a job is a fold over its stored events
(:mod:`joulery.jobs._posterior`), cached and continued within each transaction, so a decision costs
the same after ten recurrences and after ten thousand. The same request gets the same answer;
another request under its key is refused.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.clock import REAL_CLOCK
from joulery.errors import ConflictError, UnknownRecordError
from joulery.jobs._client_actions import client_action
from joulery.jobs._job_registry import define_job, policy_from
from joulery.jobs._models import (
    Decision,
    DecisionLease,
    Outcome,
    OutcomeReport,
    Receipt,
    checked_name,
    decision_id,
    parse_decision_id,
)
from joulery.jobs._posterior import PosteriorCache, rebuilt
from joulery.jobs._replay import ROW, outcome_document
from joulery.jobs._validation import check_outcome, is_longer_than
from joulery.jobs.policies import ActionKind, CounterRng, RunEnd
from joulery.storage import (
    DecisionRecord,
    DecisionState,
    Event,
    EventKind,
    JobRecord,
    OutcomeRecord,
    Subject,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from joulery.clock import Clock
    from joulery.jobs._models import Definition, Request
    from joulery.jobs._posterior import JobState
    from joulery.storage import Document, Store, Transaction

_SWEEP_SECONDS = 10.0
_STEP = 256  # decisions of a job that are released at once, so that others need not wait


class JobService:
    """Makes decisions for recurring jobs and learns from their reports.

    Methods come in pairs: ``decide`` checks its arguments and waits until its answer is durable;
    ``decide_soon`` returns a future of the answer, for servers, which have read arguments from
    documents and wait for many answers at once.

    Args:
        store: Store that keeps everything.
        clock: Clock, monotonic for pauses and wall for what is stored.
        lease_seconds: Time for which a holder may be silent.
        cached_jobs: Number of jobs whose posteriors are kept in memory.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock = REAL_CLOCK,
        lease_seconds: float = 600.0,
        cached_jobs: int = 2000,
    ) -> None:
        self._store = store
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._cache = PosteriorCache(cached_jobs)

    def define(self, team: str, definition: Definition, seed: int | None = None) -> JobRecord:
        """The job of that team, name and device, created if it does not exist.

        A job that was changed becomes a new version, which starts from the epochs that the version
        before needed, with doubt. The first of a name on a device starts from those of another
        device, without doubt; :func:`joulery.jobs._job_registry.warm_start_text` describes it.
        """
        definition = definition.checked()
        specification = definition.job.to_document()
        wanted = JobRecord(
            team=checked_name(team, "a team's name"),
            name=specification.pop("name"),
            specification=specification,
            policy=definition.policy,
            parameters=dict(definition.parameters),
            seed=secrets.randbits(64) if seed is None else seed,
            device=definition.device,
            created_wall_seconds=self._clock.wall(),
        )
        policy_from(wanted, definition.job)  # so that a wrong one is refused here
        return self._store.write(partial(define_job, self._cache, wanted))

    def find(self, team: str, name: str, device: str | None = None) -> JobRecord:
        """The newest version of a job on a device; None takes the latest on any.

        Raises:
            UnknownRecordError: There is none.
        """
        with self._store.reading() as transaction:
            found = transaction.newest(team, name, device)
        if found is None:
            raise UnknownRecordError(
                f"no job {name[:40]!r} of {team[:40]!r}", remedy="list the jobs, or define it"
            )
        return found

    def decide(self, job: int, request: Request) -> Decision:
        """Decide what to run next; see :meth:`decide_soon`."""
        return self._store.wait(self.decide_soon(job, request.checked()))

    def decide_soon(self, job: int, request: Request) -> Future[Decision]:
        """Decide what to run next.

        Raises (from the future):
            UnknownRecordError: No such job, or no such earlier decision.
            ConflictError: The job is paused, or the key was used for another request.
            InvalidValueError: The request names none of the job's batch sizes.
        """
        about = Subject(job, decision_key=request.key)
        return self._store.submit(
            lambda transaction: self._decide(transaction, job, request), about
        )

    def heartbeat(self, decision: str, progress: Outcome | None = None) -> DecisionLease:
        """Prolong the lease of a decision; see :meth:`heartbeat_soon`.

        Raises:
            InvalidValueError: Figures are out of bounds.
        """
        progress = None if progress is None else progress.checked()
        return self._store.wait(self.heartbeat_soon(decision, progress))

    def heartbeat_soon(
        self, decision: str, progress: Outcome | None = None, issued: float | None = None
    ) -> Future[DecisionLease]:
        """Prolong the lease of a decision.

        Args:
            decision: Id of the decision.
            progress: Figures so far, which count as those of an abandoned run if nothing more is
                ever reported; as they were read.
            issued: Unix time at which the decision was made, as its token says; None for callers
                without one. Ids are used again after a store was restored, times are not.
        """
        place = parse_decision_id(decision)
        return self._store.submit(
            lambda transaction: self._heartbeat(
                transaction, _found(transaction, place, issued), progress
            ),
            Subject(*place),
        )

    def report(self, decision: str, outcome: Outcome, key: str) -> Receipt:
        """Report how a decision ended; see :meth:`report_soon`."""
        report = OutcomeReport(key, outcome).checked()
        return self._store.wait(self.report_soon(decision, report))

    def report_soon(
        self, decision: str, report: OutcomeReport, issued: float | None = None
    ) -> Future[Receipt]:
        """Report how a decision ended; it counts once, however late and however often.

        Raises (from the future):
            UnknownRecordError: No such decision.
            ConflictError: Another outcome of it was reported already.
            InvalidValueError: The outcome is impossible.
        """
        place = parse_decision_id(decision)
        return self._store.submit(
            lambda transaction: self._report(
                transaction, _found(transaction, place, issued), report
            ),
            Subject(*place),
        )

    def expire(self, now_wall_seconds: float | None = None) -> int:
        """Release decisions whose leases have ended, and count them.

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
        self._store.write(
            lambda one: one.put(dataclasses.replace(one.lock(job), paused=paused)), job
        )

    def delete(self, job: int) -> None:
        """Delete a job with all its history."""
        self._store.write(lambda transaction: transaction.delete(job), job)
        self._store.write(lambda _: self._cache.drop(job), job)

    def rebuild(self, job: int) -> Any:
        """The policy's beliefs, folded from the first event on."""
        with self._store.reading() as transaction:
            return rebuilt(transaction, transaction.job(job)).beliefs

    def _decide(self, transaction: Transaction, job: int, request: Request) -> Decision:
        """Decide what to run next; the same as before if the key was used before."""
        record = transaction.lock(job)
        asked = request.to_document()
        made = transaction.find(DecisionRecord, job, key=request.key)
        if made is not None and made.request != asked:
            raise ConflictError(
                f"key {made.key!r} was used for another request",
                remedy="choose a new key for a new decision",
            )
        if made is not None:
            return answer(made)
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
            request=asked,
            issued_wall_seconds=now,
            deadline_wall_seconds=now + self._lease_seconds,
        )
        transaction.add(decision)
        body = {"action": action, "recurrence": recurrence}
        event = Event(decision.sequence, EventKind.ISSUED, decision.sequence, body, now)
        self._cache.append(transaction, job, event)
        return answer(decision)

    def _heartbeat(
        self, transaction: Transaction, decision: DecisionRecord, progress: Outcome | None
    ) -> DecisionLease:
        """Prolong the lease of a decision, and store its progress."""
        if decision.state != DecisionState.OPEN:
            return DecisionLease(held=False, expires_wall_seconds=decision.deadline_wall_seconds)
        now = self._clock.wall()
        document = decision.progress
        if progress is not None:
            abandoned = dataclasses.replace(progress, end=RunEnd.ABANDONED)
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
        self, transaction: Transaction, decision: DecisionRecord, report: OutcomeReport
    ) -> Receipt:
        """Learn how a decision ended; the same receipt if it was reported before."""
        job, sequence = decision.job, decision.sequence
        place, body = decision_id(job, sequence), report.outcome.to_document()
        stored = None
        if decision.state == DecisionState.REPORTED:
            stored = transaction.find(OutcomeRecord, job, decision=sequence)
        if stored is None:
            stored = self._learn(transaction, decision, report, body)
        elif stored.body != body:
            raise ConflictError(
                f"another outcome of decision {place} was reported",
                remedy="report each decision once; repeat a report unchanged",
            )
        return Receipt(place, stored.event, stored.late, stored.quarantined)

    def _learn(
        self,
        transaction: Transaction,
        decision: DecisionRecord,
        report: OutcomeReport,
        body: Document,
    ) -> OutcomeRecord:
        """Check and store the first report on a decision, and the verdicts that it changes."""
        job, sequence, now = decision.job, decision.sequence, self._clock.wall()
        state = self._cache.current(transaction, transaction.lock(job))
        kind = ActionKind(decision.action["kind"])
        check_outcome(report.outcome, state.job, kind, _elapsed(decision, now))
        late = decision.state == DecisionState.EXPIRED
        ended = EventKind.LATE if late else EventKind.OUTCOME
        event = self._end(transaction, decision, ended, report.outcome, now)
        ignored = set(state.reports.quarantined())
        own = sequence in ignored
        stored = OutcomeRecord(job, sequence, report.key, body, event, late, now, own, own)
        transaction.add(stored)
        for other in state.changed - {sequence}:
            earlier = transaction.find(OutcomeRecord, job, decision=other)
            if earlier is not None:
                transaction.put(dataclasses.replace(earlier, ignored=other in ignored))
        transaction.put(dataclasses.replace(decision, state=DecisionState.REPORTED))
        return stored

    def _release(self, transaction: Transaction, job: int, now: float) -> int:
        """Release decisions whose leases have ended, at most :data:`_STEP`; count them."""
        transaction.lock(job)
        overdue = transaction.overdue(job, now, _STEP)
        for decision in overdue:
            progress = decision.progress
            known = None if progress is None else Outcome.from_document(progress)
            self._end(transaction, decision, EventKind.EXPIRED, known, now)
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
        if outcome is not None and is_longer_than(outcome, _elapsed(decision, now)):
            body["doubtful"] = True  # see joulery.jobs._report_filter
        event = Event(state.sequence + 1, kind, decision.sequence, body, now)
        self._cache.append(transaction, decision.job, event)
        return event.sequence


def answer(made: DecisionRecord) -> Decision:
    """A stored decision as its holder sees it, with the deadline that holds now."""
    action = made.action
    ceiling = action["ceiling"]
    return Decision(
        id=decision_id(made.job, made.sequence),
        recurrence=made.recurrence,
        kind=ActionKind(action["kind"]),
        batch_size=action["batch_size"],
        power_limit_watts=action["power_limit_watts"],
        probe_limits_watts=tuple(action["probe_limits_watts"]),
        cost_ceiling_joules=math.inf if ceiling is None else ceiling,
        reason=made.reason,
        expires_wall_seconds=made.deadline_wall_seconds,
        issued_wall_seconds=made.issued_wall_seconds,
        volunteered=action.get("volunteered", False),
    )


def _choose(
    state: JobState, request: Request, before: DecisionRecord | None
) -> tuple[Document, str]:
    """The policy's choice, as far as the client can run it; and the reason in words."""
    rng = CounterRng.of(state.batch.seeds, np.array([state.sequence + 1]))
    chosen = state.policy.decide(state.beliefs, ROW, rng)
    doubted = before is not None and before.sequence in state.reports.quarantined()
    earlier = None if before is None else before.action
    return client_action(state, chosen, request, earlier, doubted=doubted)


def _elapsed(decision: DecisionRecord, now: float) -> float:
    """Seconds since a decision's run began, by the service's clock."""
    return now - decision.issued_wall_seconds + (decision.request.get("ran_seconds") or 0.0)


def _found(
    transaction: Transaction, place: tuple[int, int], issued: float | None = None
) -> DecisionRecord:
    """A decision by its job and event, of a job that is locked from now on.

    Raises:
        UnknownRecordError: There is none, or it was made at another time.
    """
    transaction.lock(place[0])
    found = transaction.find(DecisionRecord, place[0], sequence=place[1])
    if found is None or issued not in (None, found.issued_wall_seconds):
        raise UnknownRecordError(
            f"no decision {decision_id(*place)}", remedy="give the id that came with the decision"
        )
    return found


def _before(transaction: Transaction, job: int, after: str) -> DecisionRecord:
    """The decision of the same recurrence that another one follows."""
    place = parse_decision_id(after)
    if place[0] != job:
        raise UnknownRecordError(
            f"decision {after} is of another job", remedy="go on after a decision of this job"
        )
    return _found(transaction, place)
