"""How an attempt ended, for the one who told what to run, and in words."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from joulery.jobs.policies.base import ActionKind, RunEnd

if TYPE_CHECKING:
    from joulery.training.attempt import Attempt
    from joulery.training.goal import Goal

_log = logging.getLogger("joulery")


class Ending(NamedTuple):
    """How an attempt ended.

    Attributes:
        end: As it is reported.
        stopped: Why it ended before its target, in words; None if it did not.
        is_last: Whether its owner allows no other attempt after it.
    """

    end: RunEnd
    stopped: str | None = None
    is_last: bool = False


def ending_of(attempt: Attempt, goal: Goal, stopped: str | None, *, abandoned: bool) -> Ending:
    """How an attempt ended.

    Args:
        attempt: That has ended.
        goal: When it is good enough, with what was told.
        stopped: Why it was stopped; None if it was not.
        abandoned: Whether the loop was left.
    """
    if attempt.decision.kind == ActionKind.PROBE:
        return Ending(RunEnd.ABANDONED if abandoned else RunEnd.PROBED, stopped)
    if goal.reached:
        return Ending(RunEnd.REACHED, stopped)
    if goal.diverged:
        return Ending(RunEnd.EXHAUSTED, "diverged: the metric is no finite number")
    if stopped is not None:
        return Ending(RunEnd.STOPPED, stopped)
    return Ending(RunEnd.ABANDONED) if abandoned else _after_all_epochs(attempt, goal)


def _after_all_epochs(attempt: Attempt, goal: Goal) -> Ending:
    if not goal.has_target:
        return Ending(RunEnd.REACHED)  # all of its epochs were the goal
    if not goal.told:
        _log.warning(
            "joulery: nothing is learned from this run, since no metric was reported "
            "(call run.report(metric) after every epoch)"
        )
        return Ending(RunEnd.ABANDONED)
    why = f"the target was not reached within {attempt.epochs} epochs"
    return Ending(RunEnd.EXHAUSTED, why, is_last=True)
