"""Decide which plan each pipeline follows, from how long its iterations take.

Data-parallel pipelines wait for each other after every iteration. How late one is shows in the time
at which its own instructions end, compared with its plan. Only lateness relative to the most
punctual pipeline counts: a model that is short for all pipelines makes none late. Where single
instructions take other times than profiled, the profile has drifted and the pipeline is planned
anew.

Slowing down waits for several iterations to agree, since single ones are often slow by chance.
Speeding up does not: nothing runs too fast by chance, and a job that waits for a pipeline which has
recovered loses time.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from joulery.pipeline.planning._problem import PipelineProblem
    from joulery.pipeline.runtime._controller import IterationTimes
    from joulery.pipeline.runtime._plan_cache import PlanCache

    Work = tuple[int, str]

# Iterations whose median decides whether a pipeline is late, and how many of them are needed; by
# hand.
_WINDOW, _LEAST = 5, 3
# Share behind the others from which on a pipeline is late, and below which it no longer is; by
# hand.
_LATE, _PUNCTUAL = 0.03, 0.015
# Share by which the slowdown must change before new plans are given out; by hand.
_STEP = 0.01
# Iterations between a report and the first one of a new plan, so that every rank has it in time; by
# hand.
_LEAD_ITERATIONS = 2
# Iterations whose reports may be incomplete at a time; older ones are given up; by hand.
_MAX_OPEN = 64
# Ratios of measured to planned time that are kept, and needed, before drift is looked for; by hand.
_DRIFT_WINDOW, _DRIFT_LEAST = 64, 12
# Beyond this share, and beyond chance by so many standard errors, a profile is out of date; by
# hand.
_DRIFT_SHARE, _DRIFT_SIGMAS = 0.03, 4.0
# From the median absolute deviation to a standard error of the median, for normal noise.
_SIGMA_OF_MAD, _MEDIAN_PENALTY = 1.4826, 1.2533


class LatenessTracker:
    """Lateness of each pipeline.

    Attributes:
        factors: Ratio of actual to planned time of each pipeline; 1 for those in time.
    """

    def __init__(self, pipelines: int) -> None:
        if pipelines < 1:
            raise InvalidValueError(f"cannot run {pipelines} pipelines", remedy="give 1 or more")
        self.factors = [1.0] * pipelines
        self._ratios: list[deque[float]] = [deque(maxlen=_WINDOW) for _ in range(pipelines)]
        self._late = [False] * pipelines
        # Iterations until measurements may overrule a notice, which may come before its cause.
        self._noticed = [0] * pipelines

    def observe(self, pipeline: int, ratio: float) -> None:
        """Add how many times as long as planned a pipeline's instructions took."""
        ratios = self._ratios[pipeline]
        if self._noticed[pipeline]:
            self._noticed[pipeline] -= 1
        elif self._late[pipeline] and ratio < (1 - _PUNCTUAL) * statistics.median(ratios):
            ratios.clear()
            ratios.extend([ratio] * (_LEAST - 1))
        ratios.append(ratio)
        self._update()

    def notice(self, pipeline: int, factor: float) -> None:
        """Set a pipeline's slowdown until measurements take over; 1 when it has recovered."""
        if not 0 <= pipeline < len(self._ratios):
            raise InvalidValueError(
                f"there is no pipeline {pipeline}",
                remedy=f"they are numbered 0 to {len(self._ratios) - 1}",
            )
        if finite(factor, "factor of a straggler", minimum=0.0) < 1:
            raise InvalidValueError(
                f"slowdown factor {factor:g} is below 1", remedy="give a factor from 1 on"
            )
        usual = self._usual(pipeline) or 1.0
        self._ratios[pipeline].extend([usual * factor] * _WINDOW)
        self._late[pipeline] = factor > 1
        self._noticed[pipeline] = _LEAST if factor > 1 else 0
        self._update()
        if factor == 1.0:
            self._ratios[pipeline].clear()

    def _update(self) -> None:
        for pipeline, now in enumerate(self.factors):
            factor = self._factor(pipeline)
            self._late[pipeline] = factor > 1 + (_PUNCTUAL if self._late[pipeline] else _LATE)
            if not self._late[pipeline]:
                self.factors[pipeline] = 1.0
            elif abs(factor / now - 1) > _STEP:
                self.factors[pipeline] = factor

    def _factor(self, pipeline: int) -> float:
        """Lateness of a pipeline against the others, as a factor."""
        ratios, usual = self._ratios[pipeline], self._usual(pipeline)
        if len(ratios) < _LEAST:
            return 1.0
        if usual is None:
            # There is no other pipeline to compare with: only a notice counts.
            return statistics.median(ratios) if self._late[pipeline] else 1.0
        return statistics.median(ratios) / usual

    def _usual(self, pipeline: int) -> float | None:
        """Ratio of actual to planned time of the most punctual of the others."""
        rivals = (
            statistics.median(ratios)
            for rival, ratios in enumerate(self._ratios)
            if rival != pipeline and len(ratios) >= _LEAST
        )
        return min(rivals, default=None)


def _drift(ratios: Collection[float]) -> float:
    """The median ratio of measured to planned times if it differs beyond chance, else 1."""
    middle = statistics.median(ratios)
    spread = statistics.median(abs(ratio - middle) for ratio in ratios)
    error = _MEDIAN_PENALTY * _SIGMA_OF_MAD * spread / math.sqrt(len(ratios))
    return middle if abs(middle - 1) > max(_DRIFT_SHARE, _DRIFT_SIGMAS * error) else 1.0


def _factors(before: PipelineProblem, after: PipelineProblem) -> dict[Work, float]:
    """Ratio of the time of work in one problem to that in the other, where they match."""
    return {
        (item.stage, item.kind): after.profiles[profile].points[0].seconds
        / before.profiles[profile].points[0].seconds
        for item, profile in zip(before.instructions, before.profile_of.tolist(), strict=True)
        if profile < len(after.profiles)
    }


