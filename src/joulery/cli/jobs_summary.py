"""Summary of a recurring job: its runs by batch size, savings, energy and frontiers."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from joulery.errors import UnknownRecordError, UsageError
from joulery.jobs.policies import ActionKind, RunEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.client import DecisionBackend
    from joulery.jobs import DecisionEntry, Job, JobEntry, ProfileEntry

# Enough to see how a job goes; a history of years is not read for one look.
_MOST_EVENTS = 5000
_PAGE = 500
_MOST_ENERGY_PAGES = 20
_ENERGY_PAGE = 1000
_LATEST = 5


@dataclass(slots=True)
class EnergyUsed:
    """Energy whose figures have one origin.

    Attributes:
        origin: Origin of the figures, as :class:`joulery.frontier.Origin` names it.
        joules: Energy in total.
        device_seconds: Time in total, over all devices.
        records: Number of figures.
    """

    origin: str
    joules: float = 0.0
    device_seconds: float = 0.0
    records: int = 0


@dataclass(frozen=True, slots=True)
class JobMeasurements:
    """Measurements of a job.

    Attributes:
        energy: Energy used so far, by origin of the figures.
        complete: Whether all figures were read.
        profiles: Frontiers by batch size.
    """

    energy: tuple[EnergyUsed, ...] = ()
    complete: bool = True
    profiles: tuple[ProfileEntry, ...] = ()

    @property
    def joules(self) -> float:
        """Energy used so far, of all origins."""
        return sum(one.joules for one in self.energy)


@dataclass(slots=True)
class BatchSizeSummary:
    """Runs of one batch size.

    Attributes:
        batch_size: Batch size of the runs.
        ends: Number of runs by how they ended.
        costs_joules: Costs of the runs that reached the target.
        seconds: Durations of those runs.
        joules: Energy of those runs.
        limit_watts: Power limit that the latest run held.
    """

    batch_size: int
    ends: dict[RunEnd, int] = field(default_factory=dict)
    costs_joules: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    limit_watts: float | None = None


@dataclass(frozen=True, slots=True)
class RecurrenceSummary:
    """One recurrence: all of its attempts together.

    Attributes:
        number: Number of the recurrence; counts from 0.
        target_reached: Whether one of its attempts reached the target.
        cost_joules: Cost of all attempts.
        seconds: Duration of all attempts.
        joules: Energy of all attempts.
    """

    number: int
    target_reached: bool
    cost_joules: float
    seconds: float
    joules: float


@dataclass(frozen=True, slots=True)
class Savings:
    """The latest recurrences against runs of the default; shares, positive where less was used.

    Attributes:
        cost: Share of the cost that was saved.
        energy: Share of the energy that was saved.
        time: Share of the time that was saved.
        recurrences: Number of recurrences that were compared.
        default_runs: Number of runs of the default that they were compared with.
    """

    cost: float
    energy: float
    time: float
    recurrences: int
    default_runs: int


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Summary of a job's history.

    Attributes:
        entry: Newest version of the job.
        job: Job with the choices that its owner allows.
        versions: All versions of that name, on all devices.
        batch_sizes: Runs by batch size.
        recurrences: Recurrences in order.
        saved: Savings of the latest recurrences; None where nothing can be compared.
        decisions: Decisions with their outcomes, in order.
        cut: Whether the oldest part of the history was left out.
        measured: Energy and frontiers.
    """

    entry: JobEntry
    job: Job
    versions: tuple[JobEntry, ...]
    batch_sizes: tuple[BatchSizeSummary, ...]
    recurrences: tuple[RecurrenceSummary, ...]
    saved: Savings | None
    decisions: tuple[DecisionEntry, ...]
    cut: bool
    measured: JobMeasurements

    def cost(self, entry: DecisionEntry) -> float | None:
        """Cost of a decision in joules; None before its report."""
        outcome = entry.outcome
        return None if outcome is None else self.job.cost.of(outcome.seconds, outcome.joules)


def summary_of(
    entry: JobEntry, versions: Sequence[JobEntry], backend: DecisionBackend
) -> JobSummary:
    """Read the latest part of a job's history and summarise it."""
    job = entry.definition.job
    after = max(0, entry.events - _MOST_EVENTS)
    decisions = tuple(_decisions(backend, entry.id, after))
    sizes = _by_batch_size(job, decisions)
    recurrences = _recurrences(job, decisions)
    return JobSummary(
        entry=entry,
        job=job,
        versions=tuple(versions),
        batch_sizes=sizes,
        recurrences=recurrences,
        saved=_saved(job, sizes, recurrences),
        decisions=decisions,
        cut=after > 0,
        measured=measured_of(backend, entry),
    )


