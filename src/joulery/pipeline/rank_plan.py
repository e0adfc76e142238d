"""One rank's share of a plan: what it runs, at which clock, for how long."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.pipeline.dwell import rank_orders
from joulery.pipeline.problem import Instruction

if TYPE_CHECKING:
    from joulery.pipeline.planner import Plan
    from joulery.pipeline.problem import Problem


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction of the rank.

    Attributes:
        instruction: Which.
        hertz: The clock to run it at; None for the highest.
        seconds: How long it takes then.
        watts: The most that one device draws while that clock is held, which is the power limit
            that leads to it; None where unknown.
    """

    instruction: Instruction
    hertz: float | None
    seconds: float
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank does in an iteration.

    Attributes:
        rank: Which.
        seconds: From the start of the iteration to the end of the pipeline's last instruction.
        steps: First to last.
    """

    rank: int
    seconds: float
    steps: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "rank": self.rank,
            "seconds": self.seconds,
            "steps": [
                [*_named(step.instruction), step.hertz, step.seconds, step.watts]
                for step in self.steps
            ],
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> RankPlan:
        """The inverse of :meth:`to_dict`.

        Raises:
            InvalidValueError: It is none.
        """
        try:
            rank = int(document["rank"])
            steps = tuple(
                Step(
                    Instruction(int(stage), rank, str(kind), int(microbatch)),
                    _positive(hertz),
                    float(seconds),
                    _positive(watts),
                )
                for stage, kind, microbatch, hertz, seconds, watts in document["steps"]
            )
            return cls(rank, float(document["seconds"]), steps)
        except (KeyError, TypeError, ValueError) as flaw:
            raise InvalidValueError(
                f"this is no plan of a rank: {flaw}", remedy="send what to_dict() gives"
            ) from None


def rank_plans(problem: Problem, plan: Plan, devices: int = 1) -> tuple[RankPlan, ...]:
    """The share of every rank.

    Args:
        problem: What was planned.
        plan: The plan, best with its clocks held long enough (:mod:`joulery.pipeline.dwell`).
        devices: Devices of a rank whose energy the plan counts together
            (``Surroundings.devices``).
    """
    return tuple(
        RankPlan(rank, plan.seconds, _steps(problem, plan, order, devices))
        for rank, order in enumerate(rank_orders(problem, plan))
    )


def _steps(problem: Problem, plan: Plan, order: list[int], devices: int) -> tuple[Step, ...]:
    clocks = _filled([_positive(float(plan.clocks_hertz[i])) for i in order])
    steps: list[Step] = []
    for hertz, run in itertools.groupby(zip(order, clocks, strict=True), key=lambda pair: pair[1]):
        members = [i for i, _ in run]
        # One limit for as long as the clock is one: what its hungriest instruction draws.
        watts = float((plan.joules_each[members] / plan.durations[members]).max()) / devices
        steps += [
            Step(problem.instructions[i], hertz, float(plan.durations[i]), _positive(watts))
            for i in members
        ]
    return tuple(steps)


def _filled(clocks: list[float | None]) -> list[float | None]:
    """What needs no clock of its own keeps the one before it, or takes the first."""
    last = next((clock for clock in clocks if clock is not None), None)
    filled = []
    for clock in clocks:
        last = last if clock is None else clock
        filled.append(last)
    return filled


def _named(instruction: Instruction) -> tuple[int, str, int]:
    return instruction.stage, instruction.kind, instruction.microbatch


def _positive(value: float | None) -> float | None:
    if value is None or not (math.isfinite(value) and value > 0):
        return None
    return float(value)