def _recovered(times: IterationTimes, factors: Mapping[Work, float]) -> bool:
    """Whether some work took less time than planned, were it planned ``factors`` times as long."""
    return any(
        _drift([ratio / factors.get(work, 1.0) for ratio in ratios]) < 1
        for work, ratios in times.ratios.items()
        if ratios
    )


@dataclass(slots=True)
class _Pipeline:
    """State of one pipeline."""

    first: PlanCache
    plans: PlanCache
    factor: float = 1.0
    # First iteration that follows the plans, and how many times as long as before they take work
    # to be: earlier iterations are still measured by the plans before.
    since: int = 0
    factors: Mapping[Work, float] = field(default_factory=dict)
    # Measured over planned seconds of its latest instructions.
    ratios: defaultdict[Work, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_DRIFT_WINDOW))
    )
    # By iteration: seconds by rank.
    open: dict[int, dict[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanAssignment:
    """A pipeline's new plan: that of ``plans`` for a slowdown, from an iteration on."""

    pipeline: int
    plans: PlanCache
    factor: float
    from_iteration: int


class StragglerPolicy:
    """Keeps all pipelines at the pace of the slowest.

    Args:
        plans: Plans that all pipelines start with.
        pipelines: Number of data-parallel copies.

    Attributes:
        newest_iteration: Highest iteration that was reported; -1 before the first.
        pipelines: Number of data-parallel copies.
        ranks: Number of ranks of each.
    """

    def __init__(self, plans: PlanCache, pipelines: int = 1) -> None:
        self.newest_iteration = -1
        self.pipelines = pipelines
        self.ranks = plans.problem.ranks
        self._all = [_Pipeline(plans, plans) for _ in range(pipelines)]
        self._returned: list[PlanAssignment] = []
        self._lateness = LatenessTracker(pipelines)

    @property
    def factors(self) -> tuple[float, ...]:
        """Slowdown of each pipeline against its fastest plan, to avoid waiting."""
        return tuple(state.factor for state in self._all)

    def current(self, pipeline: int) -> PlanAssignment | None:
        """The plan for a rank that joins late; None if that still is the first plan."""
        state = self._all[pipeline]
        if state.factor == 1.0 and state.plans is state.first:
            return None
        return PlanAssignment(pipeline, state.plans, state.factor, 0)

    def report(self, pipeline: int, rank: int, times: IterationTimes) -> None:
        """Add how an iteration went on one rank."""
        state = self._all[pipeline]
        self.newest_iteration = max(self.newest_iteration, times.iteration)
        early = times.iteration < state.since
        if state.plans is not state.first and _recovered(times, state.factors if early else {}):
            # What made it slow is over. Should some of it remain, it is found again.
            self._returned.append(self.replace_plans(pipeline, state.first))
            return
        if early:
            return
        for work, ratios in times.ratios.items():
            state.ratios[work].extend(r for r in ratios if math.isfinite(r) and r > 0)
        by_rank = state.open.setdefault(times.iteration, {})
        by_rank[rank] = times.seconds
        if len(by_rank) == self.ranks:
            state.open.pop(times.iteration)
            # The rank that ends last determines how long the pipeline took.
            self._lateness.observe(pipeline, max(by_rank.values()) / times.planned_seconds)
        while len(state.open) > _MAX_OPEN:
            state.open.pop(min(state.open))

    def notice(self, pipeline: int, factor: float) -> None:
        """Set that a pipeline is ``factor`` times as slow as planned; 1 if it recovered."""
        self._lateness.notice(pipeline, factor)

    def decide(self) -> list[PlanAssignment]:
        """The plans that change."""
        natural = [
            state.plans.fastest_seconds * factor
            for state, factor in zip(self._all, self._lateness.factors, strict=True)
        ]
        pace = max(natural)
        updates = (
            self._assign(pipeline, pace / seconds) for pipeline, seconds in enumerate(natural)
        )
        returned, self._returned = self._returned, []
        return [*returned, *(assignment for assignment in updates if assignment is not None)]

    def drifted(self, pipeline: int) -> dict[Work, float]:
        """Instructions of a pipeline that take other times than planned, with their factors."""
        ratios_by_work = self._all[pipeline].ratios.items()
        factors = {
            work: _drift(ratios) for work, ratios in ratios_by_work if len(ratios) >= _DRIFT_LEAST
        }
        return {work: factor for work, factor in factors.items() if factor != 1.0}

    def plans_of(self, pipeline: int) -> PlanCache:
        """The plans of a pipeline."""
        return self._all[pipeline].plans

    def replace_plans(self, pipeline: int, plans: PlanCache) -> PlanAssignment:
        """Use other plans for a pipeline, made for its profile as it is now."""
        since, before = self.newest_iteration + _LEAD_ITERATIONS, self._all[pipeline]
        factors = _factors(before.plans.problem, plans.problem)
        self._all[pipeline] = _Pipeline(before.first, plans, since=since, factors=factors)
        self._lateness.notice(pipeline, 1.0)
        return PlanAssignment(pipeline, plans, 1.0, since)

    def _assign(self, pipeline: int, factor: float) -> PlanAssignment | None:
        state = self._all[pipeline]
        # What differs by less than the noise of profiles is the same pace.
        target = factor if factor > 1 + _PUNCTUAL else 1.0
        if target == state.factor or (
            target != 1.0 and math.isclose(target, state.factor, rel_tol=_STEP)
        ):
            return None
        state.factor = target
        return PlanAssignment(
            pipeline, state.plans, target, self.newest_iteration + _LEAD_ITERATIONS
        )
