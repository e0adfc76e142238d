"""Early stopping: a run ends at its target, at its decision's cost limit, or after all epochs."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from joulery.jobs.policies import ActionKind, RunEnd
from joulery.units import human

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.jobs import Decision, Job
    from joulery.power import ProcessGroup
    from joulery.training._energy import EnergyAccount

_log = logging.getLogger("joulery")

_CHECK_SECONDS = 5.0  # by hand: least time between two checks of the cost


class TargetTracker:
    """The metrics of one attempt against their target.

    Attributes:
        reached: Whether the target was reached.
        diverged: Whether a metric was not finite: such a training leads nowhere.
        reports: Number of metrics reported.
    """

    def __init__(self, target: float | None, *, higher_is_better: bool = True) -> None:
        self.has_target = target is not None
        self.reached = False
        self.diverged = False
        self.reports = 0
        self._target = target
        self._higher_is_better = higher_is_better

    def report(self, metric: Any, *, higher_is_better: bool | None = None) -> bool:
        """Take a metric, a number or anything that converts to one; whether the target is reached.

        Raises:
            TypeError, ValueError: It does not convert to a number.
        """
        value = float(metric)
        if higher_is_better is not None:
            self._higher_is_better = higher_is_better
        self.reports += 1
        if not math.isfinite(value):
            self.diverged = not self.reached
        elif self._target is not None:
            above = value >= self._target if self._higher_is_better else value <= self._target
            self.reached = self.reached or above
        return self.reached

    def synchronize(self, group: ProcessGroup | None) -> None:
        """Take over rank 0's metrics on every rank; every rank has to call this."""
        if group is not None:
            state = self.reached, self.diverged, self.reports
            self.reached, self.diverged, self.reports = group.broadcast(state)

    @property
    def is_over(self) -> bool:
        """Whether further training is of no use."""
        return self.reached or self.diverged

    def renewed(self) -> TargetTracker:
        """A tracker of the same target for another attempt."""
        return TargetTracker(self._target, higher_is_better=self._higher_is_better)


class CostLimit:
    """The cost at which an attempt is stopped."""

    def __init__(self, decision: Decision, job: Job, account: EnergyAccount, clock: Clock) -> None:
        self._decision = decision
        self._cost = job.cost
        self._account = account
        self._clock = clock
        self._next_check = -math.inf

    def is_due(self) -> bool:
        """Whether it is time to ask ``exceeded_within_epoch``; costs next to nothing."""
        return self._clock.now() >= self._next_check

    def exceeded_within_epoch(self) -> str | None:
        """The reason to leave the epoch under way; None while it may go on. Of one process only."""
        cost = float(self._cost.of(*self._account.here()))
        limit = self._decision.cost_ceiling_joules
        if not cost > limit:
            # The cost grows by max_watts at most, so it cannot be there earlier.
            seconds = (limit - cost) / self._cost.max_watts if self._cost.max_watts > 0 else 0.0
            wait = seconds if math.isfinite(seconds) else 0.0
            self._next_check = self._clock.now() + max(_CHECK_SECONDS, wait)
            return None
        return (
            f"stopped at its cost limit within epoch {self._account.epochs + 1}, at "
            f"{human(cost, 'J')} of at most {human(limit, 'J')} {self._what()}"
        )

    def exceeded_by_next_epoch(self) -> str | None:
        """The reason to begin no other epoch, by the last one's cost; every rank has to ask."""
        account = self._account
        cost = float(self._cost.of(*account.total()))
        if not account.epochs:
            return None
        cost += float(self._cost.of(*account.last_epoch()))
        limit = self._decision.cost_ceiling_joules
        if not cost > limit:
            return None
        return (
            f"stopped at its cost limit after {account.epochs} epochs: another one would make "
            f"{human(cost, 'J')} of at most {human(limit, 'J')} {self._what()}"
        )

    def _what(self) -> str:
        return f"(batch size {self._decision.batch_size}: {self._decision.reason})"


class Ending(NamedTuple):
    """The end of an attempt.

    Attributes:
        end: End as it is reported.
        stop_reason: Reason why it ended before its target; None if it did not.
        is_last: Whether no other attempt may follow.
    """

    end: RunEnd
    stop_reason: str | None = None
    is_last: bool = False


def ending_of(
    kind: ActionKind,
    target: TargetTracker,
    stop_reason: str | None,
    epochs: int,
    *,
    abandoned: bool,
) -> Ending:
    """The end of an attempt."""
    if kind == ActionKind.PROBE:
        return Ending(RunEnd.ABANDONED if abandoned else RunEnd.PROBED, stop_reason)
    if target.reached:
        return Ending(RunEnd.REACHED, stop_reason)
    if target.diverged:
        return Ending(RunEnd.EXHAUSTED, "diverged: the metric is not finite")
    if stop_reason is not None:
        return Ending(RunEnd.STOPPED, stop_reason)
    return Ending(RunEnd.ABANDONED) if abandoned else _after_all_epochs(target, epochs)


def _after_all_epochs(target: TargetTracker, epochs: int) -> Ending:
    if not target.has_target:
        return Ending(RunEnd.REACHED)  # all of its epochs were the target
    if not target.reports:
        _log.warning(
            "joulery: nothing is learned from this run, since no metric was reported "
            "(call run.report(metric) after every epoch)"
        )
        return Ending(RunEnd.ABANDONED)
    reason = f"the target was not reached within {epochs} epochs"
    return Ending(RunEnd.EXHAUSTED, reason, is_last=True)
