"""Filter of the reports that a policy learns from: a robust rule with quarantine.

A report that is possible (``joulery.jobs._validation``) can still be wrong: a worker that
measured the boards of another job, a script that reports another run. One such report must not ruin
a job.

Algorithm. A report claims epochs to the target (a run that failed: more than it trained) and the
least cost of an epoch. Two reports of one batch size agree if epochs are within a factor of 3 and
costs within 1.5, else they contradict each other. Reports of different batch sizes can only
contradict each other, by wider limits: each factor is twice as large per octave, but an epoch in
larger steps costs at most twice as much. A report is outvoted if more recurrences contradict it
than agree with it; of those on other batch sizes two count. The one outvoted by most is quarantined
first, with all others of its recurrence, and votes are counted again without them, until none is
outvoted. Of two that are alone and contradict each other, both wait for a third.

Verdicts are computed anew with each report, so a quarantined report is released once others confirm
it, and an accepted one is withdrawn once others outvote it. If one report releases several others,
the job has changed: what was reported before them was right then, and is remembered no longer,
unless hardly anything had been accepted, since two first reports may both be false. A change is
accepted with its fifth run, or two later where other batch sizes contradict it. Two kinds of
reports are *doubtful*: they contradict none, and need more for them than against them: a failure
that neither the cost ceiling nor ``max_epochs`` explains, and a run of a batch size that the policy
had not chosen.

Inputs. The bodies of outcome events in their order: the latest nine on each batch size, one of each
recurrence. Nothing else, so a job that is rebuilt has the same verdicts.

Thresholds. Epochs of a batch size vary by 10 to 30 % between runs and may double with new data; the
cost of an epoch at its best power limit hardly varies. An epoch of twice the batch size has half
the steps and costs at least half as much, at most 1.9 times (traces of You et al., NSDI'23). Nine
reports outlast four wrong ones.

Reference. A majority within fixed limits is Hampel's identifier (The influence curve and its role
in robust estimation, JASA 69, 1974); removing the most deviant first is the outward procedure of
Davies and Gather (The identification of multiple outliers, JASA 88, 1993).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.jobs.policies import RunEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from joulery.jobs._models import Job
    from joulery.storage import Document

# Reports that are remembered of each batch size, and recurrences on other batch sizes that count
# against a report, at most; by hand, after runs of made-up jobs with 10 % false reports (8 seeds,
# of slightly different versions of this filter) in which 5 and 2, and 5 and 0, cost more regret.
LATEST, _OTHERS = 9, 2
_CHANGED = 2  # reports of a batch size that one more releases at once where the job has changed
_UNCHOSEN = -1  # stands for the recurrences of all runs that the policy had not chosen
# Logarithms of the factors within which reports agree: on a batch size, per octave between two, and
# the cost of an epoch in larger steps.
_EPOCHS, _COST = math.log(3.0), math.log(1.5)
_PER_OCTAVE, _LARGER_COST = math.log(2.0), math.log(2.0)
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
        recurrence: Recurrence that the report is part of; the same for all that the policy had not
            chosen.
        arm: Position of the batch size.
        end: End of the run.
        cost: Cost of the run in joules; 0 where unknown.
        log_epochs: Least and largest logarithm of the epochs to the target; NaN where not claimed.
        log_epoch_cost: Logarithm of the cost of an epoch at the best limit; NaN where not claimed.
        claims: Whether it says anything that could be wrong.
        doubtful: Whether it counts only if others confirm it.
        open_seconds: Time between the decision and its report; by the report itself where the
            decision had expired.
        quarantined: Whether the policy does not learn from it.
    """

    decision: int
    body: Document
    recurrence: int
    arm: int
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
            recurrence=_UNCHOSEN if unchosen else body["recurrence"],
            arm=action["arm"],
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


def _reason(report: RunReport, contradictions: int) -> str:
    """Reason why a report is in quarantine, and what would release it."""
    size = report.body["action"]["batch_size"]
    if report.body["action"].get("volunteered"):
        return (
            f"batch size {size} was asked for, not chosen by the policy: "
            "a run of it that the policy chooses releases the report if it agrees"
        )
    if report.doubtful:
        return (
            "the run ended before its target though neither its cost ceiling nor max_epochs "
            f"explains that: a second run of batch size {size} that ends so releases the report"
        )
    if contradictions:
        runs = "another run" if contradictions == 1 else f"{contradictions} other runs"
        return (
            f"epochs to the target, or the cost of an epoch, are far from those of {runs}: "
            f"further runs of batch size {size} that agree with it release the report"
        )
    return "it follows from a report in quarantine: once that is released, this one is, too"


