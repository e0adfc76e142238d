"""Plans fit for hardware, ready for any pace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.pipeline.dwell import Dwell, held
from joulery.pipeline.planner import plan
from joulery.pipeline.rank_plan import rank_plans
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.pipeline.dwell import HeldPlan
    from joulery.pipeline.problem import Problem
    from joulery.pipeline.rank_plan import RankPlan

# Paces are told apart by this share; one in between gets the faster plan.
_GRID = 0.005
_LAST_DIGITS = 1e-9


class Paces:
    """What every rank does when somebody is so many times as slow.

    Args:
        problem: The pipeline.
        dwell: How long a clock must be held.
        devices: Devices of a rank whose energy is counted together.

    Attributes:
        problem: The pipeline.
        fastest_seconds: An iteration at full speed.
        slowest_factor: Beyond this pace nothing more is saved.
    """

    def __init__(self, problem: Problem, dwell: Dwell | None = None, devices: int = 1) -> None:
        self.problem = problem
        self._dwell = dwell or Dwell()
        self._devices = devices
        self._frontier = plan(problem)
        self.fastest_seconds = self._frontier.fastest_seconds
        self.slowest_factor = self._frontier.slowest_seconds / self.fastest_seconds
        self._held: dict[int, HeldPlan] = {}
        self._ranks: dict[int, tuple[RankPlan, ...]] = {}

    def held(self, factor: float = 1.0) -> HeldPlan:
        """The plan at a pace, ``factor`` times as slow as the fastest."""
        number = self._number(factor)
        if number not in self._held:
            deadline = self.fastest_seconds * (1 + _GRID) ** number
            self._held[number] = held(self.problem, self._frontier.at(deadline), self._dwell)
        return self._held[number]

    def ranks(self, factor: float = 1.0) -> tuple[RankPlan, ...]:
        """The share of every rank at a pace: a look-up once it was asked for or prepared."""
        number = self._number(factor)
        if number not in self._ranks:
            made = self.held(factor).plan
            self._ranks[number] = rank_plans(self.problem, made, self._devices)
        return self._ranks[number]

    def prepare(self, up_to_factor: float = 1.5) -> None:
        """Make all plans up to a pace ahead of time."""
        for number in range(self._number(up_to_factor) + 1):
            self.ranks((1 + _GRID) ** number)

    def of(self, problem: Problem) -> Paces:
        """Plans of another pipeline for the same hardware."""
        return Paces(problem, self._dwell, self._devices)

    def _number(self, factor: float) -> int:
        if finite(factor, "factor of a pace", minimum=0.0) < 1:
            raise InvalidValueError(
                f"a pace {factor:g} times as slow is too fast", remedy="give a factor from 1 on"
            )
        within = min(factor, self.slowest_factor)
        return math.floor(math.log(within * (1 + _LAST_DIGITS)) / math.log1p(_GRID))
