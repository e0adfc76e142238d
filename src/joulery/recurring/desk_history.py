"""What the desk itself remembers of a job: its latest reports, and which of them are believed.

A report that contradicts others on the same batch size is *held*: the policy hears that the
decision is over, and nothing more, until more of the latest reports agree with it than do not. So
one wrong report moves nothing, while a job that has really changed is believed with its fourth run.
Early on, when little is known to compare with, a report that was believed may turn out to be the
odd one; then beliefs start again from all the others.

All of it follows from the events in their order, so a rebuilt job holds the same reports.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from joulery.recurring.policy import End, Kind

if TYPE_CHECKING:
    from joulery.recurring.job import Job
    from joulery.store.records import Document

# So many reports are remembered. As long as there are no more, beliefs can start again.
_LATEST = 32
# So many of the latest on the same batch size have a say.
_JURY = 4
_INSISTENCE = 3  # failures of one batch size within a recurrence
_AGAINST = 2  # so many more against one than for it, and it is dropped
# Reports on one batch size agree within a factor of two, or four times their usual scatter.
_FACTOR = math.log(2.0)
_SCATTERS = 4.0
_FEWEST_FOR_SCATTER = 5
# Batch sizes differ from one another: this much more per octave, in epochs and in an epoch's cost.
_EPOCHS_PER_OCTAVE = 0.7
_COST_PER_OCTAVE = 0.3
# Being stopped before this share of what was granted takes a second report.
_EARLY = 0.5
# From these others follow; of failures the policy makes little enough.
_FOUNDATIONS = (End.REACHED, End.PROBED)
_COSTS = 9  # of a batch size, for a median that no few can move


class Standing(IntEnum):
    """What became of a report."""

    BELIEVED = 0
    HELD = 1  # the policy does not know of it
    DROPPED = 2  # it was believed once


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
        log_cost: Of an epoch; NaN where unknown.
        cost: Of everything; 0 where unknown.
    """

    decision: int
    recurrence: int
    body: Document
    standing: Standing
    arm: int
    end: int
    octaves: float
    log_epochs: float
    log_cost: float
    cost: float

    @classmethod
    def of(cls, job: Job, decision: int, body: Document) -> Report:
        """Read an event's body."""
        action, end = body["action"], body["end"]
        epochs, cost = body.get("epochs", 0.0), body.get("cost", 0.0)
        reached = end == End.REACHED and epochs > 0 and cost > 0
        epoch = [math.log(job.cost.of(one[1], one[2])) for one in body["measured"]]
        if epoch:
            log_cost = sum(epoch) / len(epoch)
        else:
            log_cost = math.log(cost / epochs) if reached else math.nan
        return cls(
            decision=decision,
            recurrence=body["recurrence"],
            body=body,
            standing=Standing.BELIEVED,
            arm=action["arm"],
            end=end,
            octaves=math.log2(action["batch_size"]),
            log_epochs=math.log(epochs) if reached else math.nan,
            log_cost=log_cost,
            cost=cost,
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
        if new.end == End.ABANDONED and math.isnan(new.log_cost):
            return Verdict(believed=True)  # it claims nothing
        self.latest.append(new)
        self.heard += 1
        del self.latest[:-_LATEST]
        if not (self._convinces(new) or self._insists(new)):
            new.standing = Standing.HELD
        verdict = Verdict(believed=new.standing == Standing.BELIEVED)
        self._reconsider(new, verdict)
        for report in (*verdict.released, *([new] if verdict.believed else [])):
            self._note_cost(report)
        return verdict

    def _reconsider(self, new: Report, verdict: Verdict) -> None:
        """See whether a new report changes what is thought of earlier ones."""
        for report in self._recently_held(new.arm):
            if report is not new and self._convinces(report):
                report.standing = Standing.BELIEVED
                verdict.released.append(report)
        if self.heard > _LATEST:
            return
        for report in self.latest:
            if (
                report.standing == Standing.BELIEVED
                and report.end in _FOUNDATIONS
                and _contradicts(new, report)
                and sum(vote for vote, _ in self._votes(report, _LATEST)) <= -_AGAINST
            ):
                report.standing = Standing.DROPPED
                verdict.restart = True
        if verdict.restart:
            self.costs.clear()
            for report in self.latest[:-1]:
                if report.standing == Standing.BELIEVED and report not in verdict.released:
                    self._note_cost(report)
            self._drop_stopped()

    def _recently_held(self, arm: int) -> list[Report]:
        """Those of the latest on a batch size that still have a chance, oldest first."""
        found, seen = [], 0
        for report in reversed(self.latest):
            if report.arm == arm:
                seen += 1
                if report.standing == Standing.HELD:
                    found.append(report)
            if seen > _JURY:
                break
        return found[::-1]

    def _drop_stopped(self) -> None:
        """Ceilings followed from what was believed, so what they stopped tells little."""
        for report in self.latest:
            if report.end == End.STOPPED and report.standing == Standing.BELIEVED:
                report.standing = Standing.DROPPED

    def _convinces(self, report: Report) -> bool:
        """Whether nothing contradicts a report, or more of the latest agree with it than do not."""
        if report.end == End.STOPPED and not self.costs:
            return False  # there is nothing left that its ceiling followed from
        votes = [
            vote
            for vote, one in self._votes(report, _JURY)
            # What is itself in doubt speaks for those like it, and against nobody.
            if vote > 0 or one.standing == Standing.BELIEVED
        ]
        return (-1 not in votes or sum(votes) > 0) and not self._needs_another(report)

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

    def _votes(self, report: Report, jury: int) -> list[tuple[int, Report]]:
        """What the latest others say of a report: those on its batch size, else on the others."""
        same, distant = self._jury(report, jury)
        if not same:
            return [(_distant_opinion(report, one), one) for one in distant]
        votes = [_opinion(report, one, _FACTOR, _FACTOR) for one in same]
        if -1 in votes:  # perhaps reports on this batch size scatter more than most
            allowances = self._scatter(report)
            votes = [_opinion(report, one, *allowances) for one in same]
        # Two who agree may both be wrong, but what an epoch costs must fit all others.
        # Where all are asked, those whom it fits speak for it as well.
        fit = 1 if jury == _LATEST else 0
        fits = [-1 if _is_far(report, one) else fit for one in distant]
        return list(zip(votes + fits, same + distant, strict=True))

    def _jury(self, report: Report, size: int) -> tuple[list[Report], list[Report]]:
        """The latest others on the same batch size, filled up with those on other ones.

        What one holder says many times counts once, and not in favour of itself.
        """
        same: list[Report] = []
        distant: list[Report] = []
        heard = set()
        for one in reversed(self.latest):
            witness = one.recurrence, one.arm
            if one.recurrence == report.recurrence or witness in heard:
                continue
            heard.add(witness)
            if one.arm == report.arm:
                same.append(one)
                if len(same) == size:
                    break
            elif len(distant) < size:
                distant.append(one)
        return same, distant[: size - len(same)]

    def _scatter(self, report: Report) -> tuple[float, float]:
        """How far log epochs, and the log cost of an epoch, may be apart at one batch size."""
        same = [one for one in self.latest if one.arm == report.arm]
        return (
            _allowance([one.log_epochs for one in same]),
            _allowance([one.log_cost for one in same]),
        )

    def _needs_another(self, report: Report) -> bool:
        """Whether it says that a batch size fails before the end; that takes two holders to say."""
        if report.body["action"]["kind"] == Kind.PROBE:
            return False
        if report.end == End.STOPPED:
            granted = report.body["action"]["ceiling"]
            early = granted is not None and report.cost < _EARLY * granted
        else:
            tried = report.body.get("epochs", 0.0)
            early = report.end == End.EXHAUSTED and tried < self.job.max_epochs
        if not early:
            return False
        return not any(
            (one.arm, one.end) == (report.arm, report.end) and one.recurrence != report.recurrence
            for one in self.latest
        )

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


def _allowance(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    if len(known) < _FEWEST_FOR_SCATTER:
        return _FACTOR
    middle = statistics.median(known)
    scatter = 1.4826 * statistics.median(abs(value - middle) for value in known)
    return max(_FACTOR, _SCATTERS * scatter)


def _opinion(report: Report, other: Report, epochs: float, cost: float) -> int:
    """What another report on the same batch size says of one: 1 for, -1 against, 0 nothing."""
    if abs(report.log_cost - other.log_cost) > cost:  # never where one is NaN
        return -1
    ends = {report.end, other.end}
    if ends == {End.REACHED}:
        return 1 if abs(report.log_epochs - other.log_epochs) <= epochs else -1
    if ends == {End.REACHED, End.EXHAUSTED}:
        return -1
    if ends == {End.REACHED, End.STOPPED}:
        done, stopped = (report, other) if report.end == End.REACHED else (other, report)
        return -1 if stopped.cost > math.exp(epochs) * done.cost else 0
    if report.end == other.end:
        return 1
    # What is claimed besides the cost of an epoch, only those who got as far can confirm.
    known = not math.isnan(report.log_cost + other.log_cost)
    return 1 if known and report.end != End.REACHED else 0


def _distant_opinion(report: Report, other: Report) -> int:
    """What a report on another batch size says of one."""
    if _is_far(report, other):
        return -1
    if report.end == other.end == End.REACHED:
        near = _FACTOR + _EPOCHS_PER_OCTAVE * abs(report.octaves - other.octaves)
        return 1 if abs(report.log_epochs - other.log_epochs) <= near else -1
    return 0 if math.isnan(report.log_cost + other.log_cost) else 1


def _contradicts(new: Report, report: Report) -> bool:
    if new.recurrence == report.recurrence:
        return False
    if new.arm == report.arm:
        return _opinion(new, report, _FACTOR, _FACTOR) < 0
    return _distant_opinion(new, report) < 0


def _is_far(report: Report, other: Report) -> bool:
    """Whether an epoch costs more, or less, than batch sizes can explain."""
    near = _FACTOR + _COST_PER_OCTAVE * abs(report.octaves - other.octaves)
    return abs(report.log_cost - other.log_cost) > near
