"""What the desk itself remembers of a job: its latest reports, and which of them are believed.

Two reports on a batch size *agree* if they tell of about as many epochs to the target and of about
the same cost of an epoch, and else *contradict* each other; those on other batch sizes only
contradict, and what they may differ by is wider. A report is believed unless more of the latest
contradict it than agree with it; else it is *held*: the policy hears that the decision is over, and
nothing more, until others agree. One holder counts once, and never for itself. That training failed
before its time takes two holders to say. Among the first reports there is little to compare with,
so that one may turn out to be the odd one; then it is held after all, and beliefs start again.

All of it follows from the events in their order, so a rebuilt job holds the same reports.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from joulery.recurring.policy import End

if TYPE_CHECKING:
    from joulery.recurring.job import Job
    from joulery.store.records import Document

# So many reports are remembered. As long as there are no more, beliefs can start again.
_LATEST = 32
# So many of the latest on the same batch size have a say: what no longer agrees with them is
# believed with its fifth run, and four of eight liars are rare where a tenth lie.
_JURY = 7
_INSISTENCE = 3  # failures of one batch size within a recurrence
# Logarithms of the factors within which reports agree. Epochs: what jobs do from one day to the
# next must pass at once. The cost of an epoch: at the same power limit it hardly changes.
_EPOCHS = math.log(3.0)
_COST = math.log(1.5)
# Of other batch sizes, in epochs this much more for each of two octaves, and no more beyond.
_EPOCHS_PER_OCTAVE = 0.7
_OCTAVES = 2.0
_COST_OF_OTHERS = math.log(3.0)  # of other batch sizes, or at other power limits
# A training that was stopped with more than this share of its grant left was not stopped by it.
_EARLY = 0.5
# From these others follow; of failures the policy makes little enough.
_FOUNDATIONS = (End.REACHED, End.PROBED)
_COSTS = 9  # of a batch size, for a median that no few can move


class Standing(IntEnum):
    """What became of a report."""

    BELIEVED = 0
    HELD = 1  # the policy does not know of it
    DROPPED = 2  # it was stopped by a ceiling that followed from what is no longer believed


@dataclass(slots=True)
class Report:
    """What was told of a decision, and what the desk makes of it.

    Attributes:
        decision: Its number.
        recurrence: That it is part of; one holder works on it.
        body: As the event has it.
        standing: What became of it.
        arm: Batch size by its place.
        end: How it ended.
        octaves: Batch size, as a logarithm to the base of two.
        log_epochs: To the target; NaN where that was not reached.
        log_costs: Of an epoch, by power limit; without a limit (-1), the mean over the run.
        cost: Of everything; 0 where unknown.
        early: Whether training is said to have failed though there was time and money left.
    """

    decision: int
    recurrence: int
    body: Document
    standing: Standing
    arm: int
    end: int
    octaves: float
    log_epochs: float
    log_costs: dict[int, float]
    cost: float
    early: bool

    @classmethod
    def of(cls, job: Job, decision: int, body: Document) -> Report:
        """Read an event's body."""
        action, end = body["action"], body["end"]
        epochs, cost = body.get("epochs", 0.0), body.get("cost", 0.0)
        reached = end == End.REACHED and epochs > 0 and cost > 0
        log_costs = {one[0]: math.log(job.cost.of(one[1], one[2])) for one in body["measured"]}
        if not log_costs and reached:
            log_costs[body["limit"]] = math.log(cost / epochs)
        return cls(
            decision=decision,
            recurrence=body["recurrence"],
            body=body,
            standing=Standing.BELIEVED,
            arm=action["arm"],
            end=end,
            octaves=math.log2(action["batch_size"]),
            log_epochs=math.log(epochs) if reached else math.nan,
            log_costs=log_costs,
            cost=cost,
            early=_is_early(job, body, math.exp(min(log_costs.values(), default=-math.inf))),
        )


@dataclass(slots=True)
class Verdict:
    """What the policy is told of a report.

    Attributes:
        believed: Whether it is told of it now.
        released: Earlier ones that it is told of now.
        restart: Whether beliefs start again, from all that are believed.
    """

    believed: bool
    released: list[Report] = field(default_factory=list)
    restart: bool = False


