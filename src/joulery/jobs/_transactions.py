"""What the job service does within one transaction: decide, prolong, learn and release."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import ConflictError, UnknownRecordError
from joulery.jobs._client_actions import client_action
from joulery.jobs._idempotency import answer, receipt, repeated_decision, repeated_report
from joulery.jobs._models import DecisionLease, Outcome, decision_id, parse_decision_id
from joulery.jobs._replay import ROW, outcome_document
from joulery.jobs._validation import check_outcome
from joulery.jobs.policies import ActionKind, CounterRng, RunEnd
from joulery.storage import DecisionRecord, DecisionState, Event, EventKind, OutcomeRecord

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.jobs._job import Job
    from joulery.jobs._models import Decision, Receipt, Request
    from joulery.jobs._posterior import JobState, PosteriorCache
    from joulery.storage import Document, Transaction

_SWEEP_SECONDS = 10.0
STEP = 256
"""Number of decisions that are released at once, so that other operations need not wait."""


class JobTransactions:
    """Operations on a transaction; what one raises undoes its part of the transaction.

    Args:
        cache: Posteriors of jobs.
        clock: Clock, monotonic for pauses and wall for what is stored.
        lease_seconds: Time for which a holder may be silent.
    """

    def __init__(self, cache: PosteriorCache, clock: Clock, lease_seconds: float) -> None:
        self._cache = cache
        self._clock = clock
        self._lease_seconds = lease_seconds

    def decide(self, transaction: Transaction, job: int, request: Request) -> Decision:
        """Decide what to run next; the same as before if the key was used before."""
        record = transaction.lock(job)
        asked = request.to_document()
        made = transaction.decision_for(job, request.key)
        if made is not None:
            return repeated_decision(made, asked)
        if record.paused:
            raise ConflictError(
                f"job {record.job.name!r} is paused", remedy="resume it, or run its default"
            )
        state = self._cache.current(transaction, job)
        self._sweep(transaction, job, state)
        before = _before(transaction, job, request.after)
        action, reason = _choose(state, request, before)
        now = self._clock.wall()
        decision = DecisionRecord(
            job=job,
            sequence=state.sequence + 1,
            key=request.key,
            recurrence=transaction.begin_recurrence(job) if before is None else before.recurrence,
            action=action,
            reason=reason,
            request=asked,
            issued_wall_seconds=now,
            deadline_wall_seconds=now + self._lease_seconds,
        )
        transaction.add_decision(decision)
        body = {"action": action, "recurrence": decision.recurrence}
        event = Event(decision.sequence, EventKind.ISSUED, decision.sequence, body, now)
        self._cache.append(transaction, job, event)
        return answer(decision)

    def heartbeat(
        self, transaction: Transaction, place: tuple[int, int], progress: Outcome | None
    ) -> DecisionLease:
        """Prolong the lease of a decision, and store its progress."""
        job, sequence = place
        transaction.lock(job)
        decision = _known(transaction, job, sequence)
        if decision.state != DecisionState.OPEN:
            return DecisionLease(held=False, expires_wall_seconds=decision.deadline_wall_seconds)
        now = self._clock.wall()
        document = decision.progress
        if progress is not None:
            abandoned = dataclasses.replace(progress, end=RunEnd.ABANDONED)
            _check(self._cache.current(transaction, job).job, decision, abandoned, now)
            document = abandoned.to_document()
        deadline = now + self._lease_seconds
        transaction.prolong(decision, now, deadline, document)
        return DecisionLease(held=True, expires_wall_seconds=deadline)

    def report(
        self, transaction: Transaction, place: tuple[int, int], outcome: Outcome, key: str
    ) -> Receipt:
        """Learn how a decision ended; the same receipt if it was reported before."""
        job, sequence = place
        transaction.lock(job)
        decision = _known(transaction, job, sequence)
        reported = transaction.outcome(job, sequence) or transaction.outcome_for(job, key)
        if reported is not None:
            return repeated_report(reported, sequence, outcome)
        now = self._clock.wall()
        state = self._cache.current(transaction, job)
        _check(state.job, decision, outcome, now)
        late = decision.state == DecisionState.EXPIRED
        kind = EventKind.LATE if late else EventKind.OUTCOME
        event = self._end(transaction, decision, kind, outcome, now)
        quarantined = sequence in state.reports.quarantined()
        stored = OutcomeRecord(
            job, sequence, key, outcome.to_document(), event, late, now, quarantined
        )
        transaction.add_outcome(stored)
        transaction.close_decision(decision, DecisionState.REPORTED)
        return receipt(stored)

    def release(self, transaction: Transaction, job: int, now: float) -> int:
        """Release decisions whose leases have ended, at most :data:`STEP`; count them."""
        transaction.lock(job)
        overdue = transaction.overdue(job, now, STEP)
        for decision in overdue:
            progress = decision.progress
            known = None if progress is None else Outcome.from_document(progress)
            self._end(transaction, decision, EventKind.EXPIRED, known, now)
            transaction.close_decision(decision, DecisionState.EXPIRED)
        return len(overdue)

    def _sweep(self, transaction: Transaction, job: int, state: JobState) -> None:
        """Do as :meth:`release` does, if that is some time ago."""
        if self._clock.now() - state.swept_seconds >= _SWEEP_SECONDS:
            self.release(transaction, job, self._clock.wall())
            state.swept_seconds = self._clock.now()

    def _end(
        self,
        transaction: Transaction,
        decision: DecisionRecord,
        kind: EventKind,
        outcome: Outcome | None,
        now: float,
    ) -> int:
        """Append the event that ends a decision; its number."""
        state = self._cache.current(transaction, decision.job)
        body = outcome_document(outcome, state.job, decision.action, decision.recurrence)
        event = Event(state.sequence + 1, kind, decision.sequence, body, now)
        self._cache.append(transaction, decision.job, event)
        return event.sequence


def _choose(
    state: JobState, request: Request, before: DecisionRecord | None
) -> tuple[Document, str]:
    """The policy's choice, as far as the client can run it; and the reason in words."""
    rng = CounterRng.of(state.batch.seeds, np.array([state.sequence + 1]))
    chosen = state.policy.decide(state.beliefs, ROW, rng)
    if before is None:
        return client_action(state, chosen, request, None, doubted=False)
    doubted = before.sequence in state.reports.quarantined()
    return client_action(state, chosen, request, before.action, doubted=doubted)


def _check(job: Job, decision: DecisionRecord, outcome: Outcome, now: float) -> None:
    elapsed = now - decision.issued_wall_seconds + (decision.request.get("ran_seconds") or 0.0)
    check_outcome(outcome, job, ActionKind(decision.action["kind"]), elapsed)


def _known(transaction: Transaction, job: int, sequence: int) -> DecisionRecord:
    decision = transaction.decision(job, sequence)
    if decision is None:
        raise UnknownRecordError(
            f"no decision {decision_id(job, sequence)}",
            remedy="give the id that came with the decision",
        )
    return decision


def _before(transaction: Transaction, job: int, after: str | None) -> DecisionRecord | None:
    """The decision of the same recurrence that another one follows."""
    if after is None:
        return None
    owner, sequence = parse_decision_id(after)
    if owner != job:
        raise UnknownRecordError(
            f"decision {after} is of another job", remedy="go on after a decision of this job"
        )
    return _known(transaction, job, sequence)