def _decisions(backend: DecisionBackend, job: int, first: int) -> Iterable[DecisionEntry]:
    after: int | None = first
    while after is not None:
        entries, after = backend.decisions(job, after, _PAGE)
        yield from entries


def _by_batch_size(job: Job, decisions: Sequence[DecisionEntry]) -> tuple[BatchSizeSummary, ...]:
    found = {size: BatchSizeSummary(size) for size in job.batch_sizes}
    for entry in decisions:
        outcome = entry.outcome
        row = found.get(entry.decision.batch_size)
        if outcome is None or row is None or entry.decision.kind != ActionKind.TRAIN:
            continue
        row.ends[outcome.end] = row.ends.get(outcome.end, 0) + 1
        row.limit_watts = outcome.limit_watts
        if outcome.end == RunEnd.REACHED:
            row.costs_joules.append(job.cost.of(outcome.seconds, outcome.joules))
            row.seconds.append(outcome.seconds)
            row.joules.append(outcome.joules)
    return tuple(found.values())


def _recurrences(job: Job, decisions: Sequence[DecisionEntry]) -> tuple[RecurrenceSummary, ...]:
    found: dict[int, list[DecisionEntry]] = {}
    for entry in decisions:
        found.setdefault(entry.decision.recurrence, []).append(entry)
    summed = []
    for number, entries in sorted(found.items()):
        outcome = [entry.outcome for entry in entries if entry.outcome is not None]
        seconds, joules = sum(one.seconds for one in outcome), sum(one.joules for one in outcome)
        reached = any(one.end == RunEnd.REACHED for one in outcome)
        summed.append(
            RecurrenceSummary(number, reached, job.cost.of(seconds, joules), seconds, joules)
        )
    return tuple(summed)


def _saved(
    job: Job, sizes: Sequence[BatchSizeSummary], recurrences: Sequence[RecurrenceSummary]
) -> Savings | None:
    default = next(row for row in sizes if row.batch_size == job.default)
    latest = [one for one in recurrences if one.target_reached][-_LATEST:]
    if not default.costs_joules or len(recurrences) < 2 or not latest:
        return None  # a first run has nothing to be compared with

    def share(now: Iterable[float], before: Sequence[float]) -> float:
        usual = median(before)
        return 1.0 - median(now) / usual if usual > 0 else 0.0

    return Savings(
        cost=share((one.cost_joules for one in latest), default.costs_joules),
        energy=share((one.joules for one in latest), default.joules),
        time=share((one.seconds for one in latest), default.seconds),
        recurrences=len(latest),
        default_runs=len(default.costs_joules),
    )


def measured_of(backend: DecisionBackend, job: JobEntry) -> JobMeasurements:
    """Read the measurements of a job and add them up."""
    found: dict[str, EnergyUsed] = {}
    after: int | None = 0
    for _ in range(_MOST_ENERGY_PAGES):
        if after is None:
            break
        entries, after = backend.energy(job.id, after, _ENERGY_PAGE)
        for entry in entries:
            used = found.setdefault(entry.origin, EnergyUsed(entry.origin))
            used.joules += entry.joules
            used.device_seconds += entry.seconds
            used.records += 1
    return JobMeasurements(tuple(found.values()), after is None, tuple(backend.profiles(job.id)))


def chosen_profile(profiles: list[ProfileEntry], batch_size: int | None) -> ProfileEntry:
    """The profile of a batch size; where there is only one, it need not be named.

    Raises:
        UnknownRecordError: There is none.
        UsageError: There are several and none is named.
    """
    fitting = [one for one in profiles if batch_size in (None, one.batch_size)]
    if not fitting:
        what = "this job" if batch_size is None else f"batch size {batch_size}"
        known = ", ".join(str(one.batch_size) for one in profiles)
        raise UnknownRecordError(
            f"no limit of {what} has been measured yet",
            remedy=f"give --batch-size: {known}" if known else "run it once",
        )
    if len(fitting) > 1:
        sizes = ", ".join(str(one.batch_size) for one in fitting)
        raise UsageError("several batch sizes were measured", remedy=f"give --batch-size: {sizes}")
    return fitting[0]
