"""Summary of a recurring job: its runs, savings, energy and frontiers."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.jobs.policies import ActionKind, RunEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulery.jobs._job import Job
    from joulery.jobs._models import DecisionEntry, JobEntry, Outcome, ProfileEntry


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


def summarize(
    entry: JobEntry,
    decisions: Iterable[DecisionEntry],
    measured: JobMeasurements,
    versions: Sequence[JobEntry] = (),
    *,
    cut: bool = False,
) -> JobSummary:
    """Summarise a job's history.

    Args:
        entry: Newest version of the job.
        decisions: Decisions with their outcomes, in order.
        measured: Energy and frontiers.
        versions: All versions of that name, on all devices.
        cut: Whether the oldest part of the history was left out.
    """
    job, decisions = entry.definition.job, tuple(decisions)
    return JobSummary(
        entry=entry,
        job=job,
        versions=tuple(versions),
        batch_sizes=_by_batch_size(job, decisions),
        recurrences=_recurrences(job, decisions),
        saved=_savings(job, decisions),
        decisions=decisions,
        cut=cut,
        measured=measured,
    )


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


@dataclass(slots=True)
class RunSums:
    """Sums over runs, from which savings follow.

    Attributes:
        count: Number of runs.
        total: Sum of a quantity.
        squares: Sum of its squares.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add a run."""
        self.count += 1
        self.total += value
        self.squares += value * value


def saved_share(
    default: int, reached: Mapping[int, RunSums], total: float, recurrences: int
) -> Saved | None:
    """The share of a quantity that was saved against as many runs of the default batch size.

    Args:
        default: Batch size that the owner would run.
        reached: Sums over the runs that reached the target, by batch size.
        total: Sum over all runs, whether they reached the target or not.
        recurrences: Number of recurrences.

    Returns:
        None where the default was never run.
    """
    base = reached.get(default, RunSums())
    if not (base.count and recurrences):
        return None
    if not base.total > 0:
        return Saved(0.0, None)
    # Runs of the default are as expensive as themselves, so only the others are uncertain.
    others = (total - base.total) / (recurrences * base.total / base.count)
    share = 1.0 - others - base.count / recurrences
    scatter = _relative_scatter(reached.values())
    return Saved(share, None if scatter is None else abs(others) * scatter / math.sqrt(base.count))


def _savings(job: Job, decisions: Sequence[DecisionEntry]) -> Savings | None:
    """Compare the total so far with the default; the default itself is not compared."""
    ended = [
        (entry.decision, entry.outcome)
        for entry in decisions
        if entry.outcome is not None and entry.outcome.end != RunEnd.ABANDONED
    ]
    runs = [
        (decision.batch_size, outcome)
        for decision, outcome in ended
        if decision.kind == ActionKind.TRAIN and outcome.end == RunEnd.REACHED
    ]
    default_runs = sum(size == job.default for size, _ in runs)
    if len(ended) == default_runs:
        return None
    recurrences = len({decision.recurrence for decision, _ in ended})

    def saved(of: Callable[[Outcome], float]) -> Saved | None:
        reached: dict[int, RunSums] = defaultdict(RunSums)
        for size, outcome in runs:
            reached[size].add(of(outcome))
        total = sum(of(outcome) for _, outcome in ended)
        return saved_share(job.default, reached, total, recurrences)

    def cost_of(one: Outcome) -> float:
        return float(job.cost.of(one.seconds, one.joules))

    cost, energy, time = (
        saved(cost_of),
        saved(lambda one: one.joules),
        saved(lambda one: one.seconds),
    )
    if cost is None or energy is None or time is None:
        return None
    exploring = sum(cost_of(one) for _, one in ended if one.end != RunEnd.REACHED)
    return Savings(cost, energy, time, exploring, recurrences, default_runs)


def _relative_scatter(sizes: Iterable[RunSums]) -> float | None:
    """Relative standard deviation of a run, over all batch sizes run repeatedly."""
    squares, count = 0.0, 0
    for sums in sizes:
        if sums.count > 1 and sums.total > 0:
            mean = sums.total / sums.count
            squares += max(0.0, sums.squares / mean**2 - sums.count)
            count += sums.count - 1
    return math.sqrt(squares / count) if count else None
