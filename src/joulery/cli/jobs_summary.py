"""Summary of a recurring job: its runs by batch size, savings, energy and frontiers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean
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
class Saved:
    """The share of something that was saved; negative where more was used.

    Attributes:
        share: Share of what the default would have used.
        standard_error: One standard error of that; None where too few runs tell.
    """

    share: float
    standard_error: float | None


@dataclass(frozen=True, slots=True)
class Savings:
    """All recurrences so far against as many runs of the default batch size.

    Attributes:
        cost: Cost that was saved.
        energy: Energy that was saved.
        time: Time that was saved.
        exploring_joules: Cost of probes and of trainings that were stopped or failed, which is
            part of all recurrences.
        recurrences: Number of recurrences that were compared.
        default_runs: Number of runs of the default that they were compared with.
    """

    cost: Saved
    energy: Saved
    time: Saved
    exploring_joules: float
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
        saved: Savings so far; None where nothing but the default was run, or never the default.
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
        saved=_savings(job, sizes, decisions),
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


def _savings(
    job: Job, sizes: Sequence[BatchSizeSummary], decisions: Sequence[DecisionEntry]
) -> Savings | None:
    """Compare the total so far with the default; the default itself is not compared."""
    default = next(row for row in sizes if row.batch_size == job.default)
    ended = [entry for entry in decisions if _counts(entry)]
    recurrences = len({entry.decision.recurrence for entry in ended})
    outcomes = [entry.outcome for entry in ended if entry.outcome is not None]
    runs = len(default.costs_joules)
    if not runs or len(ended) == runs:
        return None
    scatter = _relative_scatter(sizes)

    def saved(total: float, of_default: Sequence[float]) -> Saved:
        mean = fmean(of_default)
        if not mean > 0:
            return Saved(0.0, None)
        # Runs of the default are as expensive as themselves, so only the others are uncertain.
        others = (total - sum(of_default)) / (recurrences * mean)
        share = 1.0 - others - runs / recurrences
        return Saved(share, None if scatter is None else abs(others) * scatter / math.sqrt(runs))

    costs = [job.cost.of(one.seconds, one.joules) for one in outcomes]
    return Savings(
        cost=saved(sum(costs), default.costs_joules),
        energy=saved(sum(one.joules for one in outcomes), default.joules),
        time=saved(sum(one.seconds for one in outcomes), default.seconds),
        exploring_joules=sum(
            cost for cost, one in zip(costs, outcomes, strict=True) if one.end != RunEnd.REACHED
        ),
        recurrences=recurrences,
        default_runs=runs,
    )


def _counts(entry: DecisionEntry) -> bool:
    """Whether an action ended, other than by the loss of its worker."""
    return entry.outcome is not None and entry.outcome.end != RunEnd.ABANDONED


def _relative_scatter(sizes: Sequence[BatchSizeSummary]) -> float | None:
    """Relative standard deviation of the cost of a run, over all batch sizes run repeatedly."""
    squares, count = 0.0, 0
    for costs in (row.costs_joules for row in sizes):
        mean = fmean(costs) if costs else 0.0
        if len(costs) > 1 and mean > 0:
            squares += sum((cost / mean - 1.0) ** 2 for cost in costs)
            count += len(costs) - 1
    return math.sqrt(squares / count) if count else None


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
