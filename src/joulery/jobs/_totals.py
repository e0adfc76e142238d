"""Energy and savings of each job of a store, added up by the database for lists of many jobs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.jobs._documents import decision_page, job_entry, profile_list
from joulery.jobs._models import EnergyEntry
from joulery.jobs._summary import JobSummary, RunSums, saved_share
from joulery.storage import DecisionState, energy_origins, recurrence_sums, run_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.jobs._summary import Saved
    from joulery.storage import JobHead, Transaction

_MOST_DECISIONS = 500  # that are read for the summary of a job


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
        return self._joules(self.saved.share) if self.saved else 0.0

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
    groups, ended = run_groups(transaction, numbers)
    by_job: dict[int, list[Any]] = defaultdict(list)
    for group in groups:
        by_job[group.job].append(group)
    found = {head.id: _totals_of(head, by_job[head.id], ended.get(head.id, 0)) for head in heads}
    for job, origin, joules in energy_origins(transaction, numbers):
        found[job].origins[origin or "assumed"] = joules
    _add_recurrences(found, recurrence_sums(transaction, numbers))
    return list(found.values())


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


def job_summary(transaction: Transaction, job: int) -> JobSummary:
    """The latest part of a job's history, with what was measured."""
    entry = job_entry(transaction.job(job))
    after = max(0, entry.events - 2 * _MOST_DECISIONS)  # most decisions are followed by a report
    found = decision_page(transaction, job, after, _MOST_DECISIONS).decisions
    energy = [
        EnergyEntry(None, "", 0.0, joules, origin or "assumed")  # type: ignore[arg-type]
        for _, origin, joules in energy_origins(transaction, [job])
    ]
    profiles = profile_list(transaction, job).profiles
    return JobSummary(entry, found, tuple(energy), profiles, cut=after > 0)


def _totals_of(head: JobHead, groups: Iterable[Any], recurrences: int) -> JobTotals:
    totals = JobTotals(head, recurrences)
    reached: dict[int, RunSums] = defaultdict(RunSums)
    ended, total = 0, 0.0
    for one in groups:
        totals.joules += one.joules
        made = one.latest_wall_seconds
        totals.latest_wall_seconds = max(made, totals.latest_wall_seconds)
        totals.open += one.decisions if one.state == DecisionState.OPEN else 0
        if one.ignored:
            totals.quarantined += one.decisions
            totals.quarantined_wall_seconds = max(made, totals.quarantined_wall_seconds)
        if one.state == DecisionState.EXPIRED and not one.end:
            totals.expired += one.decisions
            totals.expired_wall_seconds = max(made, totals.expired_wall_seconds)
        if one.end in (None, "abandoned"):
            continue
        total += one.joules
        if one.end == "reached":
            sums = reached[one.batch_size]
            sums.count += one.decisions
            sums.total += one.joules
            sums.squares += one.squares
        ended += one.decisions
    base = reached.get(head.default)
    if base is not None and ended > base.count:
        totals.baseline_joules = base.total / base.count
        totals.saved = saved_share(base, reached, total, recurrences)
    return totals
