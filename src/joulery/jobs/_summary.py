"""Summary of a recurring job: its runs, energy and savings, from decisions and measurements."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import mean, variance
from typing import TYPE_CHECKING

from joulery.frontier import ASSUMED, Origin, Provenance
from joulery.jobs.policies import ActionKind, RunEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from joulery.jobs._models import (
        DecisionEntry,
        EnergyEntry,
        Job,
        JobEntry,
        Outcome,
        ProfileEntry,
    )
    from joulery.jobs._run_log import RunEntry

_UNEXPLAINED = Provenance(Origin.ASSUMED, "reports that do not say how it was measured")
_ROUNDING = 0.01  # by hand: a smaller share of unknown origin is not worth a word
# Relative change of equal runs, and in standard errors, that is worth a word; by hand.
_OWN_CHANGE, _OWN_CHANGE_ERRORS = 0.05, 3.0
_HOST_IDS = ("rapl:", "cpu", "ipmi:", "redfish:", "scpi:")  # of devices that are no accelerators


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
    ends: Counter[RunEnd] = field(default_factory=Counter)
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


@dataclass(frozen=True)
class JobSummary:
    """Runs, energy and savings of one version of a job, in all its history or in a part of it.

    Attributes:
        entry: Version of the job.
        decisions: Decisions with their outcomes, in order.
        energy: Energy by device, which not every report has.
        profiles: Frontiers by batch size.
        versions: All versions of that name, on all devices.
        cut: Whether the oldest decisions were left out.
        energy_cut: Whether the latest energy was left out.
    """

    entry: JobEntry
    decisions: tuple[DecisionEntry, ...]
    energy: tuple[EnergyEntry, ...] = ()
    profiles: tuple[ProfileEntry, ...] = ()
    versions: tuple[JobEntry, ...] = ()
    cut: bool = False
    energy_cut: bool = False

    @property
    def job(self) -> Job:
        """Job with the choices that its owner allows."""
        return self.entry.definition.job

    def cost_of(self, outcome: Outcome) -> float:
        """Cost of a run in joules."""
        return float(self.job.cost.of(outcome.seconds, outcome.joules))

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Reported outcomes, in the order of the decisions."""
        return tuple(entry.outcome for entry in self.decisions if entry.outcome is not None)

    @cached_property
    def seconds(self) -> float:
        """Time of all runs."""
        return sum(outcome.seconds for outcome in self.outcomes)

    @cached_property
    def reported_joules(self) -> float:
        """Energy of all runs by their reports."""
        return sum(outcome.joules for outcome in self.outcomes)

    @cached_property
    def exploring_joules(self) -> float:
        """The part of it for probes and for trainings that did not reach the target."""
        return sum(outcome.joules for outcome in self.outcomes if outcome.end != RunEnd.REACHED)

    @cached_property
    def origins(self) -> dict[str, float]:
        """Energy by the origin of its figures, as far as it is known by device."""
        origins: dict[str, float] = defaultdict(float)
        for figure in self.energy:
            origins[figure.origin] += figure.joules
        return dict(origins)

    @cached_property
    def unexplained_joules(self) -> float:
        """Energy of reports that is not known by device; 0 where that is next to nothing."""
        unexplained = self.reported_joules - sum(self.origins.values())
        return unexplained if unexplained > _ROUNDING * self.reported_joules else 0.0

    @property
    def joules(self) -> float:
        """Energy of all runs, by device as far as it is known."""
        return sum(self.origins.values()) + self.unexplained_joules

    @property
    def provenance(self) -> Provenance:
        """Provenance of the energy."""
        return energy_provenance([self])

    @property
    def accelerator_seconds(self) -> dict[str, float]:
        """Time of all runs on each accelerator, as far as it is known by device."""
        seconds: dict[str, float] = defaultdict(float)
        for figure in self.energy:
            if not figure.device.startswith(_HOST_IDS):
                seconds[figure.device] += figure.seconds
        return seconds

    @cached_property
    def batch_sizes(self) -> tuple[BatchSizeSummary, ...]:
        """Trainings by batch size."""
        rows = {size: BatchSizeSummary(size) for size in self.job.batch_sizes}
        for entry in self.decisions:
            outcome, row = entry.outcome, rows.get(entry.decision.batch_size)
            if outcome is None or row is None or entry.decision.kind != ActionKind.TRAIN:
                continue
            row.ends[outcome.end] += 1
            row.limit_watts = outcome.limit_watts
            if outcome.end == RunEnd.REACHED:
                row.costs_joules.append(self.cost_of(outcome))
                row.seconds.append(outcome.seconds)
                row.joules.append(outcome.joules)
        return tuple(rows.values())

    @cached_property
    def recurrences(self) -> tuple[RecurrenceSummary, ...]:
        """Recurrences in order."""
        attempts: dict[int, list[Outcome]] = defaultdict(list)
        for entry in self.decisions:
            outcomes = attempts[entry.decision.recurrence]
            if entry.outcome is not None:
                outcomes.append(entry.outcome)
        recurrences = []
        for number, outcomes in sorted(attempts.items()):
            reached = any(outcome.end == RunEnd.REACHED for outcome in outcomes)
            seconds = sum(outcome.seconds for outcome in outcomes)
            joules = sum(outcome.joules for outcome in outcomes)
            cost = self.job.cost.of(seconds, joules)
            recurrences.append(RecurrenceSummary(number, reached, cost, seconds, joules))
        return tuple(recurrences)

    @cached_property
    def own_change(self) -> float | None:
        """Relative change of the energy of equal runs over time, which no choice explains.

        From the first half to the second of the runs of one batch size and limit, that with most
        runs; None where there are too few, or chance explains it.
        """
        groups: dict[tuple[int, float | None], list[float]] = defaultdict(list)
        for entry in self.decisions:
            outcome = entry.outcome
            if outcome is not None and outcome.end == RunEnd.REACHED and outcome.joules > 0:
                key = entry.decision.batch_size, outcome.limit_watts
                groups[key].append(math.log(outcome.joules))
        values = max(groups.values(), key=len, default=[])
        half = len(values) // 2
        if half < 2:
            return None
        early, late = values[:half], values[-half:]
        change = mean(late) - mean(early)
        error = math.sqrt((variance(early) + variance(late)) / half)
        is_telling = abs(change) > max(_OWN_CHANGE, _OWN_CHANGE_ERRORS * error)
        return math.expm1(change) if is_telling else None

    @cached_property
    def saved(self) -> Savings | None:
        """Savings so far; None where nothing but the default was run, or never the default."""
        runs_ended = [
            (entry.decision, entry.outcome)
            for entry in self.decisions
            if entry.outcome is not None and entry.outcome.end != RunEnd.ABANDONED
        ]
        runs = [
            (decision.batch_size, outcome)
            for decision, outcome in runs_ended
            if outcome.end == RunEnd.REACHED
        ]
        default_runs = sum(size == self.job.default for size, _ in runs)
        if not default_runs or len(runs_ended) == default_runs:
            return None
        recurrences = len({decision.recurrence for decision, _ in runs_ended})

        def saved(of: Callable[[Outcome], float]) -> Saved:
            sums: dict[int, RunSums] = defaultdict(RunSums)
            for size, outcome in runs:
                sums[size].add(of(outcome))
            total = sum(of(outcome) for _, outcome in runs_ended)
            return saved_share(sums[self.job.default], sums, total, recurrences)

        return Savings(
            saved(self.cost_of),
            saved(lambda outcome: outcome.joules),
            saved(lambda outcome: outcome.seconds),
            sum(
                self.cost_of(outcome) for _, outcome in runs_ended if outcome.end != RunEnd.REACHED
            ),
            recurrences,
            default_runs,
        )


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
    base: RunSums, sums: Mapping[int, RunSums], total: float, recurrences: int
) -> Saved:
    """The share of a quantity that was saved against as many runs of the default batch size.

    Args:
        base: Sums over the default's runs that reached the target, of which there are some.
        sums: The same by batch size, the default included.
        total: Sum over all runs, whether they reached the target or not.
        recurrences: Number of recurrences.
    """
    if not base.total > 0:
        return Saved(0.0, None)
    # Runs of the default are as expensive as themselves, so only the others are uncertain.
    other_share = (total - base.total) / (recurrences * base.total / base.count)
    share = 1.0 - other_share - base.count / recurrences
    scatter = _relative_scatter(sums.values())
    error = None if scatter is None else abs(other_share) * scatter / math.sqrt(base.count)
    return Saved(share, error)


