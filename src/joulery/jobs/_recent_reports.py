"""The latest reports on a job: what each claims, which of them count, and what those show."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.jobs import _report_filter
from joulery.jobs.policies import RunEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.jobs._models import Job
    from joulery.storage import Document

# Reports that are remembered of each batch size, which outlast four wrong ones; by hand, after runs
# of made-up jobs with 10 % false reports (8 seeds, earlier versions of the filter) in which 5 cost
# more regret.
LATEST = 9
_CHANGED = 2  # reports of a batch size that one more releases at once where the job has changed
_SUREST = 2  # runs by which others have to be ahead of the default batch size
_NEVER = 99.0  # logarithm of the epochs to a target that is not to be reached; beyond any real one
# A run that stopped with more than this share of its ceiling left was not stopped by it, and one
# that cost this many times its ceiling ignored it; by hand: meters and last epochs are off by less.
_SPARE, _IGNORED = 0.5, 2.0


@dataclass(slots=True, eq=False)
class RunReport:
    """Figures of a report, and the verdict on it.

    Attributes:
        decision: Number of the decision.
        body: Body of the event.
        recurrence: Recurrence of the report; ``UNCHOSEN`` if the policy had not chosen the run.
        arm: Position of the batch size.
        octave: Logarithm of the batch size to base 2.
        end: End of the run.
        cost: Cost of the run in joules; 0 where unknown.
        log_epochs: Least and largest logarithm of the epochs to the target; NaN where not claimed.
        log_epoch_cost: Logarithm of the cost of an epoch at the best limit; NaN where not claimed.
        claims: Whether it says anything that could be wrong.
        doubtful: Whether it counts only if others confirm it: a failure that neither the cost
            ceiling nor ``max_epochs`` explains, and a run that the policy had not chosen.
        open_seconds: Time between the decision and its report; by the report itself where the
            decision had expired.
        quarantined: Whether the policy does not learn from it.
    """

    decision: int
    body: Document
    recurrence: int
    arm: int
    octave: float
    end: int
    cost: float
    log_epochs: tuple[float, float]
    log_epoch_cost: float
    claims: bool
    doubtful: bool
    open_seconds: float
    quarantined: bool = False

    @classmethod
    def of(cls, job: Job, decision: int, body: Document) -> RunReport:
        """Read an event's body."""
        action, end = body["action"], body["end"]
        epochs, cost = body.get("epochs", 0.0), body.get("cost", 0.0)
        reached = end == RunEnd.REACHED and epochs > 0 and cost > 0
        epoch_cost = min((job.cost.of(*figures) for _, *figures, _ in body["measured"]), default=0)
        if epoch_cost <= 0 and reached:  # at no energy, or at a limit that is none of the job's
            epoch_cost = cost / epochs
        unexplained = _is_unexplained(job, body, epoch_cost)
        unchosen = bool(action.get("volunteered"))
        log_epochs = _NEVER if unexplained else math.log(epochs) if epochs > 0 else -_NEVER
        failed = end in (RunEnd.STOPPED, RunEnd.EXHAUSTED)
        low = log_epochs if reached or failed else math.nan
        return cls(
            decision=decision,
            body=body,
            recurrence=_report_filter.UNCHOSEN if unchosen else body["recurrence"],
            arm=action["arm"],
            octave=math.log2(job.batch_sizes[action["arm"]]),
            end=end,
            cost=cost,
            log_epochs=(low, _NEVER if failed else low),
            log_epoch_cost=math.log(epoch_cost) if epoch_cost > 0 else math.nan,
            claims=end != RunEnd.ABANDONED or epoch_cost > 0,
            doubtful=unexplained or unchosen,
            open_seconds=body.get("seconds", 0.0),
        )


def _is_unexplained(job: Job, body: Document, epoch_cost: float) -> bool:
    """Whether a run failed although neither its ceiling nor ``max_epochs`` explains that."""
    end, cost, ceiling = body["end"], body.get("cost", 0.0), body["action"]["ceiling"]
    if end not in (RunEnd.EXHAUSTED, RunEnd.STOPPED):
        return False
    ignored = ceiling is not None and cost > _IGNORED * ceiling + epoch_cost
    if end == RunEnd.EXHAUSTED:
        return bool(ignored or body.get("epochs", 0.0) < job.max_epochs)
    return ceiling is None or bool(ignored or cost + epoch_cost < _SPARE * ceiling)