@dataclass(slots=True, eq=False)
class History:
    """See above.

    Attributes:
        job: Whose.
        latest: Reports, oldest first.
        heard: How many there were in all.
        costs: By batch size, of the latest believed trainings that reached the target, in joules.
    """

    job: Job
    latest: list[Report] = field(default_factory=list)
    heard: int = 0
    costs: dict[int, list[float]] = field(default_factory=dict)

    def judge(self, decision: int, body: Document) -> Verdict:
        """Fold in one report."""
        new = Report.of(self.job, decision, body)
        if new.end == End.ABANDONED and not new.log_costs:
            return Verdict(believed=True)  # it claims nothing
        self.latest.append(new)
        self.heard += 1
        del self.latest[:-_LATEST]
        if not (self._convinces(new) or self._insists(new)):
            new.standing = Standing.HELD
        verdict = Verdict(believed=new.standing == Standing.BELIEVED)
        for report in [one for one in self.latest if one.arm == new.arm][-_JURY - 1 : -1]:
            if report.standing == Standing.HELD and self._convinces(report):
                report.standing = Standing.BELIEVED
                verdict.released.append(report)
        for report in (*verdict.released, *([new] if verdict.believed else [])):
            self._note_cost(report)
        doubted = bool(verdict.released) or self._raises_doubts(new)
        if self.heard <= _LATEST and doubted and self._look_back():
            return Verdict(believed=new.standing == Standing.BELIEVED, restart=True)
        return verdict

    def _raises_doubts(self, new: Report) -> bool:
        """Whether a new report may have made another one, or itself, the odd one."""
        others = self.latest[:-1]
        return (
            any(one.recurrence == new.recurrence and one.arm == new.arm for one in others)
            or any(_opinion(one, new) < 0 for one in others)
            or not self._stands(new, _LATEST)
        )

    def _look_back(self) -> bool:
        """Whether one that was believed has turned out to be the odd one; if so, judge all anew."""
        odd = [
            one
            for one in self.latest
            if one.standing == Standing.BELIEVED
            and one.end in _FOUNDATIONS
            and not self._stands(one, _LATEST)
        ]
        if not odd:
            return False
        self.costs.clear()
        for report in self.latest:
            if report in odd:
                report.standing = Standing.HELD
            elif report.standing == Standing.BELIEVED and report.end == End.STOPPED:
                # Ceilings followed from what was believed, so what they stopped tells little.
                report.standing = Standing.DROPPED
            elif report.standing == Standing.HELD and self._stands(report, _LATEST):
                report.standing = Standing.BELIEVED
            if report.standing == Standing.BELIEVED:
                self._note_cost(report)
        return True

    def _convinces(self, report: Report) -> bool:
        if report.end == End.STOPPED and not self.costs:
            return False  # there is nothing left that its ceiling followed from
        return self._stands(report, _JURY)

    def _stands(self, report: Report, jury: int) -> bool:
        """Whether no more contradict a report than agree with it."""
        return sum(self._votes(report, jury)) >= (1 if report.early else 0)

    def _insists(self, report: Report) -> bool:
        """Whether it is the third failure, the sixth, the twelfth and so on of its recurrence.

        Of these the policy hears even if all others contradict them: else it would choose the same
        again, and the recurrence would never end. Yet one holder has no more to say than that.
        """
        if report.end not in (End.STOPPED, End.EXHAUSTED):
            return False
        alike = [
            one
            for one in self.latest
            if (one.arm, one.end, one.recurrence) == (report.arm, report.end, report.recurrence)
        ]
        times, rest = divmod(len(alike), _INSISTENCE)
        return rest == 0 and times.bit_count() == 1

    def _votes(self, report: Report, jury: int) -> list[int]:
        """What the latest others say of a report: those on its batch size, then on others.

        What one holder says many times counts once, and not in favour of itself. What is itself in
        doubt speaks for those like it, and against nobody; unless all are asked, to look back.
        """
        all_speak = jury == _LATEST
        same: list[int] = []
        distant: list[int] = []
        heard = set()
        for one in reversed(self.latest):
            witness = one.recurrence, one.arm
            if one.recurrence == report.recurrence or witness in heard:
                continue
            heard.add(witness)
            vote = _opinion(report, one)
            if one.standing != Standing.BELIEVED and not all_speak:
                vote = max(0, vote)
            if one.arm == report.arm:
                same.append(vote)
            else:
                distant.append(vote if all_speak else min(0, vote))
            if len(same) == jury:
                break
        return (same + distant)[:jury]

    def _note_cost(self, report: Report) -> None:
        if report.end == End.REACHED:
            costs = self.costs.setdefault(report.arm, [])
            costs.append(report.cost)
            del costs[:-_COSTS]

    def best_cost(self) -> float:
        """What a training of the cheapest batch size takes; infinite before any reached the target.

        Of medians, so that neither one lucky run nor one wrong report sets it.
        """
        return min(map(statistics.median, self.costs.values()), default=math.inf)

    def held(self) -> list[int]:
        """Decisions whose reports are not believed, of the latest."""
        return [one.decision for one in self.latest if one.standing != Standing.BELIEVED]

    def to_document(self) -> Document:
        """As JSON."""
        return {
            "heard": self.heard,
            "costs": [[arm, costs] for arm, costs in self.costs.items()],
            "latest": [[one.decision, one.body, int(one.standing)] for one in self.latest],
        }

    @classmethod
    def from_document(cls, job: Job, document: Document) -> History:
        """What :meth:`to_document` gave."""
        history = cls(job, heard=document["heard"], costs=dict(document["costs"]))
        for decision, body, standing in document["latest"]:
            report = Report.of(job, decision, body)
            report.standing = Standing(standing)
            history.latest.append(report)
        return history


