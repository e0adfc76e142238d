"""Energy and savings of each job of a store, added up by the database for lists of many jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.jobs._summary import RunSums, saved_share
from joulery.storage import DecisionState, energy_origins, recurrence_sums, run_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.jobs._summary import Saved
    from joulery.storage import JobHead, Transaction


@dataclass(frozen=True, slots=True)
class EndedRecurrence:
    """A recurrence of a job that was reported on.

    Attributes:
        wall_seconds: Unix time of its last report.
        joules: Energy of all its attempts.
        saved_joules: Energy saved against the default; 0 without a baseline.
        default_joules: Energy of a run of the default; 0 without a baseline.
        counts: Whether it ended, rather than that all attempts were abandoned.
    """

    wall_seconds: float
    joules: float
    saved_joules: float
    default_joules: float
    counts: bool


@dataclass(slots=True)
class JobTotals:
    """Energy and savings of one version of a job.

    Attributes:
        head: The job.
        recurrences: Number of recurrences that ended.
        joules: Energy of all reports.
        origins: Energy by origin of the figures, as far as it is known by device.
        baseline_joules: Mean energy of the default batch size's runs that reached the target.
        saved: Share of energy that was saved against it; None without a baseline, or where nothing
            but the default was run.
        quarantined: Number of reports that the policy does not learn from.
        expired: Number of decisions whose lease ended without a report.
        open: Number of decisions that are being worked on.
        quarantined_wall_seconds: Time of the latest decision whose report is in quarantine.
        expired_wall_seconds: Time of the latest decision without a report.
        latest_wall_seconds: Time of the latest decision; 0 where there is none.
        ended: Its recurrences that were reported on, in order of time.
    """

    head: JobHead
    recurrences: int = 0
    joules: float = 0.0
    origins: dict[str, float] = field(default_factory=dict)
    baseline_joules: float = 0.0
    saved: Saved | None = None
    quarantined: int = 0
    expired: int = 0
    open: int = 0
    quarantined_wall_seconds: float = 0.0
    expired_wall_seconds: float = 0.0
    latest_wall_seconds: float = 0.0
    ended: tuple[EndedRecurrence, ...] = ()

    @property
    def saved_joules(self) -> float:
        """Energy that was saved; 0 where that is unknown."""
        return self._joules(self.saved_share)

    @property
    def saved_share(self) -> float:
        """Share of energy that was saved; 0 where that is unknown."""
        return self.saved.share if self.saved else 0.0

    @property
    def loses(self) -> bool:
        """Whether it needs more energy than the default, by two standard errors at least."""
        error = self.saved.standard_error if self.saved else None
        return error is not None and self.saved_share < -2 * error

    @property
    def saved_error_joules(self) -> float | None:
        """One standard error of that; None where too few runs tell."""
        error = self.saved.standard_error if self.saved else None
        return None if error is None else self._joules(error)

    def _joules(self, share: float) -> float:
        return share * self.recurrences * self.baseline_joules


def job_totals(transaction: Transaction, heads: Sequence[JobHead]) -> list[JobTotals]:
    """The totals of some hundred jobs at most."""
    numbers = [head.id for head in heads]
    by_job: dict[int, list[Any]] = defaultdict(list)
    for group in run_groups(transaction, numbers):
        by_job[group.job].append(group)
    recurrences = recurrence_sums(transaction, numbers)
    counts = Counter(row.job for row in recurrences if row.ended)
    totals = {head.id: _totals_of(head, by_job[head.id], counts[head.id]) for head in heads}
    for job, origin, joules in energy_origins(transaction, numbers):
        totals[job].origins[origin or "assumed"] = joules
    _add_recurrences(totals, recurrences)
    return list(totals.values())


def _add_recurrences(totals: dict[int, JobTotals], rows: Iterable[Any]) -> None:
    """Give jobs their recurrences, whose savings add up to those of the job."""
    ended: dict[int, list[EndedRecurrence]] = defaultdict(list)
    for row in rows:
        job = totals[row.job]
        default = row.ended * job.baseline_joules if job.saved else 0.0
        saved = default - row.ended_joules if job.saved else 0.0
        ended[row.job].append(
            EndedRecurrence(row.wall_seconds, row.joules, saved, default, bool(row.ended))
        )
    for number, recurrences in ended.items():
        totals[number].ended = tuple(recurrences)


def _totals_of(head: JobHead, groups: Iterable[Any], recurrences: int) -> JobTotals:
    totals = JobTotals(head, recurrences)
    sums_reached: dict[int, RunSums] = defaultdict(RunSums)
    runs_ended, total = 0, 0.0
    for group in groups:
        totals.joules += group.joules
        latest = group.latest_wall_seconds
        totals.latest_wall_seconds = max(latest, totals.latest_wall_seconds)
        totals.open += group.decisions if group.state == DecisionState.OPEN else 0
        if group.ignored:
            totals.quarantined += group.decisions
            totals.quarantined_wall_seconds = max(latest, totals.quarantined_wall_seconds)
        if group.state == DecisionState.EXPIRED and not group.end:
            totals.expired += group.decisions
            totals.expired_wall_seconds = max(latest, totals.expired_wall_seconds)
        if group.end in (None, "abandoned"):
            continue
        total += group.joules
        if group.end == "reached":
            sums = sums_reached[group.batch_size]
            sums.count += group.decisions
            sums.total += group.joules
            sums.squares += group.squares
        runs_ended += group.decisions
    base = sums_reached.get(head.default)
    if base is not None and runs_ended > base.count:
        totals.baseline_joules = base.total / base.count
        totals.saved = saved_share(base, sums_reached, total, recurrences)
    return totals
