"""What the training thread notes while it follows a plan."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from joulery.pipeline.problem import Instruction
from joulery.pipeline.rank_plan import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.pipeline.rank_plan import RankPlan

    # Returns once the device has got as far as the training thread had when it asked.
    Reached = Callable[[], object]

# The step of a mark that stands for the start of an iteration.
ITERATION = -1
# What is in force between iterations.
FULL_CLOCKS = Step(Instruction(-1, -1, "between iterations", -1), None, 0.0)


class Follow:
    """A plan made ready for the training thread."""

    def __init__(self, plan: RankPlan) -> None:
        self.plan = plan
        self.steps = steps = plan.steps
        self.index = {
            (s.instruction.stage, s.instruction.kind, s.instruction.microbatch): position
            for position, s in enumerate(steps)
        }
        clocks = [rate(step) for step in steps]
        pairs = list(itertools.pairwise(clocks))
        # Steps whose begin or end asks for something; the others need not wake anybody.
        self.rises = (*(after > before for before, after in pairs), False)
        self.changes = (*(before != after for before, after in pairs), True)
        self.acts_at_begin = tuple(
            rises or position == 0 or clocks[position] != clocks[position - 1]
            for position, rises in enumerate(self.rises)
        )


class Mark(NamedTuple):
    """What the training thread noted.

    Attributes:
        follow: The plan and what follows from it.
        iteration: Number of the iteration.
        step: Position of the step; -1 for the start of the iteration.
        began: Whether it begins or has ended.
        seconds: When.
        reached: Waits for the device to get there; None where it is there already.
    """

    follow: Follow
    iteration: int
    step: int
    began: bool
    seconds: float
    reached: Reached | None


def rate(step: Step) -> float:
    """What tells clocks apart, full ones being the highest."""
    return math.inf if step.hertz is None else step.hertz
