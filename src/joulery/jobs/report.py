"""What a report on a decision claims, and what another one says of it.

Two reports on a batch size *agree* if they tell of about as many epochs to the target and of about
the same cost of an epoch, and else *contradict* each other; those on other batch sizes only
contradict, and what they may differ by is wider.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from joulery.jobs.policies.base import RunEnd

if TYPE_CHECKING:
    from joulery.jobs.job import Job
    from joulery.storage.records import Document

VOLUNTEERS = -1  # stands for the recurrences of all that ran what was not chosen
# Logarithms of the factors within which reports agree. Epochs: what jobs do from one day to the
# next must pass at once. The cost of an epoch: at the same power limit it hardly changes.
EPOCHS = math.log(3.0)
_COST = math.log(1.5)
# Of other batch sizes, in epochs this much more for each of two octaves, and no more beyond.
_EPOCHS_PER_OCTAVE = 0.7
_OCTAVES = 2.0
# An epoch in larger steps costs no more, within this factor (1.9 at most in You et al.'s traces),
_DEARER = math.log(2.0)
# and no less than by the steps that it saves, within this one (1.03 there).
_LEANER = math.log(1.5)
_PER_OCTAVE = math.log(2.0)
_OTHER_LIMITS = math.log(3.0)  # what is between power limits, where none is common to both
# A training that was stopped with more than this share of its grant left was not stopped by it;
_EARLY = 0.5
# and one that is said to have gone on for this many times its grant did not heed it.
_HEEDLESS = 2.0


class Verdict(IntEnum):
    """What became of a report."""

    BELIEVED = 0
    HELD = 1  # the policy does not know of it


@dataclass(slots=True, eq=False)
class Report:
    """What was told of a decision, and what the desk makes of it.

    Attributes:
        decision: Its number.
        recurrence: That it is part of, where one holder works on it; of all that were volunteered,
            :data:`VOLUNTEERS`.
        body: As the event has it.
        standing: What became of it.
        arm: Batch size by its place.
        end: How it ended.
        octaves: Batch size, as a logarithm to the base of two.
        log_epochs: To the target; NaN where that was not reached.
        log_costs: Of an epoch, by power limit; without a limit (-1), the mean over the run.
        epochs: That were trained.
        cost: Of everything; 0 where unknown.
        floor: Logarithm of what an epoch costs at least, where not even the first could be
            afforded; else minus infinity.
        early: Whether training is said to have failed though its grant does not explain it.
        times: How often its holder has said so, if it was not believed.
        accusers: Reports that contradict it, with the recurrences that they are part of.
        supporters: Likewise, those on the same batch size that agree with it.
    """

    decision: int
    recurrence: int
    body: Document
    standing: Verdict
    arm: int
    end: int
    octaves: float
    log_epochs: float
    log_costs: dict[int, float]
    epochs: float
    cost: float
    floor: float
    early: bool
    times: int = 1
    accusers: dict[Report, int] = field(default_factory=dict)
    supporters: dict[Report, int] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, decision: int, body: Document) -> Report:
        """Read an event's body."""
        action, end = body["action"], body["end"]
        epochs, cost = body.get("epochs", 0.0), body.get("cost", 0.0)
        reached = end == RunEnd.REACHED and epochs > 0 and cost > 0
        log_costs = {one[0]: math.log(job.cost.of(one[1], one[2])) for one in body["measured"]}
        if not log_costs and reached:
            log_costs[body["limit"]] = math.log(cost / epochs)
        return cls(
            decision=decision,
            recurrence=VOLUNTEERS if action.get("volunteered") else body["recurrence"],
            body=body,
            standing=Verdict.BELIEVED,
            arm=action["arm"],
            end=end,
            octaves=math.log2(action["batch_size"]),
            log_epochs=math.log(epochs) if reached else math.nan,
            log_costs=log_costs,
            epochs=epochs,
            cost=cost,
            floor=_floor(body),
            early=_is_early(job, body, math.exp(min(log_costs.values(), default=-math.inf))),
        )

    def repeats(self, other: Report) -> bool:
        """Whether the same holder has said the same before, of another run."""
        mine, its = (self.recurrence, self.arm, self.end), (other.recurrence, other.arm, other.end)
        return mine == its

    def compare(self, other: Report) -> None:
        """Note on both what they say of each other; no holder confirms itself."""
        if self.recurrence == other.recurrence == VOLUNTEERS:
            return  # they are many, so that one does not contradict itself
        said = opinion(self, other)
        both = not (self.early or other.early) and (said < 0 or self.end == other.end)
        for one, witness, vote in (
            (self, other, said),
            (other, self, said if both else opinion(other, self)),
        ):
            if vote < 0:
                one.accusers[witness] = witness.recurrence
            elif vote > 0 and one.arm == witness.arm and one.recurrence != witness.recurrence:
                one.supporters[witness] = witness.recurrence

    def forget(self, other: Report) -> None:
        """Another one is no longer there."""
        self.accusers.pop(other, None)
        self.supporters.pop(other, None)


