"""What a process believes about jobs: folded from the store, kept, and caught up when asked for.

Only the store's writer thread gets here, so nothing is locked. What is kept never runs ahead of the
store: whatever a transaction did to it is dropped if the transaction is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.jobs.policies.job_batch import JobBatch
from joulery.jobs.replay import begin, learn
from joulery.jobs.report import Verdict
from joulery.jobs.report_filter import ReportFilter
from joulery.jobs.snapshot import code_fingerprint, deserialize, serialize
from joulery.jobs.specification import job_from, policy_from
from joulery.storage.records import EventKind, Snapshot

if TYPE_CHECKING:
    from joulery.jobs.job import Job
    from joulery.jobs.policies.base import Actions, Policy
    from joulery.storage.records import Event, JobRecord
    from joulery.storage.transaction import Transaction

# So many events at most are folded for a job that a process has not seen yet.
_SNAPSHOT_EVENTS = 64


@dataclass(slots=True, eq=False)
class JobState:
    """A job with what its events say.

    Attributes:
        job: As its owner gave it.
        policy: That decides for it.
        lanes: It alone.
        beliefs: After event number ``sequence``.
        history: Likewise, what the desk remembers.
        sequence: Of the last event folded in.
        kept: Of the last event folded into the stored snapshot.
        swept_seconds: When silent holders were last looked for, on the monotonic clock.
    """

    job: Job
    policy: Policy[Any]
    lanes: JobBatch
    beliefs: Any
    history: ReportFilter
    sequence: int = 0
    kept: int = 0
    swept_seconds: float = float("-inf")

    @classmethod
    def start(cls, record: JobRecord) -> JobState:
        """Before anything happened."""
        job = job_from(record.job.name, record.job.specification)
        policy = policy_from(record.job, job)
        lanes = JobBatch.of([job], [record.job.seed])
        return cls(job, policy, lanes, policy.start(lanes), ReportFilter(job))

    def reason(self, actions: Actions) -> str:
        """Why the policy chose them, in words."""
        return self.policy.reasons[int(actions.why[0])]

    def fold(self, event: Event) -> None:
        """One event more; nothing else ever changes beliefs.

        ==========  =====================================================================
        issued      the action is under way
        outcome     it ended as told
        expired     it was given up; what heartbeats told of it still counts
        late        it was given up, yet ended as told: it is taken up again, and ends
        ==========  =====================================================================
        """
        if event.kind in (EventKind.ISSUED, EventKind.LATE):
            begin(self.policy, self.beliefs, event.body)
        if event.kind != EventKind.ISSUED:
            self._hear(event)
        self.sequence = event.sequence

    def _hear(self, event: Event) -> None:
        """As far as the report is believed; see :mod:`joulery.jobs.report_filter`."""
        verdict = self.history.judge(event.decision, event.body)
        if verdict.restart:
            self.beliefs = self.policy.start(self.lanes)
            again = [one for one in self.history.latest if one.standing == Verdict.BELIEVED]
        else:
            learn(self.policy, self.beliefs, verdict.told)
            again = verdict.released
        for report in again:
            begin(self.policy, self.beliefs, report.body)
            learn(self.policy, self.beliefs, report.body)


class PosteriorCache:
    """The jobs that this process has decided for lately.

    Args:
        capacity: How many are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._jobs: OrderedDict[int, JobState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def drop(self, job: int) -> None:
        """Believe nothing any more about a job."""
        self._jobs.pop(job, None)

    def job(self, record: JobRecord) -> Job:
        """A job as its owner gave it."""
        folded = self._jobs.get(record.id)
        return job_from(record.job.name, record.job.specification) if folded is None else folded.job

    def current(self, ledger: Transaction, job: int) -> JobState:
        """A job with all its events folded in; it is locked."""
        locked = ledger.lock(job)
        return self._caught_up(ledger, locked.record, locked.events)

    def glimpse(self, ledger: Transaction, record: JobRecord) -> JobState:
        """A job with all events that are committed, without locking it."""
        return self._caught_up(ledger, record, record.events)

    def _caught_up(self, ledger: Transaction, record: JobRecord, events: int) -> JobState:
        job = record.id
        ledger.on_rollback(lambda: self.drop(job))
        folded = self._jobs.get(job)
        if folded is None:
            folded = self._jobs[job] = _load(ledger, record)
            while len(self._jobs) > self._capacity:
                self._jobs.popitem(last=False)
        else:
            self._jobs.move_to_end(job)
        if folded.sequence < events:
            for event in ledger.events(job, folded.sequence):
                folded.fold(event)
        return folded

    def follow(self, ledger: Transaction, job: int, event: Event) -> None:
        """Fold in an event that was just appended, if the job is kept here."""
        folded = self._jobs.get(job)
        if folded is None:
            return
        ledger.on_rollback(lambda: self.drop(job))
        if folded.sequence == event.sequence - 1:
            folded.fold(event)
            _keep(ledger, job, folded)


def rebuilt(ledger: Transaction, record: JobRecord) -> JobState:
    """A job folded from its first event on, by nothing but its events."""
    folded = JobState.start(record)
    for event in ledger.events(record.id):
        folded.fold(event)
    return folded


def _load(ledger: Transaction, record: JobRecord) -> JobState:
    folded = JobState.start(record)
    snapshot = ledger.snapshot(record.id)
    if snapshot is None or snapshot.code != code_fingerprint():
        return folded
    beside = deserialize(folded.beliefs, snapshot.content)
    if beside is not None:
        folded.history = ReportFilter.from_document(folded.job, beside)
        folded.sequence = folded.kept = snapshot.sequence
    return folded


def snapshot_of(job: int, folded: JobState) -> Snapshot | None:
    """What saves folding its events again; None where its beliefs cannot be frozen."""
    content = serialize(folded.beliefs, folded.history.to_document())
    if content is None:
        return None
    return Snapshot(job, folded.sequence, code_fingerprint(), content)


def _keep(ledger: Transaction, job: int, folded: JobState) -> None:
    if folded.sequence - folded.kept < _SNAPSHOT_EVENTS:
        return
    folded.kept = folded.sequence
    snapshot = snapshot_of(job, folded)
    if snapshot is not None:
        ledger.put_snapshot(snapshot)