def _is_early(job: Job, body: Document, epoch_cost: float) -> bool:
    if body["end"] == End.EXHAUSTED:
        return bool(body.get("epochs", 0.0) < job.max_epochs)
    granted = body["action"]["ceiling"]
    if body["end"] != End.STOPPED or granted is None:
        return False
    return bool(body.get("cost", 0.0) + epoch_cost < _EARLY * granted)


def _opinion(report: Report, other: Report) -> int:
    """What another report says of one: 1 for, -1 against, 0 nothing."""
    alike = (report.arm, report.end) == (other.arm, other.end)
    if other.early:  # of one who gave up, nothing follows for those who did not
        return int(alike)
    octaves = abs(report.octaves - other.octaves)
    near = _EPOCHS + _EPOCHS_PER_OCTAVE * min(octaves, _OCTAVES)
    apart = _cost_apart(report, other)
    if apart > (_COST if octaves == 0 else _COST_OF_OTHERS):  # never where it is NaN
        return -1
    if report.end == other.end == End.REACHED:
        return 1 if abs(report.log_epochs - other.log_epochs) <= near else -1
    if octaves == 0 and (_is_refuted(report, other) or _is_refuted(other, report)):
        return -1
    # What is claimed besides the cost of an epoch, only those who got as far can confirm.
    confirmed = report.end in (End.PROBED, End.ABANDONED) and not math.isnan(apart)
    return int(alike or confirmed)


def _is_refuted(fell_short: Report, done: Report) -> bool:
    """Whether a training is said to have failed that another shows to get there."""
    if done.end != End.REACHED:
        return False
    too_much = fell_short.cost > math.exp(_EPOCHS) * done.cost
    return fell_short.early or (fell_short.end == End.STOPPED and too_much)


def _cost_apart(report: Report, other: Report) -> float:
    """How far logarithms of an epoch's cost are apart beyond what batch sizes explain, or NaN.

    An epoch of a batch size twice as large takes half as many steps: it costs no less than half as
    much, and no more. The cost hangs on the power limit, too; if no limit is common to both, only
    the closest two tell.
    """
    small, large = (other, report) if other.octaves < report.octaves else (report, other)
    least = -math.log(2.0) * (large.octaves - small.octaves)
    common = [
        max(cost - base, least - (cost - base))
        for limit, cost in large.log_costs.items()
        if (base := small.log_costs.get(limit)) is not None
    ]
    if common:
        return common[0] if len(common) == 1 else statistics.median(common)
    pairs = itertools.product(large.log_costs.values(), small.log_costs.values())
    closest = min((max(cost - base, least - (cost - base)) for cost, base in pairs), default=None)
    return math.nan if closest is None else closest - _COST_OF_OTHERS
