"""Savings of plans against full clocks, the default without a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.pipeline.planning._planner import ClockPlan, PipelinePlan


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """An iteration time to plan for.

    Attributes:
        name: Name to show.
        seconds: Iteration time; that of full clocks unless given.
        waits: Whether the next iteration starts at the deadline and not before, because others set
            the pace.
    """

    name: str
    seconds: float | None = None
    waits: bool = True


EQUAL_TIME = PlanTarget("equal time")


@dataclass(frozen=True, slots=True)
class Saving:
    """A plan for one target, compared with full clocks.

    Attributes:
        name: Name of the target.
        seconds: Time at which the iteration ends for all ranks.
        plan: Planned iteration.
        joules: Energy of the plan, with waiting until ``seconds``.
        full_clocks_joules: Energy at full clocks, with waiting for others if they set the pace.
        lower_bound_joules: Energy that no clocks go below, even clocks in between.
    """

    name: str
    seconds: float
    plan: ClockPlan
    joules: float
    full_clocks_joules: float
    lower_bound_joules: float

    @property
    def saved(self) -> float:
        """Share of the energy at full clocks."""
        return 1 - self.joules / self.full_clocks_joules

    @property
    def gap(self) -> float:
        """Share of energy above the lower bound."""
        # A plan on the bound may come out below it by the rounding of sums.
        return max(0.0, self.joules / self.lower_bound_joules - 1)


def plan_savings(
    pipeline: PipelinePlan, targets: Iterable[PlanTarget] = (EQUAL_TIME,)
) -> tuple[Saving, ...]:
    """Savings of a pipeline's plans, one entry per target.

    Raises:
        InfeasibleError: The fastest clocks take longer than a deadline.
    """
    full = pipeline.full_clocks
    found = []
    for wanted in targets:
        deadline = full.seconds if wanted.seconds is None else wanted.seconds
        plan = pipeline.at(deadline) if wanted.waits else pipeline.best_by(deadline)
        until = deadline if wanted.waits else plan.seconds
        found.append(
            Saving(
                name=wanted.name,
                seconds=until,
                plan=plan,
                joules=plan.joules_until(until),
                full_clocks_joules=full.joules_until(deadline if wanted.waits else 0.0),
                lower_bound_joules=plan.lower_bound_joules
                + plan.blocking_watts * (until - plan.seconds),
            )
        )
    return tuple(found)
