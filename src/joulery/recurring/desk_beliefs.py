"""What a process believes about jobs: folded from the store, kept, and caught up when asked for.

Only the store's writer thread gets here, so nothing is locked. What is kept never runs ahead of the
store: whatever a transaction did to it is dropped if the transaction is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.recurring.desk_fold import fold
from joulery.recurring.desk_snapshot import code_fingerprint, freeze, thaw
from joulery.recurring.desk_specification import job_from, policy_from
from joulery.recurring.lanes import Lanes
from joulery.store.records import Snapshot

if TYPE_CHECKING:
    from joulery.recurring.job import Job
    from joulery.recurring.policy import Policy
    from joulery.store.ledger import Ledger
    from joulery.store.records import Event, JobRecord

# So many events at most are folded for a job that a process has not seen yet.
_SNAPSHOT_EVENTS = 256


@dataclass(slots=True, eq=False)
class Folded:
    """A job with what its events say.

    Attributes:
        job: As its owner gave it.
        policy: That decides for it.
        lanes: It alone.
        beliefs: After event number ``sequence``.
        sequence: Of the last event folded in.
        kept: Of the last event folded into the stored snapshot.
        swept_seconds: When silent holders were last looked for, on the monotonic clock.
    """

    job: Job
    policy: Policy[Any]
    lanes: Lanes
    beliefs: Any
    sequence: int = 0
    kept: int = 0
    swept_seconds: float = float("-inf")

    @classmethod
    def start(cls, record: JobRecord) -> Folded:
        """Before anything happened."""
        job = job_from(record.job.name, record.job.specification)
        policy = policy_from(record.job, job)
        lanes = Lanes.of([job], [record.job.seed])
        return cls(job, policy, lanes, policy.start(lanes))

    def fold(self, event: Event) -> None:
        """One event more."""
        fold(self.policy, self.beliefs, event)
        self.sequence = event.sequence


class BeliefsCache:
    """The jobs that this process has decided for lately.

    Args:
        capacity: How many are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._jobs: OrderedDict[int, Folded] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def drop(self, job: int) -> None:
        """Believe nothing any more about a job."""
        self._jobs.pop(job, None)

    def job(self, record: JobRecord) -> Job:
        """A job as its owner gave it."""
        folded = self._jobs.get(record.id)
        return job_from(record.job.name, record.job.specification) if folded is None else folded.job

    def current(self, ledger: Ledger, job: int) -> Folded:
        """A job with all its events folded in; it is locked."""
        locked = ledger.lock(job)
        ledger.on_rollback(lambda: self.drop(job))
        folded = self._jobs.get(job)
        if folded is None:
            folded = self._jobs[job] = _load(ledger, locked.record)
            while len(self._jobs) > self._capacity:
                self._jobs.popitem(last=False)
        else:
            self._jobs.move_to_end(job)
        if folded.sequence < locked.events:
            for event in ledger.events(job, folded.sequence):
                folded.fold(event)
        return folded

    def follow(self, ledger: Ledger, job: int, event: Event) -> None:
        """Fold in an event that was just appended, if the job is kept here."""
        folded = self._jobs.get(job)
        if folded is None:
            return
        ledger.on_rollback(lambda: self.drop(job))
        if folded.sequence == event.sequence - 1:
            folded.fold(event)
            _keep(ledger, job, folded)


def rebuilt(ledger: Ledger, record: JobRecord) -> Folded:
    """A job folded from its first event on, by nothing but its events."""
    folded = Folded.start(record)
    for event in ledger.events(record.id):
        folded.fold(event)
    return folded


def _load(ledger: Ledger, record: JobRecord) -> Folded:
    folded = Folded.start(record)
    snapshot = ledger.snapshot(record.id)
    usable = snapshot is not None and snapshot.code == code_fingerprint()
    if snapshot is not None and usable and thaw(folded.beliefs, snapshot.content):
        folded.sequence = folded.kept = snapshot.sequence
    return folded


def _keep(ledger: Ledger, job: int, folded: Folded) -> None:
    if folded.sequence - folded.kept < _SNAPSHOT_EVENTS:
        return
    content = freeze(folded.beliefs)
    folded.kept = folded.sequence
    if content is not None:
        ledger.put_snapshot(Snapshot(job, folded.sequence, code_fingerprint(), content))
