"""Savings of plans against full clocks, the default without a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulery.pipeline.planning._planner import ClockPlan, PipelinePlan


@dataclass(frozen=True, slots=True)
class Saving:
    """A plan for one iteration time, compared with full clocks.

    Attributes:
        name: Name to show.
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


def plan_saving(
    pipeline: PipelinePlan,
    seconds: float | None = None,
    *,
    name: str = "equal time",
    waits: bool = True,
) -> Saving:
    """The saving of a pipeline's plan for one iteration time.

    Args:
        pipeline: Plans of the pipeline.
        seconds: Iteration time to plan for; that of full clocks unless given.
        name: Name to show.
        waits: Whether the next iteration starts at that time and not before, because others set
            the pace.

    Raises:
        InfeasibleError: The fastest clocks take longer.
    """
    full = pipeline.full_clocks
    deadline = full.seconds if seconds is None else seconds
    plan = pipeline.at(deadline, thorough=True) if waits else pipeline.best_by(deadline)
    until = deadline if waits else plan.seconds
    return Saving(
        name=name,
        seconds=until,
        plan=plan,
        joules=plan.joules_until(until),
        full_clocks_joules=full.joules_until(deadline if waits else 0.0),
        lower_bound_joules=plan.lower_bound_joules + plan.blocking_watts * (until - plan.seconds),
    )


def budget_saving(pipeline: PipelinePlan, watts: float, *, name: str = "budget") -> Saving:
    """The saving of the fastest plan whose mean power, of all devices, is at most ``watts``.

    Raises:
        InfeasibleError: The lowest clocks draw more.
    """
    plan = pipeline.for_power(watts)
    return Saving(
        name=name,
        seconds=plan.seconds,
        plan=plan,
        joules=plan.joules,
        full_clocks_joules=pipeline.full_clocks.joules,
        lower_bound_joules=plan.lower_bound_joules,
    )
