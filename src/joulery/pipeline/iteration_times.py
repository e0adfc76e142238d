"""How long iterations and their instructions take, from the marks of the training thread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.pipeline.marks import ITERATION

if TYPE_CHECKING:
    from joulery.pipeline.marks import Mark

# A change this much shorter than a step hardly alters the step's time.
_SHORT_CHANGE = 0.15


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """How an iteration went on one rank.

    Attributes:
        iteration: Its number, from 0.
        seconds: From its start to the end of the rank's last instruction.
        planned_seconds: Until the pipeline's last instruction, as planned.
        ratios: By stage and kind: measured over planned seconds of instructions whose clock was
            in force throughout.
    """

    iteration: int
    seconds: float
    planned_seconds: float
    ratios: dict[tuple[int, str], tuple[float, ...]]


class Times:
    """Gathers how long things took, for one iteration after the other."""

    def __init__(self) -> None:
        self._began = math.nan
        self._step: tuple[int, float] | None = None
        self._ratios: dict[tuple[int, str], list[float]] = {}

    def add(self, mark: Mark, now: float, set_seconds: float) -> IterationTimes | None:
        """Note a mark; the figures of the iteration if it was its last.

        Args:
            mark: What happened.
            now: When.
            set_seconds: How long a clock takes to change.
        """
        if mark.step == ITERATION:
            self._began, self._ratios = now, {}
            return None
        if mark.began:
            self._step = (mark.step, now)
            return None
        steps = mark.follow.steps
        step = steps[mark.step]
        begun, self._step = self._step, None
        if begun is not None and begun[0] == mark.step and _ran_as_planned(mark, set_seconds):
            key = (step.instruction.stage, step.instruction.kind)
            self._ratios.setdefault(key, []).append((now - begun[1]) / step.seconds)
        if mark.step + 1 < len(steps) or math.isnan(self._began):
            return None
        return IterationTimes(
            mark.iteration,
            now - self._began,
            mark.follow.plan.seconds,
            {key: tuple(found) for key, found in self._ratios.items()},
        )


def _ran_as_planned(mark: Mark, set_seconds: float) -> bool:
    """Whether the step's own clock was in force for about all of it."""
    steps, index = mark.follow.steps, mark.step
    unchanged = index > 0 and not (mark.follow.changes[index - 1] or mark.follow.rises[index])
    return unchanged or set_seconds < _SHORT_CHANGE * steps[index].seconds
