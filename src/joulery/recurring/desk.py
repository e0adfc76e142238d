"""Durable decisions for recurring jobs: handed out, leased, reported on, each exactly once.

Everything that counts is in the store; processes that die lose nothing, and any number of them may
decide for the same job. What a policy believes is a fold over the job's stored events
(:mod:`joulery.recurring.desk_fold`), kept in memory and caught up within each transaction, so a
decision costs the same after ten recurrences and after ten thousand.
"""

from __future__ import annotations

import dataclasses
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.clock import REAL_CLOCK
from joulery.errors import ConflictError, UnknownRecordError
from joulery.recurring.desk_answers import answer, answered, told_again
from joulery.recurring.desk_beliefs import BeliefsCache, Folded, rebuilt, snapshot_of
from joulery.recurring.desk_definition import TERMS, Registrar, Terms
from joulery.recurring.desk_fold import ROW, action_document, outcome_document
from joulery.recurring.desk_grants import (
    REASON,
    VOLUNTEERED,
    granted,
    only_granted,
    reason_beside,
)
from joulery.recurring.desk_plausibility import (
    check_figures,
    check_outcome,
    check_request,
)
from joulery.recurring.desk_snapshot import code_fingerprint
from joulery.recurring.desk_specification import job_document, policy_from
from joulery.recurring.desk_values import (
    Decision,
    Lease,
    Outcome,
    Receipt,
    checked_name,
    decision_id,
    parse_decision_id,
)
from joulery.recurring.draws import Draws
from joulery.recurring.policy import End, Kind
from joulery.store.documents import Written
from joulery.store.records import (
    DecisionRecord,
    DecisionState,
    Event,
    EventKind,
    NewJob,
    OutcomeRecord,
    Subject,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from joulery.clock import Clock
    from joulery.recurring.job import Job
    from joulery.store.ledger import Ledger
    from joulery.store.records import Document, JobRecord, Snapshot
    from joulery.store.store import Store

_SWEEP_SECONDS = 10.0
# Silent holders are released in steps, so that others get their turn.
_STEP = 256
_STEP_JOBS = 64


class Desk:
    """Where decisions are asked for and reported on.

    Methods come in pairs: ``decide`` waits until its answer is on the disk, ``decide_soon`` gives a
    future of it, for servers that wait for many at once.

    Args:
        store: That keeps everything.
        clock: Monotonic for pauses, wall for what is stored.
        terms: How it works.
    """

    def __init__(self, store: Store, clock: Clock = REAL_CLOCK, terms: Terms = TERMS) -> None:
        self._store = store
        self._clock = clock
        self._terms = terms
        self._cache = BeliefsCache(terms.cached_jobs)
        self._registrar = Registrar(self._cache, terms)

    def define(
        self,
        team: str,
        job: Job,
        policy: str = "joulery",
        parameters: Mapping[str, float] | None = None,
        seed: int | None = None,
        device: str = "",
    ) -> JobRecord:
        """The job of that team, name and device, made if it is not there.

        A job that was changed becomes a new version, which inherits what still holds of the epochs
        that the one before needed, with doubt. The first of a name on a device inherits those of
        another device, without; :func:`joulery.recurring.desk_definition.inheritance_said` tells.

        Args:
            team: Namespace.
            job: What may be chosen; its name is unique within the team and device.
            policy: See :func:`joulery.recurring.registry.policy_names`.
            parameters: Of the policy.
            seed: What draws are keyed by; random unless given.
            device: Kind of device that it runs on, such as "V100"; empty leaves that open.
        """
        wanted = NewJob(
            team=checked_name(team, "a team's name"),
            name=checked_name(job.name, "a job's name"),
            specification=job_document(job),
            policy=policy,
            parameters=dict(parameters or {}),
            seed=secrets.randbits(64) if seed is None else seed,
            device=checked_name(device, "a device's name") if device else "",
        )
        policy_from(wanted, job)  # so that a wrong one is refused here

        clock, registrar = self._clock, self._registrar
        return self._store.write(lambda ledger: registrar.defined(ledger, wanted, clock.wall()))

    def find(self, team: str, name: str, device: str | None = None) -> JobRecord:
        """The newest version of a job on a device; None takes the latest on any.

        Raises:
            UnknownRecordError: There is none.
        """
        with self._store.reading() as ledger:
            found = ledger.newest(team, name, device)
        if found is None:
            raise UnknownRecordError(
                f"no job {name[:40]!r} of {team[:40]!r}", remedy="list the jobs, or define it"
            )
        return found

    def decide(
        self,
        job: int,
        key: str,
        after: str | None = None,
        *,
        probing: bool = True,
        only: int | None = None,
        ran_seconds: float | None = None,
    ) -> Decision:
        """What to run next; see :meth:`decide_soon`."""
        return self.decide_soon(
            job, key, after, probing=probing, only=only, ran_seconds=ran_seconds
        ).result()

    def decide_soon(
        self,
        job: int,
        key: str,
        after: str | None = None,
        *,
        probing: bool = True,
        only: int | None = None,
        ran_seconds: float | None = None,
    ) -> Future[Decision]:
        """What to run next.

        Args:
            job: Its number.
            key: Chosen by the client; the same key gives the same decision.
            after: An earlier decision of the same recurrence: this one goes on with it, after a
                probe or a training that did not reach the target. None begins a recurrence.
            probing: Whether probes can be made; if not, see :mod:`joulery.recurring.desk_grants`.
            only: The batch size that will be run whatever is chosen, by one who observes or who
                could ask nobody; what comes of it is learned like anything else.
            ran_seconds: How long that has been run already; see
                :func:`joulery.recurring.desk_plausibility.check_request`.

        Raises:
            InvalidValueError: The key, or how long it has been run, cannot be so.

        Raises (from the future):
            UnknownRecordError: No such job, or no such earlier decision.
            ConflictError: The job is paused, or the key was used for another request.
            InvalidValueError: ``only`` is none of the job's batch sizes.
        """
        checked_name(key, "a key")
        check_request(only, ran_seconds)
        request: Document = {"after": after}
        if not probing:
            request["probing"] = False
        if only is not None:
            request["only"] = int(only)
        if ran_seconds is not None:
            request["ran_seconds"] = float(ran_seconds)
        about = Subject(job, decision_key=key)
        return self._store.submit(lambda ledger: self._decide(ledger, job, key, request), about)

    def _decide(self, ledger: Ledger, job: int, key: str, request: Document) -> Decision:
        record = ledger.lock(job).record
        made = ledger.decision_for(job, key)
        if made is not None:
            return answered(made, request)
        if record.paused:
            raise ConflictError(
                f"job {record.job.name!r} is paused", remedy="resume it, or run its default"
            )
        folded = self._cache.current(ledger, job)
        self._sweep(ledger, job, folded)
        sequence = folded.sequence + 1
        draws = Draws.of(folded.lanes.seeds, np.array([sequence]))
        chosen = folded.policy.decide(folded.beliefs, ROW, draws)
        before = _before(ledger, job, request["after"])
        following = None if before is None else before.action
        only = request.get("only")
        if only is None:
            probing = request.get("probing", True)
            actions, attempt = granted(chosen, following, folded.history, probing=probing)
            reason = REASON if actions.kind[0] != chosen.kind[0] else folded.reason(actions)
        else:
            actions, attempt = only_granted(chosen, following, folded.job, only)
            reason = reason_beside(chosen, folded.reason(chosen), folded.job, only)
        action = action_document(actions, folded.job, attempt)
        if actions.arm[0] != chosen.arm[0]:
            action |= VOLUNTEERED
        now = self._clock.wall()
        decision = DecisionRecord(
            job=job,
            sequence=sequence,
            key=key,
            recurrence=ledger.begin_recurrence(job) if before is None else before.recurrence,
            action=Written(action),
            reason=reason,
            request=request,
            issued_wall_seconds=now,
            deadline_wall_seconds=now + self._terms.lease_seconds,
        )
        ledger.add_decision(decision)
        body = {"action": decision.action, "recurrence": decision.recurrence}
        self._append(ledger, job, Event(sequence, EventKind.ISSUED, sequence, body, now))
        return answer(decision)

    def _append(self, ledger: Ledger, job: int, event: Event) -> None:
        ledger.append(job, event)
        self._cache.follow(ledger, job, event)

    def heartbeat(self, decision: str, progress: Outcome | None = None) -> Lease:
        """Say that a decision is being worked on; see :meth:`heartbeat_soon`."""
        return self.heartbeat_soon(decision, progress).result()

    def heartbeat_soon(self, decision: str, progress: Outcome | None = None) -> Future[Lease]:
        """Say that a decision is being worked on.

        Args:
            decision: Its id.
            progress: What there is to tell so far, ending as abandoned; it counts if nothing more
                is ever heard.
        """
        if progress is not None:
            check_figures(progress)
        job, sequence = parse_decision_id(decision)
        about = Subject(job, sequence)
        return self._store.submit(lambda ledger: self._beat(ledger, job, sequence, progress), about)

    def _beat(self, ledger: Ledger, job: int, sequence: int, progress: Outcome | None) -> Lease:
        record = ledger.lock(job).record
        decision = _known(ledger, job, sequence)
        if decision.state != DecisionState.OPEN:
            return Lease(held=False, expires_wall_seconds=decision.deadline_wall_seconds)
        now = self._clock.wall()
        told = decision.progress
        if progress is not None:
            abandoned = dataclasses.replace(progress, end=End.ABANDONED)
            self._check(record, decision, abandoned, now)
            told = abandoned.to_document()
        deadline = now + self._terms.lease_seconds
        ledger.prolong(decision, now, deadline, told)
        return Lease(held=True, expires_wall_seconds=deadline)

    def report(self, decision: str, outcome: Outcome, key: str) -> Receipt:
        """Tell how a decision ended; see :meth:`report_soon`."""
        return self.report_soon(decision, outcome, key).result()

    def report_soon(self, decision: str, outcome: Outcome, key: str) -> Future[Receipt]:
        """Tell how a decision ended; it counts once, however late and however often it is told.

        Args:
            decision: Its id.
            outcome: How.
            key: Chosen by the client; the same report under it gives the same receipt.

        Raises (from the future):
            UnknownRecordError: No such decision.
            ConflictError: Another outcome was reported already, of it or under the same key.
            InvalidValueError: It cannot have been so.
        """
        checked_name(key, "a key")
        check_figures(outcome)
        job, sequence = parse_decision_id(decision)
        return self._store.submit(
            lambda ledger: self._report(ledger, (job, sequence), outcome, key),
            Subject(job, sequence, outcome_key=key),
        )

    def _report(
        self, ledger: Ledger, place: tuple[int, int], outcome: Outcome, key: str
    ) -> Receipt:
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

    def _check(
        self, record: JobRecord, decision: DecisionRecord, outcome: Outcome, now: float
    ) -> None:
        elapsed = now - decision.issued_wall_seconds + decision.request.get("ran_seconds", 0.0)
        job = self._cache.job(record)
        check_outcome(outcome, job, Kind(decision.action["kind"]), elapsed)

    def _body(
        self, record: JobRecord, decision: DecisionRecord, outcome: Outcome | None
    ) -> Document:
        job = self._cache.job(record)
        return outcome_document(outcome, job, decision.action, decision.recurrence)

    def expire(self, now_wall_seconds: float | None = None) -> int:
        """Release decisions whose holders were silent past the lease; how many there were.

        Deciding does so for its own job; a server also does it from time to time.
        """
        now = self._clock.wall() if now_wall_seconds is None else now_wall_seconds
        released = last = 0
        while True:
            with self._store.reading() as ledger:
                jobs = ledger.jobs_with_overdue(now, after=last, limit=_STEP_JOBS)
            if not jobs:
                return released
            steps = [self._release_soon(job, now) for job in jobs]
            counts = [step.result() for step in steps]
            released += sum(counts)
            # Where a job has more than one step's worth, it comes first in the next round.
            unfinished = [job for job, many in zip(jobs, counts, strict=True) if many == _STEP]
            last = min(unfinished, default=jobs[-1] + 1) - 1

    def _release_soon(self, job: int, now: float) -> Future[int]:
        return self._store.submit(lambda ledger: self._release(ledger, job, now), job)

    def _sweep(self, ledger: Ledger, job: int, folded: Folded) -> None:
        """As :meth:`expire`, for one job, if it is some time ago."""
        if self._clock.now() - folded.swept_seconds >= _SWEEP_SECONDS:
            self._release(ledger, job, self._clock.wall())
            folded.swept_seconds = self._clock.now()

    def _release(self, ledger: Ledger, job: int, now: float) -> int:
        locked = ledger.lock(job)
        overdue = ledger.overdue(job, now, _STEP)
        for decision in overdue:
            progress = decision.progress
            known = None if progress is None else Outcome.from_document(progress)
            body = self._body(locked.record, decision, known)
            ledger.close_decision(decision, DecisionState.EXPIRED)
            event = Event(locked.events + 1, EventKind.EXPIRED, decision.sequence, body, now)
            self._append(ledger, job, event)
        return len(overdue)

    def pause(self, job: int, *, paused: bool = True) -> None:
        """Refuse decisions, or make them again; reports are always taken."""
        self._store.write(lambda ledger: ledger.pause(job, paused=paused), job)

    def forget(self, job: int) -> None:
        """Delete a job with all its history."""
        self._store.write(lambda ledger: ledger.forget(job), job)
        self._store.write(lambda _: self._cache.drop(job), job)

    def refresh(self) -> int:
        """Fold jobs anew whose snapshots other code made, after an upgrade; how many there were.

        A decision would do so for its own job, and keep all others waiting meanwhile. This may be
        done beside them, in a thread of its own.
        """
        count = last = 0
        while True:
            with self._store.reading() as ledger:
                stale = ledger.stale_snapshots(code_fingerprint(), last, limit=1)
                if not stale:
                    return count
                last = stale[0]
                fresh = snapshot_of(last, rebuilt(ledger, ledger.job(last)))
            if fresh is not None:
                self._store.write(partial(_put_if_newer, fresh), last)
                count += 1

    def write_failure(self) -> str | None:
        """Why the latest write failed, if that was a moment ago; None if all is well."""
        return self._store.write_failure

    def held(self, job: int) -> tuple[str, ...]:
        """Of the latest decisions, those whose reports are not believed (yet), by their ids."""
        found = self._store.write(
            lambda ledger: self._cache.current(ledger, job).history.held(), job
        )
        return tuple(decision_id(job, sequence) for sequence in found)

    def rebuild(self, job: int) -> Any:
        """What the policy believes, folded from the first event on."""
        with self._store.reading() as ledger:
            return rebuilt(ledger, ledger.job(job)).beliefs


def _put_if_newer(fresh: Snapshot, ledger: Ledger) -> None:
    kept = ledger.snapshot(fresh.job)
    if kept is None or kept.code != fresh.code or kept.sequence < fresh.sequence:
        ledger.put_snapshot(fresh)


def _known(ledger: Ledger, job: int, sequence: int) -> DecisionRecord:
    decision = ledger.decision(job, sequence)
    if decision is None:
        raise UnknownRecordError(
            f"no decision {decision_id(job, sequence)}",
            remedy="give the id that came with the decision",
        )
    return decision


def _before(ledger: Ledger, job: int, after: str | None) -> DecisionRecord | None:
    """The decision of the same recurrence that another one goes on after."""
    if after is None:
        return None
    owner, sequence = parse_decision_id(after)
    if owner != job:
        raise UnknownRecordError(
            f"decision {after} is of another job", remedy="go on after a decision of this job"
        )
    return _known(ledger, job, sequence)
