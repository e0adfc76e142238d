"""Which reports the policy learns from: a robust filter with quarantine.

A report that is possible (:mod:`joulery.jobs._validation`) can still be wrong: a worker that
measured the boards of another job, a script that reports another run. One such report must not ruin
a job.

Algorithm. Reports are compared in pairs, on a logarithmic scale. Two reports on a batch size
*agree* if epochs to the target are within a factor of 3 and the cost of an epoch at the same power
limit is within a factor of 1.5; else they *contradict* each other. Reports on different batch sizes
can only contradict, by wider limits. Each recurrence has one vote, and never on itself; its allies
are the recurrences that agree with it, and those that contradict what contradicts it. A report is
outvoted if more recurrences contradict it than are its allies; of those on other batch sizes two
count. The report with the least margin is quarantined first, together with all others of its
recurrence, and the votes are counted again without them, until none is outvoted. Of two that are
alone and contradict each other, both are quarantined until a third confirms one. That is Hampel's
identifier, a majority within fixed limits, applied to the latest nine reports on each batch size.

Verdicts are computed anew with each report, so a quarantined report is released once others confirm
it, and an accepted one is withdrawn once others outvote it. A real change beyond the limits is
accepted with its fifth run. Three kinds of reports need a second, independent one in any case: a
failure that neither the cost ceiling nor ``max_epochs`` explains; a run of a batch size that the
policy had not chosen, since its holder could select what to report on; and a run that took longer
than its decision is old by the service's clock, which may have been set back.

Inputs. The bodies of outcome events in their order, and nothing else: a job that is rebuilt has the
same verdicts.

Thresholds. Epochs of a batch size vary by 10 to 30 % between runs and may double with new data: 3.
The cost of an epoch at a power limit hardly varies: 1.5; where no limit is common to both, 3 times
more. Between batch sizes, epochs may differ by a further factor of 2 per octave, for two octaves;
an epoch in larger steps costs at most twice as much, and at least the share of steps that is left
within 1.5 (1.9 and 1.03 in the traces of You et al., NSDI'23). Nine reports outlast four wrong
ones.

Complexity. One comparison with each remembered report, at most nine per batch size; where there are
contradictions, a few passes over the remembered reports.

Reference. Hampel, The influence curve and its role in robust estimation, JASA 69 (1974); Davies and
Gather, The identification of multiple outliers, JASA 88 (1993).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.jobs.policies import RunEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.jobs._job import Job
    from joulery.storage import Document

LATEST = 9  # reports that are remembered of each batch size
_OTHERS = 2  # votes of reports on other batch sizes, at most
_VOLUNTEERS = -1  # stands for the recurrences of all runs whose reports confirm no other
# Logarithms of the factors within which reports agree.
_EPOCHS = math.log(3.0)
_EPOCHS_PER_OCTAVE = math.log(2.0)
_OCTAVES = 2.0
_COST = math.log(1.5)
_COST_OF_LARGER = math.log(2.0)
_COST_OF_OTHER_LIMITS = math.log(3.0)
# A run that stopped with more than this share of its ceiling left was not stopped by it,
_LEFT = 0.5
# and one that cost this many times its ceiling ignored it.
_IGNORED = 2.0


@dataclass(slots=True, eq=False)
class RunReport:
    """What a report claims, and the verdict on it.

    Attributes:
        decision: Number of the decision.
        body: Body of the event.
        voter: Recurrence that the report is part of, or :data:`_VOLUNTEERS`.
        arm: Position of the batch size.
        end: How the run ended.
        octaves: Logarithm of the batch size to the base of two.
        epochs: Epochs that were trained.
        cost: Cost of the run in joules; 0 where unknown.
        log_epochs: Logarithm of the epochs to the target; NaN where it was not reached.
        log_costs: Logarithm of the cost of an epoch by power limit; without a limit (-1), the mean
            over the run.
        unexplained: Whether the run failed although its ceiling does not explain that.
        open_seconds: Time between the decision and its report; by the report itself where the
            decision had expired.
        quarantined: Whether the policy does not learn from it.
        votes: Votes of other reports by decision: 1 agrees, -1 contradicts.
    """

    decision: int
    body: Document
    voter: int
    arm: int
    end: int
    octaves: float
    epochs: float
    cost: float
    log_epochs: float
    log_costs: dict[int, float]
    unexplained: bool
    open_seconds: float
    quarantined: bool = False
    votes: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, decision: int, body: Document) -> RunReport:
        """Read an event's body."""
        action, end = body["action"], body["end"]
        epochs, cost = body.get("epochs", 0.0), body.get("cost", 0.0)
        reached = end == RunEnd.REACHED and epochs > 0 and cost > 0
        doubtful = action.get("volunteered") or body.get("doubtful")
        costs = {limit: job.cost.of(*figures) for limit, *figures, _ in body["measured"]}
        log_costs = {limit: math.log(each) for limit, each in costs.items() if each > 0}
        if not log_costs and reached:  # at no energy, or at a limit that is none of the job's
            log_costs[body["limit"]] = math.log(cost / epochs)
        return cls(
            decision=decision,
            body=body,
            voter=_VOLUNTEERS if doubtful else body["recurrence"],
            arm=action["arm"],
            end=end,
            octaves=math.log2(action["batch_size"]),
            epochs=epochs,
            cost=cost,
            log_epochs=math.log(epochs) if reached else math.nan,
            log_costs=log_costs,
            unexplained=_is_unexplained(job, body, min(log_costs.values(), default=-math.inf)),
            open_seconds=body.get("seconds", 0.0),
        )

    @property
    def claims(self) -> bool:
        """Whether it says anything that could be wrong."""
        return self.end != RunEnd.ABANDONED or bool(self.log_costs)