@dataclass(slots=True, eq=False)
class RecentReports:
    """The latest reports on a job, and the verdicts of ``joulery.jobs._report_filter`` on them.

    Verdicts are computed anew with each report, from these reports only, so a job that is rebuilt
    has the same ones. A report is released once others confirm it, and withdrawn once others
    outvote it. If one report releases several others, the job has changed: what was reported before
    them was right then, and is remembered no longer, unless hardly anything had been accepted,
    since two first reports may both be false.

    Attributes:
        job: The job.
        latest: Reports in the order of their arrival, at most ``LATEST`` per batch size.
    """

    job: Job
    latest: list[RunReport] = field(default_factory=list)

    def add(self, new: RunReport) -> tuple[list[RunReport], set[int]]:
        """Add a report and compute the verdicts.

        Returns:
            Reports that are no longer remembered, whose verdicts are final; and the decisions on
            whose reports the verdict has changed.
        """
        # What a holder repeats must not crowd out other reports.
        claim = new.recurrence, new.arm
        latest = [report for report in self.latest if (report.recurrence, report.arm) != claim]
        final = [report for report in latest if report.arm == new.arm][: 1 - LATEST]
        self.latest = [report for report in latest if report not in final] + [new]
        verdicts = self._verdicts()
        start = self._change(verdicts)
        if start:
            final += self.latest[:start]
            self.latest = self.latest[start:]
            verdicts = self._verdicts()
        changes = set()
        for report, quarantined in zip(self.latest, verdicts, strict=True):
            if quarantined != report.quarantined:
                report.quarantined = quarantined
                changes.add(report.decision)
        return final, changes

    def _change(self, verdicts: list[bool]) -> int:
        """Position of the first report after a change of the job; 0 where it has not changed."""
        arm = self.latest[-1].arm
        released = [
            position
            for position, (report, verdict) in enumerate(zip(self.latest, verdicts, strict=True))
            if report.arm == arm and report.quarantined and not verdict
        ]
        if len(released) < _CHANGED or verdicts[-1]:
            return 0
        accepted = sum(not report.quarantined for report in self.latest[: released[0]])
        return released[0] if accepted > _CHANGED else 0  # a few first reports may all be false

    def _verdicts(self) -> list[bool]:
        return _report_filter.verdicts(self.latest)

    def quarantined(self) -> list[int]:
        """Decisions whose reports are quarantined, of the latest."""
        return [report.decision for report in self.latest if report.quarantined]

    def reasons(self) -> dict[int, str]:
        """Reasons of quarantine, with what would release the report, by decision."""
        return _report_filter.reasons(self.latest)

    def latest_training(self) -> RunReport | None:
        """The training that was reported last, whatever the verdict; None before the first."""
        ends = (RunEnd.REACHED, RunEnd.STOPPED, RunEnd.EXHAUSTED)
        return next((report for report in reversed(self.latest) if report.end in ends), None)

    def trained(self) -> set[int]:
        """Positions of the batch sizes of which trainings have shown how many epochs they need."""
        return {
            report.arm
            for report in self.latest
            if not (report.quarantined or math.isnan(report.log_epochs[0]))
        }

    def best_cost(self) -> float:
        """The median cost of the cheapest batch size; infinite before any reached the target."""
        return min(self._medians(lambda report: report.cost), default=math.inf)

    def usual_seconds(self) -> float:
        """The median time of the slowest batch size; infinite before any reached the target."""
        return max(self._medians(lambda report: report.open_seconds), default=math.inf)

    def surest(self) -> int:
        """The batch size that is surest to reach the target.

        The one that just did, also if that has to be confirmed; else the one that most runs reached
        it with, or the default until two more did.
        """
        latest = self.latest_training()
        if latest is not None and latest.end == RunEnd.REACHED and latest.quarantined:
            return self.job.batch_sizes[latest.arm]
        counts = Counter(report.arm for report in self._successes())
        default = self.job.batch_sizes.index(self.job.default)
        counts[default] += _SUREST
        return self.job.batch_sizes[max(counts, key=lambda arm: (counts[arm], arm == default))]

    def _medians(self, figure: Callable[[RunReport], float]) -> list[float]:
        """Medians of trainings that reached the target, one for each batch size."""
        figures: dict[int, list[float]] = {}
        for report in self._successes():
            figures.setdefault(report.arm, []).append(figure(report))
        return [statistics.median(values) for values in figures.values()]

    def _successes(self) -> list[RunReport]:
        return [
            report
            for report in self.latest
            if report.end == RunEnd.REACHED and not report.quarantined
        ]

    def to_list(self) -> list[list[Any]]:
        """The latest reports as JSON."""
        return [
            [report.decision, report.body, report.open_seconds, report.quarantined]
            for report in self.latest
        ]

    @classmethod
    def from_list(cls, job: Job, latest: list[list[Any]]) -> RecentReports:
        """The reports whose ``to_list`` gave this list."""
        reports = cls(job)
        for decision, body, open_seconds, quarantined in latest:
            new = RunReport.of(job, decision, body)
            new.open_seconds, new.quarantined = open_seconds, quarantined
            reports.latest.append(new)
        return reports
