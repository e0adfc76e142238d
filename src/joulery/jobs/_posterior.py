"""The posterior of each job: folded from the store's events, cached, and continued when asked for.

Only the store's writer thread uses the cache, so nothing is locked. The cache never runs ahead of
the store: what a transaction did to it is dropped if the transaction is not kept.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.jobs._job_registry import job_from, policy_from
from joulery.jobs._recent_reports import RecentReports, RunReport
from joulery.jobs._replay import ROW, actions_from, outcome_document, outcomes_from
from joulery.jobs._snapshot import deserialize, fold_version, serialize
from joulery.jobs.policies import EstimatesCosts, JobBatch, RunEnd
from joulery.storage import EventKind, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.jobs._models import Job
    from joulery.jobs.policies import Policy
    from joulery.storage import Document, Event, JobRecord, Transaction

# At most so many events are folded for a job that a process has not seen yet.
_SNAPSHOT_EVENTS = 64
# A decision that is open for this many times the usual run is no longer expected to end.
_USUAL_RUNS = 2.0


@dataclass(slots=True, eq=False)
class JobState:
    """A job with the posterior that follows from its events.

    Attributes:
        job: Specification of the job: allowed settings and objective.
        policy: Policy that decides for it.
        batch: The job as a batch of one, as policies take it.
        beliefs: The policy's posterior after event number ``sequence``.
        settled: The same from those reports only whose verdicts are final.
        reports: Reports whose verdicts may change.
        open: Actions under way by decision, each with its recurrence and the time of its issue, in
            the order of issue.
        sequence: Number of the last event folded in.
        snapshotted: Number of the last event in the stored snapshot.
        changed: Decisions on whose reports the verdict has changed with the last event.
        swept_seconds: Time of the last search for ended leases, on the monotonic clock.
    """

    job: Job
    policy: Policy[Any]
    batch: JobBatch
    beliefs: Any
    settled: Any
    reports: RecentReports
    open: dict[int, tuple[Document, int, float]] = field(default_factory=dict)
    sequence: int = 0
    snapshotted: int = 0
    changed: set[int] = field(default_factory=set)
    swept_seconds: float = float("-inf")

    @classmethod
    def start(cls, record: JobRecord, snapshot: Snapshot | None = None) -> JobState:
        """The state before the first event, or at a snapshot of the same versions."""
        job = job_from(record)
        policy = policy_from(record, job)
        batch = JobBatch.of([job], [record.seed])
        beliefs = policy.start(batch), policy.start(batch)
        state = cls(job, policy, batch, *beliefs, RecentReports(job))
        if snapshot is not None and snapshot.code == fold_version(policy):
            state._restore(snapshot)
        return state

    def fold_all(self, events: Iterable[Event]) -> None:
        """Fold in events in their order."""
        for event in events:
            self.fold(event)

    def fold(self, event: Event) -> None:
        """Fold in one event; nothing else ever changes the posterior.

        ==========  =====================================================================
        issued      ``begin``: the action is under way
        outcome     ``learn``: it ended as reported, or as abandoned if that is quarantined
        expired     ``learn``: it was abandoned; what heartbeats reported still counts
        late        ``begin`` and ``learn``: it had expired, and ended as reported
        ==========  =====================================================================

        An action that is open for several times as long as actions usually are is abandoned, too:
        a policy that waits for what it tries must not wait for a holder that only sends heartbeats.
        """
        self.changed = set()
        self._release_old(event.wall_seconds)
        if event.kind == EventKind.ISSUED:
            action, recurrence = event.body["action"], event.body["recurrence"]
            self.open[event.sequence] = action, recurrence, event.wall_seconds
            self.policy.begin(self.beliefs, ROW, actions_from(action))
        else:
            self._fold_report(event)
        self.sequence = event.sequence

    def _release_old(self, now: float) -> None:
        if not self.open:
            return
        oldest = now - _USUAL_RUNS * self.reports.usual_seconds()
        for decision, (action, recurrence, issued) in list(self.open.items()):
            if issued >= oldest:
                return
            del self.open[decision]
            unknown = outcome_document(None, self.job, action, recurrence)
            self.policy.learn(self.beliefs, outcomes_from(unknown))

    def _fold_report(self, event: Event) -> None:
        report = RunReport.of(self.job, event.decision, event.body)
        opened = self.open.pop(event.decision, None)
        if opened is None:
            self.policy.begin(self.beliefs, ROW, actions_from(event.body["action"]))
        else:  # at least what the run took, since a clock may have been set back meanwhile
            report.open_seconds = max(report.open_seconds, event.wall_seconds - opened[2])
        body, final = event.body, list[RunReport]()
        if report.claims:
            final, self.changed = self.reports.add(report)
        for old_report in final:
            # What a ceiling refused depends on others.
            if old_report.end != RunEnd.STOPPED or old_report.body["epochs"]:
                self._learn_again(self.settled, old_report)
        if self.changed - {report.decision}:
            self._rebuild()
        else:
            if report.quarantined:
                body = outcome_document(None, self.job, body["action"], body["recurrence"])
            self.policy.learn(self.beliefs, outcomes_from(body))

    def _rebuild(self) -> None:
        """Start again from the settled posterior, with the reports that are accepted now."""
        self.beliefs = copy.deepcopy(self.settled)
        best_cost = self.reports.best_cost()
        for report in sorted(self.reports.latest, key=lambda report: report.end == RunEnd.STOPPED):
            # What a ceiling stopped that followed from a wrong report says nothing.
            if report.end != RunEnd.STOPPED or report.cost >= best_cost:
                self._learn_again(self.beliefs, report)
        for action, *_ in self.open.values():
            self.policy.begin(self.beliefs, ROW, actions_from(action))

    def _learn_again(self, beliefs: Any, report: RunReport) -> None:
        if not report.quarantined:
            self.policy.begin(beliefs, ROW, actions_from(report.body["action"]))
            self.policy.learn(beliefs, outcomes_from(report.body))

    def to_snapshot(self, job: int) -> Snapshot | None:
        """Snapshot of the beliefs; None if they cannot be serialized."""
        document = {
            "reports": self.reports.to_list(),
            "open": [[number, *action] for number, action in self.open.items()],
        }
        content = serialize((self.settled, self.beliefs), document)
        if content is None:
            return None
        return Snapshot(job, self.sequence, fold_version(self.policy), content)

    def _restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot; stay at the start if it is damaged."""
        document = deserialize((self.settled, self.beliefs), snapshot.content)
        if document is not None:
            self.reports = RecentReports.from_list(self.job, document["reports"])
            self.open = {
                number: (action, recurrence, issued)
                for number, action, recurrence, issued in document["open"]
            }
            self.sequence = self.snapshotted = snapshot.sequence