def _floor(body: Document) -> float:
    granted = body["action"]["ceiling"]
    refused = body["end"] == RunEnd.STOPPED and not body.get("epochs") and not body["measured"]
    return math.log(granted) if refused and granted else -math.inf


def _is_early(job: Job, body: Document, epoch_cost: float) -> bool:
    end, cost, granted = body["end"], body.get("cost", 0.0), body["action"]["ceiling"]
    if end not in (RunEnd.EXHAUSTED, RunEnd.STOPPED):
        return False
    heedless = granted is not None and cost > _HEEDLESS * granted + epoch_cost
    if end == RunEnd.EXHAUSTED:
        return bool(heedless or body.get("epochs", 0.0) < job.max_epochs)
    return granted is None or bool(heedless or cost + epoch_cost < _EARLY * granted)


def opinion(report: Report, other: Report) -> int:
    """What another report says of one: 1 for, -1 against, 0 nothing."""
    alike = (report.arm, report.end) == (other.arm, other.end)
    if other.early:  # of one who gave up, nothing follows for those who did not
        return int(alike)
    apart, comparable = _cost_apart(report, other)
    room = _COST if report.arm == other.arm else 0.0
    too_far = apart > (room if comparable else room + _OTHER_LIMITS)  # never where it is NaN
    if too_far or _exclude_each_other(report, other):
        return -1
    if apart > room:
        return 0  # power limits may explain it, or not
    # What is claimed besides the cost of an epoch, only those who got as far can confirm.
    confirmed = report.end in (RunEnd.PROBED, RunEnd.ABANDONED) and not math.isnan(apart)
    return int(alike or confirmed or report.end == other.end == RunEnd.REACHED)


def _exclude_each_other(report: Report, other: Report) -> bool:
    """Whether one's epochs, or that it failed, cannot be if the other is true."""
    if report.end == other.end == RunEnd.REACHED:
        octaves = abs(report.octaves - other.octaves)
        near = EPOCHS + _EPOCHS_PER_OCTAVE * min(octaves, _OCTAVES)
        return abs(report.log_epochs - other.log_epochs) > near
    if report.arm == other.arm and (_is_refuted(report, other) or _is_refuted(other, report)):
        return True
    return _is_affordable(report, other) or _is_affordable(other, report)


def _is_affordable(refused: Report, other: Report) -> bool:
    """Whether another shows that the grant which did not do for an epoch would have done."""
    if refused.floor == -math.inf or not other.log_costs:
        return False
    octaves = other.octaves - refused.octaves
    room = _DEARER if octaves < 0 else _COST + _PER_OCTAVE * octaves
    return refused.floor > max(other.log_costs.values()) + room


def _is_refuted(fell_short: Report, done: Report) -> bool:
    """Whether a training is said to have failed that another shows to get there."""
    if done.end != RunEnd.REACHED:
        return False
    room = math.exp(EPOCHS)
    too_dear = fell_short.end == RunEnd.STOPPED and fell_short.cost > room * done.cost
    too_far = fell_short.epochs > room * done.epochs
    return fell_short.early or too_dear or too_far


def _cost_apart(report: Report, other: Report) -> tuple[float, bool]:
    """How far logarithms of an epoch's cost are apart beyond what batch sizes explain, or NaN.

    An epoch of a batch size twice as large takes half as many steps: it costs no less than half as
    much, and no more. The cost hangs on the power limit, too; if no limit is common to both, the
    closest two have to do. The second figure tells whether one is.
    """
    small, large = (other, report) if other.octaves < report.octaves else (report, other)
    octaves = large.octaves - small.octaves
    least, most = -_PER_OCTAVE * octaves, 0.0
    if octaves > 0:
        least, most = least - _LEANER, _DEARER
    bases, common = small.log_costs, []
    for limit, cost in large.log_costs.items():
        if limit in bases:
            rise = cost - bases[limit]
            common.append(max(rise - most, least - rise))
    if common:
        return common[0] if len(common) == 1 else statistics.median(common), True
    pairs = itertools.product(large.log_costs.values(), small.log_costs.values())
    apart = (max(cost - base - most, least - (cost - base)) for cost, base in pairs)
    return min(apart, default=math.nan), False
