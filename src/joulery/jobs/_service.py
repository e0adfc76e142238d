"""Durable decisions for recurring jobs: made, leased and reported on, each exactly once.

All state is in the store; processes that die lose nothing, and any number of them may decide for
the same job. The posterior of a job is a fold over its stored events
(:mod:`joulery.jobs._posterior`), cached and continued within each transaction, so a decision costs
the same after ten recurrences and after ten thousand.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK
from joulery.errors import UnknownRecordError
from joulery.jobs._job_registry import (
    DEFAULT_CONFIG,
    JobRegistry,
    ServiceConfig,
    job_document,
    policy_from,
)
from joulery.jobs._models import checked_name, decision_id, parse_decision_id
from joulery.jobs._posterior import PosteriorCache, rebuilt
from joulery.jobs._snapshot import code_fingerprint
from joulery.jobs._transactions import STEP, DecisionPlace, JobTransactions
from joulery.jobs._validation import check_figures
from joulery.storage import NewJob, Subject

if TYPE_CHECKING:
    from concurrent.futures import Future

    from joulery.clock import Clock
    from joulery.jobs._models import Decision, DecisionLease, Definition, Outcome, Receipt, Request
    from joulery.storage import JobRecord, Snapshot, Store, Transaction

_STEP_JOBS = 64  # jobs whose ended leases are released at once, so that others need not wait


class JobService:
    """Makes decisions for recurring jobs and learns from their reports.

    Methods come in pairs: ``decide`` waits until its answer is durable, ``decide_soon`` returns a
    future of it, for servers that wait for many at once.

    Args:
        store: Store that keeps everything.
        clock: Clock, monotonic for pauses and wall for what is stored.
        config: Settings of the service.
    """

    def __init__(
        self, store: Store, clock: Clock = REAL_CLOCK, config: ServiceConfig = DEFAULT_CONFIG
    ) -> None:
        self._store = store
        self._clock = clock
        self._cache = PosteriorCache(config.cached_jobs)
        self._registry = JobRegistry(self._cache, config)
        self._transactions = JobTransactions(self._cache, clock, config.lease_seconds)

    def define(self, team: str, definition: Definition, seed: int | None = None) -> JobRecord:
        """The job of that team, name and device, created if it does not exist.

        A job that was changed becomes a new version, which starts from the epochs that the version
        before needed, with doubt. The first of a name on a device starts from those of another
        device, without doubt; :func:`joulery.jobs._job_registry.warm_start_text` describes it.

        Args:
            team: Namespace of the job.
            definition: The job; its name is unique within the team and device.
            seed: Seed of the policy's random numbers; random unless given.
        """
        job, device = definition.job, definition.device
        wanted = NewJob(
            team=checked_name(team, "a team's name"),
            name=checked_name(job.name, "a job's name"),
            specification=job_document(job),
            policy=definition.policy,
            parameters=dict(definition.parameters),
            seed=secrets.randbits(64) if seed is None else seed,
            device=checked_name(device, "a device's name") if device else "",
        )
        policy_from(wanted, job)  # so that a wrong one is refused here
        return self._store.write(
            lambda transaction: self._registry.define(transaction, wanted, self._clock.wall())
        )

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
        return self._store.wait(self.decide_soon(job, request))

    def decide_soon(self, job: int, request: Request) -> Future[Decision]:
        """Decide what to run next.

        Args:
            job: Number of the job.
            request: Idempotency key and abilities of the client.

        Raises:
            InvalidValueError: The request is out of bounds.

        Raises (from the future):
            UnknownRecordError: No such job, or no such earlier decision.
            ConflictError: The job is paused, or the key was used for another request.
            InvalidValueError: The request names none of the job's batch sizes.
        """
        request.check()
        about = Subject(job, decision_key=request.key)
        return self._store.submit(
            lambda transaction: self._transactions.decide(transaction, job, request), about
        )

    def heartbeat(self, decision: str, progress: Outcome | None = None) -> DecisionLease:
        """Prolong the lease of a decision; see :meth:`heartbeat_soon`."""
        return self._store.wait(self.heartbeat_soon(decision, progress))

    def heartbeat_soon(
        self,
        decision: str,
        progress: Outcome | None = None,
        issued_wall_seconds: float | None = None,
    ) -> Future[DecisionLease]:
        """Prolong the lease of a decision.

        Args:
            decision: Id of the decision.
            progress: Figures so far, which count as those of an abandoned run if nothing more is
                ever reported.
            issued_wall_seconds: Time at which the decision was made, as its token says; None for
                callers without one.
        """
        if progress is not None:
            check_figures(progress)
        place = DecisionPlace(*parse_decision_id(decision), issued_wall_seconds)
        return self._store.submit(
            lambda transaction: self._transactions.heartbeat(transaction, place, progress),
            Subject(place.job, place.sequence),
        )

    def report(self, decision: str, outcome: Outcome, key: str) -> Receipt:
        """Report how a decision ended; see :meth:`report_soon`."""
        return self._store.wait(self.report_soon(decision, outcome, key))

    def report_soon(
        self,
        decision: str,
        outcome: Outcome,
        key: str,
        issued_wall_seconds: float | None = None,
    ) -> Future[Receipt]:
        """Report how a decision ended; it counts once, however late and however often.

        Args:
            decision: Id of the decision.
            outcome: How it ended.
            key: Name of the report, unique per decision.
            issued_wall_seconds: Time at which the decision was made, as its token says; None for
                callers without one.

        Raises (from the future):
            UnknownRecordError: No such decision.
            ConflictError: Another outcome of it was reported already.
            InvalidValueError: The outcome is impossible.
        """
        checked_name(key, "a key")
        check_figures(outcome)
        place = DecisionPlace(*parse_decision_id(decision), issued_wall_seconds)
        return self._store.submit(
            lambda transaction: self._transactions.report(transaction, place, outcome, key),
            Subject(place.job, place.sequence),
        )

    def expire(self, now_wall_seconds: float | None = None) -> int:
        """Release decisions whose leases have ended, and count them.

        Deciding does so for its own job; a server also calls this from time to time.
        """
        now = self._clock.wall() if now_wall_seconds is None else now_wall_seconds
        released = last = 0
        while True:
            with self._store.reading() as transaction:
                jobs = transaction.jobs_with_overdue(now, after=last, limit=_STEP_JOBS)
            if not jobs:
                return released
            steps = [self._release_soon(job, now) for job in jobs]
            counts = [step.result() for step in steps]
            released += sum(counts)
            # A job that has more to release comes first in the next round.
            unfinished = [job for job, many in zip(jobs, counts, strict=True) if many == STEP]
            last = min(unfinished, default=jobs[-1] + 1) - 1

    def _release_soon(self, job: int, now: float) -> Future[int]:
        return self._store.submit(
            lambda transaction: self._transactions.release(transaction, job, now), job
        )

    def pause(self, job: int, *, paused: bool = True) -> None:
        """Refuse decisions, or make them again; reports are always accepted."""
        self._store.write(lambda transaction: transaction.pause(job, paused=paused), job)

    def delete(self, job: int) -> None:
        """Delete a job with all its history."""
        self._store.write(lambda transaction: transaction.delete(job), job)
        self._store.write(lambda _: self._cache.drop(job), job)

    def refresh(self) -> int:
        """Rebuild posteriors whose snapshots other code made, after an upgrade, and count them.

        A decision would do so for its own job, and keep all others waiting meanwhile. This may run
        in a thread of its own.
        """
        count = last = 0
        while True:
            with self._store.reading() as transaction:
                stale = transaction.stale_snapshots(code_fingerprint(), last, limit=1)
                if not stale:
                    return count
                last = stale[0]
                fresh = rebuilt(transaction, transaction.job(last)).to_snapshot(last)
            if fresh is not None:
                self._store.write(partial(_put_if_newer, fresh), last)
                count += 1

    def write_failure(self) -> str | None:
        """Why the latest write failed, if that was seconds ago; None if writes succeed."""
        return self._store.write_failure

    def quarantined(self, job: int) -> tuple[str, ...]:
        """Ids of the latest decisions whose reports are quarantined."""
        found = self._store.write(
            lambda transaction: self._cache.current(transaction, job).reports.quarantined(), job
        )
        return tuple(decision_id(job, sequence) for sequence in found)

    def rebuild(self, job: int) -> Any:
        """The policy's beliefs, folded from the first event on."""
        with self._store.reading() as transaction:
            return rebuilt(transaction, transaction.job(job)).beliefs


def _put_if_newer(fresh: Snapshot, transaction: Transaction) -> None:
    kept = transaction.snapshot(fresh.job)
    if kept is None or kept.code != fresh.code or kept.sequence < fresh.sequence:
        transaction.put_snapshot(fresh)
