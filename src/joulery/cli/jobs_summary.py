"""What the history of a recurring job amounts to."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from joulery.cli.jobs_measured import measured_of
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.specification import job_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.cli.jobs_measured import Measured
    from joulery.client.backend import DecisionBackend
    from joulery.jobs.job import Job
    from joulery.jobs.wire_entries import DecisionEntry, JobEntry

# Enough to see how a job goes; a history of years is not read for one look.
_MOST_EVENTS = 5000
_PAGE = 500
_LATEST = 5


@dataclass(slots=True)
class BatchSize:
    """How runs of one batch size went.

    Attributes:
        batch_size: Which.
        ends: How many ended in each way.
        costs_joules: Of those that reached the target.
        seconds: Likewise.
        joules: Likewise.
        limit_watts: Power limit that the latest held.
    """

    batch_size: int
    ends: dict[RunEnd, int] = field(default_factory=dict)
    costs_joules: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    limit_watts: float | None = None


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One recurrence: all of its attempts together.

    Attributes:
        number: Counts from 0.
        reached: Whether one of them reached the target.
        cost_joules: Of all of them.
        seconds: Likewise.
        joules: Likewise.
    """

    number: int
    reached: bool
    cost_joules: float
    seconds: float
    joules: float


@dataclass(frozen=True, slots=True)
class Saved:
    """The latest recurrences against runs of the default; shares, positive where less was used.

    Attributes:
        cost: Of the cost.
        energy: Of the energy.
        time: Of the time.
        recurrences: How many were compared.
        default_runs: With how many runs of the default.
    """

    cost: float
    energy: float
    time: float
    recurrences: int
    default_runs: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What the history of a job amounts to.

    Attributes:
        entry: The job, its newest version.
        job: What may be chosen.
        versions: All of that name, on all devices.
        batch_sizes: How runs of each went.
        recurrences: In order.
        saved: What was saved lately; None where nothing can be compared.
        decisions: In order, with how they ended.
        cut: Whether the oldest part of the history was left out.
        measured: Energy and frontiers.
    """

    entry: JobEntry
    job: Job
    versions: tuple[JobEntry, ...]
    batch_sizes: tuple[BatchSize, ...]
    recurrences: tuple[Recurrence, ...]
    saved: Saved | None
    decisions: tuple[DecisionEntry, ...]
    cut: bool
    measured: Measured

    def cost(self, entry: DecisionEntry) -> float | None:
        """What a decision cost, as far as it is known."""
        told = entry.outcome
        return None if told is None else self.job.cost.of(told.seconds, told.joules)


def summary_of(entry: JobEntry, versions: Sequence[JobEntry], clerk: DecisionBackend) -> Summary:
    """Read the latest part of a job's history, and sum it up."""
    job = job_from(entry.name, entry.specification)
    after = max(0, entry.events - _MOST_EVENTS)
    decisions = tuple(_decisions(clerk, entry.id, after))
    sizes = _by_batch_size(job, decisions)
    recurrences = _recurrences(job, decisions)
    return Summary(
        entry=entry,
        job=job,
        versions=tuple(versions),
        batch_sizes=sizes,
        recurrences=recurrences,
        saved=_saved(job, sizes, recurrences),
        decisions=decisions,
        cut=after > 0,
        measured=measured_of(clerk, entry),
    )


def _decisions(clerk: DecisionBackend, job: int, first: int) -> Iterable[DecisionEntry]:
    after: int | None = first
    while after is not None:
        entries, after = clerk.decisions(job, after, _PAGE)
        yield from entries


def _by_batch_size(job: Job, decisions: Sequence[DecisionEntry]) -> tuple[BatchSize, ...]:
    found = {size: BatchSize(size) for size in job.batch_sizes}
    for entry in decisions:
        told = entry.outcome
        row = found.get(entry.decision.batch_size)
        if told is None or row is None or entry.decision.kind != ActionKind.TRAIN:
            continue
        row.ends[told.end] = row.ends.get(told.end, 0) + 1
        row.limit_watts = told.limit_watts
        if told.end == RunEnd.REACHED:
            row.costs_joules.append(job.cost.of(told.seconds, told.joules))
            row.seconds.append(told.seconds)
            row.joules.append(told.joules)
    return tuple(found.values())


def _recurrences(job: Job, decisions: Sequence[DecisionEntry]) -> tuple[Recurrence, ...]:
    found: dict[int, list[DecisionEntry]] = {}
    for entry in decisions:
        found.setdefault(entry.decision.recurrence, []).append(entry)
    summed = []
    for number, entries in sorted(found.items()):
        told = [entry.outcome for entry in entries if entry.outcome is not None]
        seconds, joules = sum(one.seconds for one in told), sum(one.joules for one in told)
        reached = any(one.end == RunEnd.REACHED for one in told)
        summed.append(Recurrence(number, reached, job.cost.of(seconds, joules), seconds, joules))
    return tuple(summed)


def _saved(job: Job, sizes: Sequence[BatchSize], recurrences: Sequence[Recurrence]) -> Saved | None:
    default = next(row for row in sizes if row.batch_size == job.default)
    latest = [one for one in recurrences if one.reached][-_LATEST:]
    if not default.costs_joules or len(recurrences) < 2 or not latest:
        return None  # a first run has nothing to be compared with

    def share(now: Iterable[float], before: Sequence[float]) -> float:
        usual = median(before)
        return 1.0 - median(now) / usual if usual > 0 else 0.0

    return Saved(
        cost=share((one.cost_joules for one in latest), default.costs_joules),
        energy=share((one.joules for one in latest), default.joules),
        time=share((one.seconds for one in latest), default.seconds),
        recurrences=len(latest),
        default_runs=len(default.costs_joules),
    )
