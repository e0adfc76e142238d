"""What the job service does within one transaction: decide, prolong, learn and release.

The same request gets the same answer; another request under its key is refused.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import ConflictError, UnknownRecordError
from joulery.jobs._client_actions import client_action
from joulery.jobs._models import (
    Decision,
    DecisionLease,
    Outcome,
    Receipt,
    decision_id,
    parse_decision_id,
)
from joulery.jobs._replay import ROW, outcome_document
from joulery.jobs._validation import check_outcome, is_longer_than
from joulery.jobs.policies import ActionKind, CounterRng, RunEnd
from joulery.storage import DecisionRecord, DecisionState, Event, EventKind, OutcomeRecord

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.jobs._models import Request
    from joulery.jobs._posterior import JobState, PosteriorCache
    from joulery.storage import Document, Transaction

_SWEEP_SECONDS = 10.0
STEP = 256
"""Number of decisions that are released at once, so that other operations need not wait."""


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionPlace:
    """A decision that a call is about.

    Attributes:
        job: Number of the job.
        sequence: Number of the event that issued the decision.
        issued_wall_seconds: Time of its issue, as the caller knows it; None for any. Numbers are
            used again after a store was restored from a backup, times are not.
    """

    job: int
    sequence: int
    issued_wall_seconds: float | None = None

    def find(self, transaction: Transaction) -> DecisionRecord:
        """The decision, of a job that is locked from now on.

        Raises:
            UnknownRecordError: There is none.
        """
        transaction.lock(self.job)
        found = transaction.decision(self.job, self.sequence)
        issued = self.issued_wall_seconds
        if found is None or issued not in (None, found.issued_wall_seconds):
            raise UnknownRecordError(
                f"no decision {decision_id(self.job, self.sequence)}",
                remedy="give the id that came with the decision",
            )
        return found


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
        if made is not None and made.request != asked:
            raise ConflictError(
                f"key {made.key!r} was used for another request",
                remedy="choose a new key for a new decision",
            )
        if made is not None:
            return answer(made)
        if record.paused:
            raise ConflictError(
                f"job {record.job.name!r} is paused", remedy="resume it, or run its default"
            )
        state = self._cache.current(transaction, job)
        if self._clock.now() - state.swept_seconds >= _SWEEP_SECONDS:
            self.release(transaction, job, self._clock.wall())
            state.swept_seconds = self._clock.now()
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
        self, transaction: Transaction, place: DecisionPlace, progress: Outcome | None
    ) -> DecisionLease:
        """Prolong the lease of a decision, and store its progress."""
        decision = place.find(transaction)
        if decision.state != DecisionState.OPEN:
            return DecisionLease(held=False, expires_wall_seconds=decision.deadline_wall_seconds)
        now = self._clock.wall()
        document = decision.progress
        if progress is not None:
            abandoned = dataclasses.replace(progress, end=RunEnd.ABANDONED)
            job = self._cache.current(transaction, decision.job).job
            check_outcome(abandoned, job, _kind(decision), _elapsed(decision, now))
            document = abandoned.to_document()
        deadline = now + self._lease_seconds
        transaction.prolong(decision, now, deadline, document)
        return DecisionLease(held=True, expires_wall_seconds=deadline)

    def report(
        self, transaction: Transaction, place: DecisionPlace, outcome: Outcome, key: str
    ) -> Receipt:
        """Learn how a decision ended; the same receipt if it was reported before."""
        decision = place.find(transaction)
        job, sequence = decision.job, decision.sequence
        reported = transaction.outcome(job, sequence)
        if reported is not None and reported.body != outcome.to_document():
            raise ConflictError(
                f"another outcome of decision {decision_id(job, sequence)} was reported",
                remedy="report each decision once; repeat a report unchanged",
            )
        if reported is not None:
            return _receipt(reported)
        now = self._clock.wall()
        state = self._cache.current(transaction, job)
        check_outcome(outcome, state.job, _kind(decision), _elapsed(decision, now))
        late = decision.state == DecisionState.EXPIRED
        kind = EventKind.LATE if late else EventKind.OUTCOME
        event = self._end(transaction, decision, kind, outcome, now)
        ignored = set(state.reports.quarantined())
        own, body = sequence in ignored, outcome.to_document()
        stored = OutcomeRecord(job, sequence, key, body, event, late, now, own, own)
        transaction.add_outcome(stored)
        for other in state.changed - {sequence}:
            transaction.ignore(job, other, ignored=other in ignored)
        transaction.close_decision(decision, DecisionState.REPORTED)
        return _receipt(stored)

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
    )


def _receipt(stored: OutcomeRecord) -> Receipt:
    place = decision_id(stored.job, stored.decision)
    return Receipt(place, stored.event, stored.late, stored.quarantined)


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


def _kind(decision: DecisionRecord) -> ActionKind:
    return ActionKind(decision.action["kind"])


def _elapsed(decision: DecisionRecord, now: float) -> float:
    """Seconds since a decision's run began, by the service's clock."""
    return now - decision.issued_wall_seconds + (decision.request.get("ran_seconds") or 0.0)


def _before(transaction: Transaction, job: int, after: str | None) -> DecisionRecord | None:
    """The decision of the same recurrence that another one follows."""
    if after is None:
        return None
    place = DecisionPlace(*parse_decision_id(after))
    if place.job != job:
        raise UnknownRecordError(
            f"decision {after} is of another job", remedy="go on after a decision of this job"
        )
    return place.find(transaction)
