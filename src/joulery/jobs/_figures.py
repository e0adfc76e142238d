"""What each job of a store has used and saved, added up by the database for lists of many jobs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.jobs._pages import decision_page, job_entry, profile_list
from joulery.jobs._summary import EnergyUsed, JobMeasurements, RunSums, saved_share, summarize
from joulery.jobs.policies import ActionKind
from joulery.storage import DecisionState, energy_origins, run_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.jobs._summary import JobSummary, Saved
    from joulery.storage import JobHead, RunGroup, Transaction

_MOST_DECISIONS = 500  # that are read for the summary of a job


@dataclass(slots=True)
class JobFigures:
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


def job_figures(transaction: Transaction, heads: Sequence[JobHead]) -> list[JobFigures]:
    """The figures of some hundred jobs at most."""
    numbers = [head.id for head in heads]
    groups, ended = run_groups(transaction, numbers)
    by_job: dict[int, list[RunGroup]] = defaultdict(list)
    for group in groups:
        by_job[group.job].append(group)
    found = {head.id: _figures(head, by_job[head.id], ended.get(head.id, 0)) for head in heads}
    for job, origin, joules in energy_origins(transaction, numbers):
        found[job].origins[origin or "assumed"] = joules
    return list(found.values())


def job_summary(transaction: Transaction, job: int) -> JobSummary:
    """The latest part of a job's history, with what was measured.

    Args:
        transaction: Transaction to read in.
        job: Number of the job.

    Raises:
        UnknownRecordError: There is no such job.
    """
    entry = job_entry(transaction.job(job))
    after = max(0, entry.events - 2 * _MOST_DECISIONS)  # most decisions are followed by a report
    found = decision_page(transaction, job, after, _MOST_DECISIONS).decisions
    used = [
        EnergyUsed(origin or "assumed", j) for _, origin, j in energy_origins(transaction, [job])
    ]
    measured = JobMeasurements(tuple(used), profiles=profile_list(transaction, job).profiles)
    return summarize(entry, found, measured, cut=after > 0)


def _figures(head: JobHead, groups: Iterable[RunGroup], recurrences: int) -> JobFigures:
    figures = JobFigures(head, recurrences)
    reached: dict[int, RunSums] = defaultdict(RunSums)
    others, total = 0, 0.0
    for one in groups:
        figures.joules += one.joules
        made = one.latest_wall_seconds
        figures.open += one.count if one.state == DecisionState.OPEN else 0
        if one.ignored:
            figures.quarantined += one.count
            figures.quarantined_wall_seconds = max(made, figures.quarantined_wall_seconds)
        if one.state == DecisionState.EXPIRED and not one.end:
            figures.expired += one.count
            figures.expired_wall_seconds = max(made, figures.expired_wall_seconds)
        if one.end in (None, "abandoned"):
            continue
        total += one.joules
        if one.end == "reached" and one.kind == ActionKind.TRAIN:
            sums = reached[one.batch_size]
            sums.count += one.count
            sums.total += one.joules
            sums.squares += one.joules_squared
        others += one.count
    base = reached.get(head.default)
    if base is not None and others > base.count:
        figures.baseline_joules = base.total / base.count
        figures.saved = saved_share(head.default, reached, total, recurrences)
    return figures
