"""One rank's share of a plan: what it runs, at which clock, for how long."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.documents import read_text
from joulery.errors import FileError, InvalidValueError, document_errors
from joulery.pipeline._files import parse_json
from joulery.pipeline._instructions import REDUCE, Instruction
from joulery.pipeline.planning._holding import rank_orders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.pipeline.planning._planner import ClockPlan
    from joulery.pipeline.planning._problem import PipelineProblem


SCHEMA = "joulery-pipeline-plan-2"
_REMEDY = "save the plan again with PipelinePlan.save() of this version"
# Boards may draw this much more than their profile says; by hand: the noise of profiles.
_PEAK_MARGIN = 1.02


@dataclass(frozen=True, slots=True)
class RankStep:
    """An instruction of the rank with its clock.

    Attributes:
        instruction: Instruction to run.
        hertz: Clock to run it at; None for the highest.
        seconds: Time that it takes then.
        watts: Highest power of one device while that clock is held, which is the power limit that
            leads to it; None where unknown.
    """

    instruction: Instruction
    hertz: float | None
    seconds: float
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Instructions and clocks of one rank in an iteration.

    Attributes:
        rank: Number of the rank.
        seconds: Time from the start of the iteration to the end of the pipeline's last instruction.
        steps: Steps, first to last.
        peak_watts: Highest mean power of one of its devices over any second, with a margin for
            profiles; None where unknown.
    """

    rank: int
    seconds: float
    steps: tuple[RankStep, ...]
    peak_watts: float | None = None

    @property
    def order(self) -> tuple[Instruction, ...]:
        """The instructions, first to last."""
        return tuple(step.instruction for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """The plan as a JSON document."""
        return {
            "rank": self.rank,
            "seconds": self.seconds,
            "steps": [
                [*step.instruction.key, step.hertz, step.seconds, step.watts] for step in self.steps
            ],
            "peak_watts": self.peak_watts,
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> RankPlan:
        """The inverse of ``to_dict``.

        Raises:
            InvalidValueError: The document is no plan of a rank.
        """
        remedy = "send what to_dict() gives"
        with document_errors("this is no plan of a rank", remedy=remedy, kind=InvalidValueError):
            rank = int(document["rank"])
            steps = tuple(
                RankStep(
                    Instruction(int(stage), rank, str(kind), int(microbatch)),
                    _positive(hertz),
                    float(seconds),
                    _positive(watts),
                )
                for stage, kind, microbatch, hertz, seconds, watts in document["steps"]
            )
            # Files of earlier versions do not state it.
            peak_watts = _positive(document.get("peak_watts"))
            return cls(rank, float(document["seconds"]), steps, peak_watts)


def rank_plans(problem: PipelineProblem, plan: ClockPlan) -> tuple[RankPlan, ...]:
    """The share of every rank in a plan, best one with held clocks (``hold_clocks``)."""
    return tuple(
        RankPlan(
            rank,
            plan.seconds,
            _steps(problem, plan, _assign_clocks(problem, plan, order)),
            _peak_watts(problem, plan, rank, order),
        )
        for rank, order in enumerate(rank_orders(problem, plan))
    )


def load_rank_plan(path: Path | str, rank: int) -> RankPlan:
    """One rank's share of the plan that ``PipelinePlan.save`` wrote; nothing is planned again.

    Raises:
        FileError: The file cannot be read, holds something else, or has no such rank.
        InvalidValueError: The rank is no whole number.
    """
    if not isinstance(rank, int):
        raise InvalidValueError(f"rank {rank!r} is no whole number", remedy="give one from 0 on")
    ranks = read_plan(Path(path)).get("ranks")
    if (
        not isinstance(ranks, list)
        or not 0 <= rank < len(ranks)
        or not isinstance(ranks[rank], dict)
    ):
        count = len(ranks) if isinstance(ranks, list) else 0
        raise FileError(
            f"{path} has no plan for rank {rank}", remedy=f"its ranks are 0 to {count - 1}"
        )
    try:
        return RankPlan.from_dict(ranks[rank])
    except InvalidValueError as error:
        raise FileError(f"{path} holds a broken plan: {error}", remedy=_REMEDY) from None


def read_plan(path: Path) -> dict[str, Any]:
    """The document in a plan file."""
    document = parse_json(read_text(path, "plan"), "plan", _REMEDY)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise FileError(f"{path} holds no plan of a pipeline", remedy=_REMEDY)
    return document


def _assign_clocks(problem: PipelineProblem, plan: ClockPlan, order: list[int]) -> list[int]:
    """Without reductions that need no clock: frameworks start them among backward passes."""
    return [
        i
        for i in order
        if problem.instructions[i].kind != REDUCE or not math.isnan(plan.clocks_hertz[i])
    ]


def _steps(problem: PipelineProblem, plan: ClockPlan, order: list[int]) -> tuple[RankStep, ...]:
    clocks = _fill([_positive(float(plan.clocks_hertz[i])) for i in order])
    steps: list[RankStep] = []
    for hertz, run in itertools.groupby(zip(order, clocks, strict=True), key=lambda pair: pair[1]):
        members = [i for i, _ in run]
        # One limit for as long as the clock is one: the power of its most demanding instruction.
        watts = float((plan.joules_each[members] / plan.durations[members]).max())
        watts /= problem.config.devices
        steps += [
            RankStep(problem.instructions[i], hertz, float(plan.durations[i]), _positive(watts))
            for i in members
        ]
    return tuple(steps)


def _peak_watts(
    problem: PipelineProblem, plan: ClockPlan, rank: int, order: list[int]
) -> float | None:
    """Highest mean power of a device over a second of iterations that follow each other."""
    begins, durations = plan.starts[order], plan.durations[order]
    times = np.concatenate([[0.0], np.stack([begins, begins + durations], axis=1).ravel()])
    times = np.maximum.accumulate(np.append(times, plan.seconds))
    joules = float(problem.blocking_watts[rank]) * np.diff(times)
    joules[1:-1:2] = plan.joules_each[order]
    total = np.concatenate([[0.0], np.cumsum(joules)])

    def joules_until(when: NDArray[np.float64]) -> NDArray[np.float64]:
        rounds, rest = np.divmod(when, times[-1])
        joules: NDArray[np.float64] = rounds * total[-1] + np.interp(rest, times, total)
        return joules

    windows = np.concatenate([times, (times - 1.0) % times[-1]])
    peak = float((joules_until(windows + 1.0) - joules_until(windows)).max())
    return _positive(_PEAK_MARGIN * peak / problem.config.devices)


def _fill(clocks: list[float | None]) -> list[float | None]:
    """Clocks where work without a clock of its own keeps the one before it, or takes the first."""
    last = next((clock for clock in clocks if clock is not None), None)
    filled = []
    for clock in clocks:
        last = last if clock is None else clock
        filled.append(last)
    return filled


def _positive(value: float | None) -> float | None:
    if value is None or not (math.isfinite(value) and value > 0):
        return None
    return float(value)