def rebuilt(transaction: Transaction, record: JobRecord) -> JobState:
    """A job folded from its first event on, by nothing but its events."""
    state = JobState.start(record)
    state.fold_all(transaction.events(record.id))
    return state


@dataclass(frozen=True, slots=True)
class JobBeliefs:
    """Present beliefs of a job's policy.

    Attributes:
        costs: Cost of a whole run in joules, by batch size: one sigma below, expected, one above;
            empty for policies that keep no such beliefs.
        changed: Whether the policy has noticed that the job no longer trains as it used to.
        quarantine: Reasons why reports are in quarantine, and what would release each, by the
            number of their decision.
    """

    costs: dict[int, tuple[float, float, float]]
    changed: bool
    quarantine: dict[int, str] = field(default_factory=dict)


def job_beliefs(transaction: Transaction, record: JobRecord) -> JobBeliefs:
    """Beliefs of a job from its snapshot and the events since; in any thread.

    Empty where this process does not have the job's policy, which may be registered in others only.
    """
    try:
        state = JobState.start(record, transaction.snapshot(record.id))
    except InvalidValueError:
        return JobBeliefs({}, changed=False)
    costs = {}
    state.fold_all(transaction.events(record.id, state.sequence))
    if isinstance(state.policy, EstimatesCosts):
        bounds = state.policy.believed_costs(state.beliefs, ROW)
        for arm, size in enumerate(state.job.batch_sizes):
            low, mean, high = (float(bound[0, arm]) for bound in bounds)
            if math.isfinite(mean):
                costs[size] = low, mean, high
    changed = bool(getattr(state.beliefs, "changed", [False])[0])
    return JobBeliefs(costs, changed, state.reports.reasons())


class PosteriorCache:
    """The jobs that this process has worked on lately, at most ``capacity``."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._jobs: dict[int, JobState] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._jobs)

    def drop(self, job: int) -> None:
        """Remove a job."""
        self._jobs.pop(job, None)

    def current(self, transaction: Transaction, record: JobRecord) -> JobState:
        """A job with the events that ``record`` counts; all of them where it is locked."""
        job = record.id
        transaction.on_rollback(lambda: self.drop(job))
        state = self._jobs.pop(job, None) or JobState.start(record, transaction.snapshot(job))
        self._jobs[job] = state
        if len(self._jobs) > self._capacity:
            del self._jobs[next(iter(self._jobs))]
        if state.sequence < record.events:
            state.fold_all(transaction.events(job, state.sequence))
        return state

    def append(self, transaction: Transaction, job: int, event: Event) -> None:
        """Store the next event of a job whose state is current, and fold it in."""
        state = self._jobs[job]
        transaction.append(job, event)
        state.fold(event)
        if state.sequence - state.snapshotted >= _SNAPSHOT_EVENTS:
            state.snapshotted = state.sequence
            snapshot = state.to_snapshot(job)
            if snapshot is not None:
                transaction.put_snapshot(snapshot)
