"""Durable decisions for recurring jobs: handed out, leased, reported on, each exactly once.

Everything that counts is in the store; processes that die lose nothing, and any number of them may
decide for the same job. What a policy believes is a fold over the job's stored events
(:mod:`joulery.jobs.replay`), kept in memory and caught up within each transaction, so a
decision costs the same after ten recurrences and after ten thousand.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK
from joulery.errors import UnknownRecordError
from joulery.jobs.job_registry import DEFAULT_CONFIG, JobRegistry, ServiceConfig
from joulery.jobs.models import checked_name, decision_id, parse_decision_id
from joulery.jobs.posterior import PosteriorCache, rebuilt, snapshot_of
from joulery.jobs.snapshot import code_fingerprint
from joulery.jobs.specification import job_document, policy_from
from joulery.jobs.transactions import STEP, JobTransactions
from joulery.jobs.validation import check_figures
from joulery.storage.records import NewJob, Subject

if TYPE_CHECKING:
    from concurrent.futures import Future

    from joulery.clock import Clock
    from joulery.jobs.models import Decision, DecisionLease, Outcome, Receipt
    from joulery.jobs.requests import Definition, Request
    from joulery.storage.records import JobRecord, Snapshot
    from joulery.storage.store import Store
    from joulery.storage.transaction import Transaction

# Jobs whose silent holders are released at once, so that others get their turn.
_STEP_JOBS = 64


class JobService:
    """Where decisions are asked for and reported on.

    Methods come in pairs: ``decide`` waits until its answer is on the disk, ``decide_soon`` gives a
    future of it, for servers that wait for many at once.

    Args:
        store: That keeps everything.
        clock: Monotonic for pauses, wall for what is stored.
        terms: How it works.
    """

    def __init__(
        self, store: Store, clock: Clock = REAL_CLOCK, terms: ServiceConfig = DEFAULT_CONFIG
    ) -> None:
        self._store = store
        self._clock = clock
        self._cache = PosteriorCache(terms.cached_jobs)
        self._registrar = JobRegistry(self._cache, terms)
        self._work = JobTransactions(self._cache, clock, terms.lease_seconds)

    def define(self, team: str, definition: Definition, seed: int | None = None) -> JobRecord:
        """The job of that team, name and device, made if it is not there.

        A job that was changed becomes a new version, which inherits what still holds of the epochs
        that the one before needed, with doubt. The first of a name on a device inherits those of
        another device, without; :func:`joulery.jobs.job_registry.inheritance_said` tells.

        Args:
            team: Namespace.
            definition: The job; its name is unique within the team and device.
            seed: What draws are keyed by; random unless given.
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

    def decide(self, job: int, request: Request) -> Decision:
        """What to run next; see :meth:`decide_soon`."""
        return self.decide_soon(job, request).result()

    def decide_soon(self, job: int, request: Request) -> Future[Decision]:
        """What to run next.

        Args:
            job: Its number.
            request: By whom it is to be run, and how.

        Raises:
            InvalidValueError: The request cannot be so.

        Raises (from the future):
            UnknownRecordError: No such job, or no such earlier decision.
            ConflictError: The job is paused, or the key was used for another request.
            InvalidValueError: It names none of the job's batch sizes.
        """
        request.check()
        about = Subject(job, decision_key=request.key)
        return self._store.submit(lambda ledger: self._work.decide(ledger, job, request), about)

    def heartbeat(self, decision: str, progress: Outcome | None = None) -> DecisionLease:
        """Say that a decision is being worked on; see :meth:`heartbeat_soon`."""
        return self.heartbeat_soon(decision, progress).result()

    def heartbeat_soon(
        self, decision: str, progress: Outcome | None = None
    ) -> Future[DecisionLease]:
        """Say that a decision is being worked on.

        Args:
            decision: Its id.
            progress: What there is to tell so far, ending as abandoned; it counts if nothing more
                is ever heard.
        """
        if progress is not None:
            check_figures(progress)
        place = parse_decision_id(decision)
        return self._store.submit(
            lambda ledger: self._work.heartbeat(ledger, place, progress), Subject(*place)
        )

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
        place = parse_decision_id(decision)
        return self._store.submit(
            lambda ledger: self._work.report(ledger, place, outcome, key),
            Subject(*place, outcome_key=key),
        )

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
            unfinished = [job for job, many in zip(jobs, counts, strict=True) if many == STEP]
            last = min(unfinished, default=jobs[-1] + 1) - 1

    def _release_soon(self, job: int, now: float) -> Future[int]:
        return self._store.submit(lambda ledger: self._work.release(ledger, job, now), job)

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


def _put_if_newer(fresh: Snapshot, ledger: Transaction) -> None:
    kept = ledger.snapshot(fresh.job)
    if kept is None or kept.code != fresh.code or kept.sequence < fresh.sequence:
        ledger.put_snapshot(fresh)
