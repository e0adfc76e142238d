"""Decide which plan each pipeline follows, from what its ranks report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.pipeline.drift import DriftWatch
from joulery.pipeline.straggler import LatenessRules, PaceWatch
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.pipeline.paces import Paces

    Work = tuple[int, str]

# Iterations whose reports may be incomplete at a time; older ones are given up.
_MOST_OPEN = 64


@dataclass(slots=True)
class _Pipeline:
    """What is known of one pipeline."""

    paces: Paces
    factor: float = 1.0
    version: int = 0
    drift: DriftWatch = field(default_factory=DriftWatch)
    # By iteration: seconds by rank, and what was planned.
    open: dict[int, tuple[dict[int, float], float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A new plan for a pipeline.

    Attributes:
        pipeline: Which.
        paces: Its plans.
        factor: The pace to take from them.
        from_iteration: The first iteration that follows it.
    """

    pipeline: int
    paces: Paces
    factor: float
    from_iteration: int


class PaceSetting:
    """Keeps all pipelines at the pace of the slowest.

    Args:
        paces: The plans that all pipelines start with.
        pipelines: How many data-parallel copies there are.
        rules: When a pipeline counts as late.
        lead_iterations: Iterations between a report and the first one of a new plan, so that
            every rank knows in time.
    """

    def __init__(
        self,
        paces: Paces,
        pipelines: int = 1,
        rules: LatenessRules | None = None,
        lead_iterations: int = 2,
    ) -> None:
        self.newest_iteration = -1
        self._rules = rules or LatenessRules()
        self._lead = lead_iterations
        self._ranks = len(paces.problem.blocking_watts)
        self._all = [_Pipeline(paces) for _ in range(pipelines)]
        self._watch = PaceWatch(pipelines, self._rules)
        self._outside_seconds = 0.0

    @property
    def pipelines(self) -> int:
        """How many there are."""
        return len(self._all)

    @property
    def ranks(self) -> int:
        """Ranks of each."""
        return self._ranks

    @property
    def factors(self) -> tuple[float, ...]:
        """How many times as slow as its fastest each pipeline runs, so as not to wait."""
        return tuple(one.factor for one in self._all)

    def current(self, pipeline: int) -> Assignment | None:
        """What a rank that joins late must know; None if it still is the first plan."""
        one = self._all[pipeline]
        if one.factor == 1.0 and not one.version:
            return None
        return Assignment(pipeline, one.paces, one.factor, 0)

    def done(
        self,
        pipeline: int,
        rank: int,
        iteration: int,
        seconds: tuple[float, float],
        ratios: Mapping[Work, Sequence[float]],
    ) -> None:
        """Take a rank's report of an iteration.

        Args:
            pipeline: Whose.
            rank: Whose.
            iteration: Its number.
            seconds: Measured, and planned.
            ratios: Measured over planned seconds of instructions, by stage and kind.
        """
        one = self._all[pipeline]
        self.newest_iteration = max(self.newest_iteration, iteration)
        for (stage, kind), found in ratios.items():
            one.drift.observe(stage, kind, found)
        by_rank, _ = one.open.setdefault(iteration, ({}, seconds[1]))
        by_rank[rank] = seconds[0]
        if len(by_rank) == self._ranks:
            one.open.pop(iteration)
            # The rank that ends last says how long the pipeline took.
            self._watch.observe(pipeline, max(by_rank.values()), seconds[1])
        while len(one.open) > _MOST_OPEN:
            one.open.pop(min(one.open))

    def notice(self, pipeline: int, factor: float) -> None:
        """Be told that a pipeline is ``factor`` times as slow as planned; 1 if it recovered."""
        if factor == 1.0:
            self._watch.recovered(pipeline)
        else:
            self._watch.notice(pipeline, factor)

    def wait_for(self, seconds: float) -> None:
        """Be told of something outside that takes so long per iteration anyway; 0 for nothing."""
        self._outside_seconds = finite(seconds, "seconds of an iteration", minimum=0.0)

    def decide(self) -> list[Assignment]:
        """The plans that change."""
        factors = self._watch.factors
        natural = [
            one.paces.fastest_seconds * factor
            for one, factor in zip(self._all, factors, strict=True)
        ]
        pace = max(*natural, self._outside_seconds)
        return [
            assignment
            for pipeline, own in enumerate(natural)
            if (assignment := self._assigned(pipeline, pace / own)) is not None
        ]

    def drifted(self, pipeline: int) -> dict[Work, float]:
        """What of a pipeline takes other times than planned, and how many times as long."""
        return self._all[pipeline].drift.factors()

    def paces_of(self, pipeline: int) -> Paces:
        """The plans of a pipeline."""
        return self._all[pipeline].paces

    def replan(self, pipeline: int, paces: Paces) -> Assignment:
        """Use other plans for a pipeline, made for its profile as it is now."""
        one = self._all[pipeline]
        one.paces, one.factor = paces, 1.0
        one.version += 1
        one.drift.forget()
        one.open.clear()
        self._watch.recovered(pipeline)
        return Assignment(pipeline, paces, 1.0, self.newest_iteration + self._lead)

    def _assigned(self, pipeline: int, factor: float) -> Assignment | None:
        one = self._all[pipeline]
        # What differs by less than the noise of profiles is the same pace.
        wanted = factor if factor > 1 + self._rules.punctual else 1.0
        if wanted == one.factor or (
            wanted != 1.0 and math.isclose(wanted, one.factor, rel_tol=self._rules.step)
        ):
            return None
        one.factor = wanted
        return Assignment(pipeline, one.paces, wanted, self.newest_iteration + self._lead)