@dataclass(slots=True, eq=False)
class ReportFilter:
    """The latest reports on a job and the verdicts on them; see the module's description.

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
        """Whether to quarantine each of the latest reports."""
        recurrence, arm, end, doubtful = np.array(
            [(report.recurrence, report.arm, report.end, report.doubtful) for report in self.latest]
        ).T
        doubtful = doubtful.astype(bool)
        chosen = recurrence != _UNCHOSEN
        same = arm[:, None] == arm
        agree, contradict = self._comparisons(arm, same)
        independent = (recurrence[:, None] != recurrence) & chosen
        agree, contradict = agree & same & independent, contradict & independent & ~doubtful
        member = (recurrence[:, None] == np.unique(recurrence)).astype(float)
        gone = np.zeros(len(arm), dtype=bool)
        while True:
            against = contradict & ~gone
            strangers = ((against & ~same) @ member > 0).sum(axis=1)
            lead = (agree & ~gone).sum(axis=1) - (against & same).sum(axis=1)
            lead -= np.minimum(strangers, _OTHERS)
            least = lead[~gone].min(initial=0)
            if least == 0:
                break
            fallen = ~gone & (lead == least)
            gone |= fallen | np.isin(recurrence, recurrence[fallen & chosen])
        gone |= doubtful & (lead <= 0)
        if not (~gone & (end == RunEnd.REACHED)).any():
            gone |= end == RunEnd.STOPPED  # ceilings follow from runs that reached the target
        return gone.tolist()

    def _comparisons(
        self, arm: NDArray[np.int64], same: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(report, voter): whether the voter's report agrees with a report, or contradicts it."""
        low, high, cost = np.array(
            [(*report.log_epochs, report.log_epoch_cost) for report in self.latest]
        ).T
        octaves = np.log2(np.array(self.job.batch_sizes, dtype=float))[arm]
        larger, dearer = octaves[:, None] - octaves, cost[:, None] - cost
        room = _PER_OCTAVE * np.abs(larger)
        apart = np.maximum(low[:, None] - high, low - high[:, None])
        # That one batch size fails says nothing about another.
        reached = high < _NEVER
        apart[~(same | (reached[:, None] & reached))] = np.nan
        widest = np.where(larger * dearer > 0, _LARGER_COST, _COST + room)
        contradict = (apart > _EPOCHS + room) | (np.abs(dearer) > widest)
        # Only a report that has the same figures can confirm another.
        comparable = np.isnan(low)[:, None] | ~np.isnan(apart)
        comparable &= np.isnan(cost)[:, None] | ~np.isnan(dearer)
        return comparable & ~contradict, contradict

    def quarantined(self) -> list[int]:
        """Decisions whose reports are quarantined, of the latest."""
        return [report.decision for report in self.latest if report.quarantined]

    def reasons(self) -> dict[int, str]:
        """Reasons of quarantine, with what would release the report, by decision."""
        if not self.quarantined():
            return {}
        recurrence, arm, doubtful = np.array(
            [(report.recurrence, report.arm, report.doubtful) for report in self.latest]
        ).T
        _, contradict = self._comparisons(arm, arm[:, None] == arm)
        contradict &= (recurrence[:, None] != recurrence) & (doubtful == 0)
        return {
            report.decision: _reason(report, len(set(recurrence[against].tolist())))
            for report, against in zip(self.latest, contradict, strict=True)
            if report.quarantined
        }

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
        counts[default] += _OTHERS
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
    def from_list(cls, job: Job, latest: list[list[Any]]) -> ReportFilter:
        """The filter whose ``to_list`` gave this list."""
        reports = cls(job)
        for decision, body, open_seconds, quarantined in latest:
            new = RunReport.of(job, decision, body)
            new.open_seconds, new.quarantined = open_seconds, quarantined
            reports.latest.append(new)
        return reports
