"""What the desk does within one transaction: decide, hear, learn, and give up on the silent."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import ConflictError, UnknownRecordError
from joulery.jobs.grants import (
    VOLUNTEERED,
    granted,
    only_granted,
    reason_beside,
    reason_granted,
)
from joulery.jobs.idempotency import answer, answered, told_again
from joulery.jobs.known_limits import with_known_limit
from joulery.jobs.models import (
    Decision,
    DecisionLease,
    Outcome,
    Receipt,
    decision_id,
    parse_decision_id,
)
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.policies.counter_rng import CounterRng
from joulery.jobs.replay import ROW, action_document, outcome_document
from joulery.jobs.validation import check_outcome
from joulery.storage.documents import Written
from joulery.storage.records import (
    DecisionRecord,
    DecisionState,
    Event,
    EventKind,
    OutcomeRecord,
)

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.jobs.posterior import JobState, PosteriorCache
    from joulery.jobs.requests import Request
    from joulery.storage.records import Document, JobRecord
    from joulery.storage.transaction import Transaction

_SWEEP_SECONDS = 10.0
STEP = 256
"""Silent holders are released in steps of so many, so that others get their turn."""


class JobTransactions:
    """Works on the transaction that it is given; what it raises undoes its part of that.

    Args:
        cache: Of what policies believe.
        clock: Monotonic for pauses, wall for what is stored.
        lease_seconds: How long a holder may be silent.
    """

    def __init__(self, cache: PosteriorCache, clock: Clock, lease_seconds: float) -> None:
        self._cache = cache
        self._clock = clock
        self._lease_seconds = lease_seconds

    def decide(self, ledger: Transaction, job: int, request: Request) -> Decision:
        """What to run next; the same as before if it was asked for before."""
        record = ledger.lock(job).record
        asked = request.to_document()
        made = ledger.decision_for(job, request.key)
        if made is not None:
            return answered(made, asked)
        if record.paused:
            raise ConflictError(
                f"job {record.job.name!r} is paused", remedy="resume it, or run its default"
            )
        folded = self._cache.current(ledger, job)
        self._sweep(ledger, job, folded)
        sequence = folded.sequence + 1
        before = _before(ledger, job, request.after)
        action, reason = _chosen(folded, sequence, request, before)
        now = self._clock.wall()
        decision = DecisionRecord(
            job=job,
            sequence=sequence,
            key=request.key,
            recurrence=ledger.begin_recurrence(job) if before is None else before.recurrence,
            action=Written(action),
            reason=reason,
            request=asked,
            issued_wall_seconds=now,
            deadline_wall_seconds=now + self._lease_seconds,
        )
        ledger.add_decision(decision)
        body = {"action": decision.action, "recurrence": decision.recurrence}
        self._append(ledger, job, Event(sequence, EventKind.ISSUED, sequence, body, now))
        return answer(decision)

    def heartbeat(
        self, ledger: Transaction, place: tuple[int, int], progress: Outcome | None
    ) -> DecisionLease:
        """Prolong the lease of a decision, and note how far it has come."""
        job, sequence = place
        record = ledger.lock(job).record
        decision = _known(ledger, job, sequence)
        if decision.state != DecisionState.OPEN:
            return DecisionLease(held=False, expires_wall_seconds=decision.deadline_wall_seconds)
        now = self._clock.wall()
        told = decision.progress
        if progress is not None:
            abandoned = dataclasses.replace(progress, end=RunEnd.ABANDONED)
            self._check(record, decision, abandoned, now)
            told = abandoned.to_document()
        deadline = now + self._lease_seconds
        ledger.prolong(decision, now, deadline, told)
        return DecisionLease(held=True, expires_wall_seconds=deadline)

    def report(
        self, ledger: Transaction, place: tuple[int, int], outcome: Outcome, key: str
    ) -> Receipt:
        """Note how a decision ended; the same receipt if that was told before."""
        job, sequence = place
        locked = ledger.lock(job)
        decision = _known(ledger, job, sequence)
        told = ledger.outcome(job, sequence) or ledger.outcome_for(job, key)
        if told is not None:
            return told_again(told, sequence, outcome)
        now = self._clock.wall()
        self._check(locked.record, decision, outcome, now)
        late = decision.state == DecisionState.EXPIRED
        number = locked.events + 1
        ledger.add_outcome(
            OutcomeRecord(job, sequence, key, outcome.to_document(), number, late, now)
        )
        ledger.close_decision(decision, DecisionState.REPORTED)
        body = self._body(locked.record, decision, outcome)
        kind = EventKind.LATE if late else EventKind.OUTCOME
        self._append(ledger, job, Event(number, kind, sequence, body, now))
        return Receipt(decision_id(job, sequence), number, late)

    def release(self, ledger: Transaction, job: int, now: float) -> int:
        """Give up on decisions whose holders were silent past the lease, :data:`STEP` at most."""
        locked = ledger.lock(job)
        overdue = ledger.overdue(job, now, STEP)
        for decision in overdue:
            progress = decision.progress
            known = None if progress is None else Outcome.from_document(progress)
            body = self._body(locked.record, decision, known)
            ledger.close_decision(decision, DecisionState.EXPIRED)
            event = Event(locked.events + 1, EventKind.EXPIRED, decision.sequence, body, now)
            self._append(ledger, job, event)
        return len(overdue)

    def _sweep(self, ledger: Transaction, job: int, folded: JobState) -> None:
        """As :meth:`release`, if it is some time ago."""
        if self._clock.now() - folded.swept_seconds >= _SWEEP_SECONDS:
            self.release(ledger, job, self._clock.wall())
            folded.swept_seconds = self._clock.now()

    def _append(self, ledger: Transaction, job: int, event: Event) -> None:
        ledger.append(job, event)
        self._cache.follow(ledger, job, event)

    def _check(
        self, record: JobRecord, decision: DecisionRecord, outcome: Outcome, now: float
    ) -> None:
        elapsed = now - decision.issued_wall_seconds + decision.request.get("ran_seconds", 0.0)
        job = self._cache.job(record)
        check_outcome(outcome, job, ActionKind(decision.action["kind"]), elapsed)

    def _body(
        self, record: JobRecord, decision: DecisionRecord, outcome: Outcome | None
    ) -> Document:
        job = self._cache.job(record)
        return outcome_document(outcome, job, decision.action, decision.recurrence)


def _known(ledger: Transaction, job: int, sequence: int) -> DecisionRecord:
    decision = ledger.decision(job, sequence)
    if decision is None:
        raise UnknownRecordError(
            f"no decision {decision_id(job, sequence)}",
            remedy="give the id that came with the decision",
        )
    return decision


def _before(ledger: Transaction, job: int, after: str | None) -> DecisionRecord | None:
    """The decision of the same recurrence that another one goes on after."""
    if after is None:
        return None
    owner, sequence = parse_decision_id(after)
    if owner != job:
        raise UnknownRecordError(
            f"decision {after} is of another job", remedy="go on after a decision of this job"
        )
    return _known(ledger, job, sequence)


def _chosen(
    folded: JobState, sequence: int, request: Request, before: DecisionRecord | None
) -> tuple[Document, str]:
    """What the policy chooses, as far as whoever asks can run it; and why, in words."""
    draws = CounterRng.of(folded.lanes.seeds, np.array([sequence]))
    chosen = folded.policy.decide(folded.beliefs, ROW, draws)
    following = None if before is None else before.action
    if request.only is None:
        probing = request.probing
        actions, attempt = granted(chosen, following, folded.history, probing=probing)
        reason = reason_granted(chosen, actions, folded.reason(chosen))
    else:
        actions, attempt = only_granted(chosen, following, folded.job, request.only)
        reason = reason_beside(chosen, folded.reason(chosen), folded.job, request.only)
    other = actions.arm[0] != chosen.arm[0]
    if other or request.only is not None:
        actions = with_known_limit(actions, folded.policy, folded.beliefs)
    action = action_document(actions, folded.job, attempt)
    if other and request.only is not None:
        action |= VOLUNTEERED
    return action, reason
