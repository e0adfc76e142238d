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
        self._made: dict[tuple[int, bool], tuple[HeldPlan, tuple[RankPlan, ...]]] = {}

    def held(self, factor: float = 1.0, *, waits: bool = True) -> HeldPlan:
        """The plan of an iteration ``factor`` times as slow as the fastest.

        Args:
            factor: Slowdown, from 1 on.
            waits: Whether others set the pace, so that the pipeline may also wait for them; if not
                the clocks themselves make it that slow, which also lowers its power.
        """
        return self._at(factor, waits=waits)[0]

    def ranks(self, factor: float = 1.0, *, waits: bool = True) -> tuple[RankPlan, ...]:
        """The share of every rank in that plan."""
        return self._at(factor, waits=waits)[1]

    def paces(self, fastest_seconds: float) -> list[float]:
        """Iteration times from a given one on that lead to different plans, by clocks alone."""
        longest = self.fastest_seconds * self.limit(math.inf, waits=False)
        count = math.ceil(math.log(max(1.0, longest / fastest_seconds)) / math.log1p(_GRID))
        # A little more, so that each leads to its very plan.
        times = [fastest_seconds * (1 + _GRID) ** k * (1 + _LAST_DIGITS) for k in range(count)]
        return [*times, longest]

    def watts(self, seconds: float) -> float:
        """Mean power of one pipeline that the clocks themselves make that slow."""
        plan = self.held(max(1.0, seconds / self.fastest_seconds), waits=False).plan
        return plan.joules / plan.seconds / self.problem.config.replicas

    def seconds_under(self, watts: float) -> float:
        """The shortest iteration time in whose plan a device draws so little in any second.

        Of ranks that draw more than others the mean counts. Where the lowest clocks draw more it is
        the time under those.
        """
        low, high = 0, self._number(self.limit(math.inf, waits=False))
        while low < high:
            middle = (low + high) // 2
            ranks = self.ranks((1 + _GRID) ** middle, waits=False)
            if sum(plan.peak_watts or 0.0 for plan in ranks) <= watts * len(ranks):
                high = middle
            else:
                low = middle + 1
        return self.fastest_seconds * (1 + _GRID) ** low * (1 + _LAST_DIGITS)

    def reachable(self, seconds: float) -> float:
        """The iteration time, if clocks alone lead to it.

        Raises:
            InfeasibleError: The fastest clocks take longer, or the lowest less.
        """
        return self._plan.reachable(seconds)

    def limit(self, factor: float, *, waits: bool) -> float:
        """The slowdown, or the largest that plans reach; arguments as for ``held``."""
        if factor <= self.slowest_factor:
            return factor
        longest = self.fastest_seconds if waits else self._plan.longest_seconds
        return min(factor, max(self.slowest_factor, longest / self.fastest_seconds))

    def prepare(self, up_to_factor: float = 1.5) -> None:
        """Make all plans up to a slowdown ahead of time."""
        for number in range(self._number(min(up_to_factor, self.slowest_factor)) + 1):
            self.ranks((1 + _GRID) ** number)

    def rescaled(self, factors: Mapping[tuple[int, str], float]) -> PlanCache:
        """Plans of the pipeline with the time of some work (stage, kind) changed."""
        return PlanCache(PipelinePlan(self.problem.rescaled(factors)), self._hold_seconds)

    def _at(self, factor: float, *, waits: bool) -> tuple[HeldPlan, tuple[RankPlan, ...]]:
        """A look-up once it was asked for or prepared."""
        waits |= factor <= self.slowest_factor
        number = self._number(self.limit(factor, waits=waits))
        key = number, waits
        if key not in self._made:
            seconds = self.fastest_seconds * (1 + _GRID) ** number
            pipeline = self._plan if waits else self._plan.slowed(seconds)
            holding = hold_clocks(pipeline, pipeline.at(seconds), self._hold_seconds)
            self._made[key] = holding, rank_plans(self.problem, holding.plan)
        return self._made[key]

    def _number(self, factor: float) -> int:
        if finite(factor, "slowdown", minimum=0.0) < 1:
            raise InvalidValueError(
                f"slowdown factor {factor:g} is below 1", remedy="give a factor from 1 on"
            )
        return math.floor(math.log(factor * (1 + _LAST_DIGITS)) / math.log1p(_GRID))
