"""Held plans of a pipeline for any slowdown, ready for a change of pace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.pipeline.planning._holding import MINIMUM_HOLD_SECONDS, hold_clocks
from joulery.pipeline.planning._planner import PipelinePlan
from joulery.pipeline.planning._rank_plan import rank_plans
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.pipeline.planning._holding import HeldPlan
    from joulery.pipeline.planning._rank_plan import RankPlan

# Slowdowns that differ by less share a plan, the faster one; by hand.
_GRID = 0.005
# Rounding of quotients of times.
_LAST_DIGITS = 1e-9


class PlanCache:
    """The plan of every rank for an iteration slowed down by any factor.

    Args:
        plan: Plans of the pipeline.
        hold_seconds: Minimum hold time of a clock.

    Attributes:
        problem: Pipeline that was planned.
        fastest_seconds: Time of an iteration at full speed.
        slowest_factor: Slowdown beyond which nothing more is saved.
    """

    def __init__(self, plan: PipelinePlan, hold_seconds: float = MINIMUM_HOLD_SECONDS) -> None:
        self.problem = plan.problem
        self._plan = plan
        self._hold_seconds = hold_seconds
        self.fastest_seconds = plan.fastest_seconds
        self.slowest_factor = plan.slowest_seconds / plan.fastest_seconds
        self._made: dict[int, tuple[HeldPlan, tuple[RankPlan, ...]]] = {}

    def held(self, factor: float = 1.0) -> HeldPlan:
        """The plan of an iteration ``factor`` times as slow as the fastest."""
        return self._at(factor)[0]

    def ranks(self, factor: float = 1.0) -> tuple[RankPlan, ...]:
        """The share of every rank in that plan."""
        return self._at(factor)[1]

    def prepare(self, up_to_factor: float = 1.5) -> None:
        """Make all plans up to a slowdown ahead of time."""
        for number in range(self._number(up_to_factor) + 1):
            self.ranks((1 + _GRID) ** number)

    def rescaled(self, factors: Mapping[tuple[int, str], float]) -> PlanCache:
        """Plans of the pipeline with the time of some work (stage, kind) changed."""
        return PlanCache(PipelinePlan(self.problem.rescaled(factors)), self._hold_seconds)

    def _at(self, factor: float) -> tuple[HeldPlan, tuple[RankPlan, ...]]:
        """A look-up once it was asked for or prepared."""
        number = self._number(factor)
        if number not in self._made:
            plan = self._plan.at(self.fastest_seconds * (1 + _GRID) ** number)
            holding = hold_clocks(self._plan, plan, self._hold_seconds)
            self._made[number] = holding, rank_plans(self.problem, holding.plan)
        return self._made[number]

    def _number(self, factor: float) -> int:
        if finite(factor, "slowdown", minimum=0.0) < 1:
            raise InvalidValueError(
                f"slowdown factor {factor:g} is below 1", remedy="give a factor from 1 on"
            )
        within = min(factor, self.slowest_factor)
        return math.floor(math.log(within * (1 + _LAST_DIGITS)) / math.log1p(_GRID))