def _is_unexplained(job: Job, body: Document, log_epoch_cost: float) -> bool:
    end, cost, ceiling = body["end"], body.get("cost", 0.0), body["action"]["ceiling"]
    if end not in (RunEnd.EXHAUSTED, RunEnd.STOPPED):
        return False
    epoch_cost = math.exp(log_epoch_cost)
    ignored = ceiling is not None and cost > _IGNORED * ceiling + epoch_cost
    if end == RunEnd.EXHAUSTED:
        return bool(ignored or body.get("epochs", 0.0) < job.max_epochs)
    return ceiling is None or bool(ignored or cost + epoch_cost < _LEFT * ceiling)


@dataclass(slots=True, eq=False)
class ReportFilter:
    """The latest reports on a job and the verdicts on them; see the module's description.

    Attributes:
        job: The job.
        latest: Reports in the order of their arrival, at most :data:`LATEST` per batch size.
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
        claim = new.voter, new.arm, new.end
        self.latest = [one for one in self.latest if (one.voter, one.arm, one.end) != claim]
        same = [one for one in self.latest if one.arm == new.arm]
        final = same[: 1 - LATEST]
        self.latest = [one for one in self.latest if one not in final]
        self._append(new)
        return final, self._judge()

    def _append(self, new: RunReport) -> None:
        for other in self.latest:
            new.votes[other.decision] = _vote(other, new)
            other.votes[new.decision] = _vote(new, other)
        self.latest.append(new)

    def _judge(self) -> set[int]:
        """Compute all verdicts; the decisions whose verdict has changed."""
        refused = self._outvoted()
        refused |= {one.decision for one in self.latest if self._lacks_confirmation(one, refused)}
        ends = {one.end for one in self.latest if one.decision not in refused}
        changed = set()
        for one in self.latest:
            # Ceilings follow from runs that reached the target.
            groundless = one.end == RunEnd.STOPPED and RunEnd.REACHED not in ends
            quarantined = one.decision in refused or groundless
            if quarantined != one.quarantined:
                one.quarantined = quarantined
                changed.add(one.decision)
        return changed

    def _outvoted(self) -> set[int]:
        """Decisions whose reports are outvoted, with all others of their recurrences."""
        gone: set[int] = set()
        contested = [one for one in self.latest if -1 in one.votes.values()]
        while contested:
            margins = {one: self._margin(one, gone) for one in contested}
            least = min(margins.values())
            if least >= 0:
                break
            fallen = {one for one, margin in margins.items() if margin == least}
            voters = {one.voter for one in fallen} - {_VOLUNTEERS}
            gone |= {one.decision for one in self.latest if one in fallen or one.voter in voters}
            contested = [one for one in contested if one.decision not in gone]
        return gone

    def _margin(self, report: RunReport, gone: set[int]) -> int:
        """How many more recurrences are for a report than against it."""
        against = self._voters(report, -1, gone)
        allies = {one.voter for one in self._voters(report, 1, gone)}
        allies |= {ally.voter for one in against for ally in self._voters(one, -1, gone)}
        same = {one.voter for one in against if one.arm == report.arm}
        others = {one.voter for one in against} - same
        return len(allies - same - others - {report.voter}) - len(same) - min(_OTHERS, len(others))

    def _lacks_confirmation(self, report: RunReport, gone: set[int]) -> bool:
        if not (report.unexplained or report.voter == _VOLUNTEERS):
            return False
        agree, against = (
            {one.voter for one in self._voters(report, vote, gone)} for vote in (1, -1)
        )
        return len(agree) <= len(against)

    def _voters(self, report: RunReport, vote: int, gone: set[int]) -> list[RunReport]:
        """Reports that cast a vote on a report."""
        votes = report.votes
        return [
            one
            for one in self.latest
            if votes.get(one.decision, 0) == vote and one.decision not in gone
        ]

    def accepted(self) -> list[RunReport]:
        """Reports that the policy learns from, in the order of their arrival."""
        return [one for one in self.latest if not one.quarantined]

    def quarantined(self) -> list[int]:
        """Decisions whose reports are quarantined, of the latest."""
        return [one.decision for one in self.latest if one.quarantined]

    def best_cost(self) -> float:
        """The median cost of the cheapest batch size; infinite before any reached the target."""
        medians = self._medians(lambda one: one.cost)
        return min(medians, default=math.inf)

    def usual_seconds(self) -> float:
        """The median time of the slowest batch size; infinite before any reached the target."""
        medians = self._medians(lambda one: one.open_seconds)
        return max(medians, default=math.inf)

    def surest(self) -> int:
        """The batch size that most runs reached the target with; the default until two more did."""
        shown = Counter(one.arm for one in self.accepted() if one.end == RunEnd.REACHED)
        default = self.job.batch_sizes.index(self.job.default)
        shown[default] += _OTHERS
        return self.job.batch_sizes[max(shown, key=lambda arm: (shown[arm], arm == default))]

    def _medians(self, figure: Callable[[RunReport], float]) -> list[float]:
        """Of trainings that reached the target, one for each batch size."""
        figures: dict[int, list[float]] = {}
        for one in self.latest:
            if one.end == RunEnd.REACHED and not one.quarantined:
                figures.setdefault(one.arm, []).append(figure(one))
        return [statistics.median(each) for each in figures.values()]

    def to_document(self) -> Document:
        """The filter as JSON."""
        return {
            "latest": [
                [one.decision, one.body, one.open_seconds, one.quarantined] for one in self.latest
            ]
        }

    @classmethod
    def from_document(cls, job: Job, document: Document) -> ReportFilter:
        """The filter that :meth:`to_document` described."""
        reports = cls(job)
        for decision, body, open_seconds, quarantined in document["latest"]:
            new = RunReport.of(job, decision, body)
            new.open_seconds, new.quarantined = open_seconds, quarantined
            reports._append(new)
        return reports


def _vote(voter: RunReport, report: RunReport) -> int:
    """The vote of one report on another: 1 agrees, -1 contradicts, 0 says nothing."""
    alike = (voter.arm, voter.end) == (report.arm, report.end)
    if voter.unexplained and voter.voter != report.voter:
        return int(alike)  # nothing follows from it for runs that did not fail
    if voter.voter in (report.voter, _VOLUNTEERS):
        return 0
    apart, comparable = _cost_apart(voter, report)
    room = _COST if voter.arm == report.arm else 0.0
    far = apart > (room if comparable else room + _COST_OF_OTHER_LIMITS)  # never where it is NaN
    if far or _exclude_each_other(voter, report):
        return -1
    # What is claimed besides the cost of an epoch, only runs that got as far can confirm.
    costs_only = report.end in (RunEnd.PROBED, RunEnd.ABANDONED) and not math.isnan(apart)
    return int(voter.arm == report.arm and not apart > room and (alike or costs_only))


def _exclude_each_other(one: RunReport, other: RunReport) -> bool:
    """Whether epochs to the target, or that a run failed, contradict each other."""
    if one.end == other.end == RunEnd.REACHED:
        octaves = min(abs(one.octaves - other.octaves), _OCTAVES)
        room = _EPOCHS + _EPOCHS_PER_OCTAVE * octaves
        return abs(one.log_epochs - other.log_epochs) > room
    return one.arm == other.arm and (_is_refuted(one, other) or _is_refuted(other, one))


def _is_refuted(failed: RunReport, done: RunReport) -> bool:
    """Whether a run failed that others show to reach the target."""
    if done.end != RunEnd.REACHED or failed.end not in (RunEnd.STOPPED, RunEnd.EXHAUSTED):
        return False
    room = math.exp(_EPOCHS)
    too_expensive = failed.end == RunEnd.STOPPED and failed.cost > room * done.cost
    return failed.unexplained or too_expensive or failed.epochs > room * done.epochs


def _cost_apart(one: RunReport, other: RunReport) -> tuple[float, bool]:
    """How far the logarithms of an epoch's cost are apart beyond what batch sizes explain, or NaN.

    An epoch of a batch size twice as large takes half as many steps: it costs no less than half as
    much, and hardly more. The cost depends on the power limit; if no limit is common to both, the
    closest two are compared. The second figure says whether one is.
    """
    small, large = (one, other) if one.octaves < other.octaves else (other, one)
    octaves = large.octaves - small.octaves
    least, most = -math.log(2.0) * octaves, 0.0
    if octaves > 0:
        least, most = least - _COST, _COST_OF_LARGER

    def beyond(rise: float) -> float:
        return max(rise - most, least - rise)

    common = large.log_costs.keys() & small.log_costs.keys()
    if common:
        rises = (large.log_costs[limit] - small.log_costs[limit] for limit in common)
        return statistics.median(map(beyond, rises)), True
    pairs = ((a, b) for a in large.log_costs.values() for b in small.log_costs.values())
    return min((beyond(a - b) for a, b in pairs), default=math.nan), False