def _relative_scatter(sizes: Iterable[RunSums]) -> float | None:
    """Relative standard deviation of a run, over all batch sizes run repeatedly."""
    squares, count = 0.0, 0
    for sums in sizes:
        if sums.count > 1 and sums.total > 0:
            mean = sums.total / sums.count
            squares += max(0.0, sums.squares / mean**2 - sums.count)
            count += sums.count - 1
    return math.sqrt(squares / count) if count else None


def energy_provenance(summaries: Iterable[JobSummary], runs: Iterable[RunEntry] = ()) -> Provenance:
    """Provenance of the energy of jobs, and of other runs.

    A sensor errs alike in all runs, so the errors of one device add up as they are; those of
    different devices add in squares.
    """
    by_device: dict[str, list[tuple[Provenance, float]]] = defaultdict(list)
    for job in summaries:
        for figure in job.energy:
            provenance = Provenance(Origin(figure.origin), figure.source, figure.relative_error)
            by_device[figure.device].append((provenance, figure.joules))
        if job.unexplained_joules:
            by_device[""].append((_UNEXPLAINED, job.unexplained_joules))
    for run in runs:
        provenance = Provenance(Origin(run.origin), "", run.relative_error)
        by_device[f"{run.host} {run.boards}"].append((provenance, run.joules or 0.0))
    parts = []
    for terms in by_device.values():
        joules, total = sum(part_joules for _, part_joules in terms), Provenance.combined(terms)
        if total.relative_error is not None:
            error = sum(
                (provenance.relative_error or 0.0) * part_joules
                for provenance, part_joules in terms
            )
            total = replace(total, relative_error=error / joules)
        parts.append((total, joules))
    return Provenance.combined(parts) if parts else ASSUMED


def saved_energy(summaries: Iterable[JobSummary]) -> Saved | None:
    """Energy saved by all jobs that can tell, against what their defaults would have used."""
    savings = [
        (summary.joules, summary.saved.energy) for summary in summaries if summary.saved is not None
    ]
    savings = [(joules, saved) for joules, saved in savings if saved.share < 1]
    default = sum(joules / (1 - saved.share) for joules, saved in savings)
    if not default:
        return Saved(0.0, None) if savings else None
    used_joules = sum(joules for joules, _ in savings)
    error = None
    if all(saved.standard_error is not None for _, saved in savings):
        errors = (
            j * (saved.standard_error or 0.0) / (1 - saved.share) ** 2 for j, saved in savings
        )
        error = math.hypot(*errors) * used_joules / default**2
    return Saved(1 - used_joules / default, error)
