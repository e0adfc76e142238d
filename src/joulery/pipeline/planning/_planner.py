"""Plan the clock of every instruction, for every iteration time of a pipeline.

Examples:
    >>> plan = plan_problem(problem)               # doctest: +SKIP
    >>> plan.at(12.5).clocks_hertz                 # doctest: +SKIP
    >>> plan.for_straggler(1.2).joules             # doctest: +SKIP
"""

from __future__ import annotations

import functools
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import FileError, InfeasibleError, InvalidValueError, JouleryError
from joulery.frontier import Frontier, OperatingPoint, Provenance, Setting
from joulery.objectives import score
from joulery.pipeline._files import write_text
from joulery.pipeline.planning._holding import HoldTime, hold_clocks
from joulery.pipeline.planning._network import network
from joulery.pipeline.planning._problem import PipelineProblem, clock_hertz
from joulery.pipeline.planning._rank_plan import SCHEMA, rank_plans, read_plan
from joulery.pipeline.planning._relaxation import relax
from joulery.pipeline.planning.native.library import QUICK, THOROUGH, USUAL, Rounder
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from joulery.objectives import Objective

# Plans that stand for the whole frontier, evenly over its time.
_FRONTIER_PLANS = 33
# A deadline this much short of the fastest clocks is theirs: sums differ in their last digits.
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Timetable:
    """One way to run an iteration.

    Attributes:
        seconds: Time at which the last instruction ends.
        joules: Energy of all instructions, and of waiting until ``seconds``.
        starts: (instructions,), seconds from the start of the iteration.
        durations: (instructions,), seconds.
        joules_each: (instructions,), energy without waiting.
        clocks_hertz: (instructions,), NaN where the profile names no clock.
        blocking_watts: Power of all ranks together while they wait.
    """

    seconds: float
    joules: float
    starts: NDArray[np.float64]
    durations: NDArray[np.float64]
    joules_each: NDArray[np.float64]
    clocks_hertz: NDArray[np.float64]
    blocking_watts: float

    @property
    def mean_clock_hertz(self) -> float:
        """Mean clock over the time at work; NaN where no work names a clock."""
        clocked = np.isfinite(self.clocks_hertz)
        if not clocked.any():
            return math.nan
        return float(np.average(self.clocks_hertz[clocked], weights=self.durations[clocked]))

    def joules_until(self, seconds: float) -> float:
        """Energy if the next iteration starts only then, such as at a straggler's pace."""
        return self.joules + self.blocking_watts * max(0.0, seconds - self.seconds)


@dataclass(frozen=True, slots=True)
class ClockPlan(Timetable):
    """A clock for every instruction of an iteration.

    Attributes:
        deadline_seconds: Deadline that the plan was made for.
        lower_bound_joules: Energy that no clocks go below if they meet the deadline, not even
            clocks between those of the hardware; counted until ``seconds`` as ``joules`` is.
        points: (instructions,), position among the choices of the instruction's profile; -1 for a
            measured point that is no choice of its own.
    """

    deadline_seconds: float
    lower_bound_joules: float
    points: NDArray[np.int64]

    @property
    def gap(self) -> float:
        """Share of energy above the lower bound."""
        return self.joules / self.lower_bound_joules - 1.0

    def totals(self) -> dict[str, float]:
        """Time, energy and lower bound of the iteration, for JSON documents."""
        return {
            "seconds": self.seconds,
            "joules": self.joules,
            "lower_bound_joules": self.lower_bound_joules,
        }


class PlanSweep:
    """Plans for many deadlines, rounded together; a sequence of :class:`ClockPlan`.

    Attributes:
        deadlines: (plans,), seconds.
        seconds: (plans,), iteration time of each plan.
        joules: (plans,), energy of each plan, with waiting until ``seconds``.
    """

    def __init__(self, pipeline: PipelinePlan, deadlines: NDArray[np.float64], effort: int) -> None:
        points = pipeline.network.points
        self._pipeline = pipeline
        self._chosen, self._starts = pipeline.round(deadlines, effort)
        self._durations = points.seconds[self._chosen]
        self.deadlines = deadlines
        self.seconds: NDArray[np.float64] = np.max(self._starts + self._durations, axis=1)
        waiting = pipeline.network.blocking_watts * self.seconds
        self.joules: NDArray[np.float64] = points.cost[self._chosen].sum(axis=1) + waiting

    def __len__(self) -> int:
        return len(self.deadlines)

    def __iter__(self) -> Iterator[ClockPlan]:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, position: int) -> ClockPlan:
        chosen, arrays = self._chosen[position], self._pipeline.network
        seconds, deadline = float(self.seconds[position]), float(self.deadlines[position])
        waiting = arrays.blocking_watts * seconds
        return ClockPlan(
            seconds=seconds,
            joules=float(self.joules[position]),
            starts=self._starts[position],
            durations=self._durations[position],
            joules_each=arrays.points.joules[chosen],
            clocks_hertz=arrays.points.hertz[chosen],
            blocking_watts=arrays.blocking_watts,
            deadline_seconds=deadline,
            lower_bound_joules=self._pipeline.relaxation.bound(deadline) + waiting,
            points=arrays.points.point[chosen],
        )


class PipelinePlan:
    """All clock plans of one pipeline, from its fastest to its slowest iteration.

    Attributes:
        problem: Pipeline that was planned.
        network: Arrays of the problem.
        relaxation: Continuous frontier, with clocks between those of the hardware.
        planning_cpu_seconds: Processor time that planning took.
        fastest_seconds: Iteration time with every instruction at its fastest.
        slowest_seconds: Iteration time with every instruction as slow as it pays while others wait.
        least_energy_seconds: Iteration time beyond which waiting costs more than lower clocks
            save, so that only a straggler is a reason to be slower.
    """

    def __init__(self, problem: PipelineProblem) -> None:
        begin = time.process_time()
        self.problem = problem
        self.network = arrays = network(problem)
        self.relaxation = found = relax(arrays)
        self.round = Rounder(
            (
                arrays.order,
                *(arrays.before.first, arrays.before.node, arrays.before.seconds),
                *(arrays.after.first, arrays.after.node, arrays.after.seconds),
                arrays.curve_of,
                arrays.first_point,
                *(arrays.points.seconds, arrays.points.cost, arrays.points.on_hull),
                *(found.seconds, found.durations),
            )
        )
        self.fastest_seconds = arrays.end_seconds(arrays.extreme(0))
        self.slowest_seconds = arrays.end_seconds(arrays.extreme(-1))
        bounds = found.cost + arrays.blocking_watts * found.seconds
        # The core's whole units may have rounded it down.
        best = float(found.seconds[int(np.argmin(bounds))]) * (1.0 + _SAME)
        self.least_energy_seconds = min(max(best, self.fastest_seconds), self.slowest_seconds)
        self.planning_cpu_seconds = time.process_time() - begin

    def at(self, seconds: float, *, thorough: bool = False) -> ClockPlan:
        """The plan of least energy if the next iteration starts at a deadline and not before.

        Args:
            seconds: Deadline.
            thorough: Whether to try more ways of rounding than fit a millisecond.

        Raises:
            InfeasibleError: The fastest clocks take longer.
        """
        return PlanSweep(self, self._deadlines([seconds]), THOROUGH if thorough else USUAL)[0]

    def sweep(self, seconds: Iterable[float]) -> PlanSweep:
        """Plans for many deadlines, each found in microseconds: somewhat above those of :meth:`at`.

        Raises:
            InfeasibleError: The fastest clocks take longer than one of them.
        """
        return PlanSweep(self, self._deadlines(seconds), QUICK)

    def _deadlines(self, seconds: Iterable[float]) -> NDArray[np.float64]:
        found = np.array([finite(each, "deadline", minimum=0.0) for each in seconds])
        if len(found) and found.min() < self.fastest_seconds * (1.0 - _SAME):
            raise InfeasibleError(
                f"no clocks finish an iteration within {found.min():g} s",
                remedy=f"the fastest take {self.fastest_seconds:.9g} s; allow at least that",
            )
        deadlines: NDArray[np.float64] = np.maximum(found, self.fastest_seconds)
        return deadlines

    def best_by(self, seconds: float) -> ClockPlan:
        """The plan of least energy if the next iteration starts as soon as this one ends."""
        return self.at(max(min(seconds, self.least_energy_seconds), 0.0))

    def for_straggler(self, factor: float) -> ClockPlan:
        """The plan at the pace of a pipeline ``factor`` times as slow as this one's fastest."""
        if not finite(factor, "factor of a straggler", minimum=0.0) >= 1.0:
            raise InvalidValueError(
                f"a straggler {factor:g} times as slow is none", remedy="give a factor from 1 on"
            )
        return self.at(self.fastest_seconds * factor)

    def choose(self, objective: Objective) -> ClockPlan:
        """The plan of the frontier that an objective prefers; full clocks are its reference.

        Raises:
            InfeasibleError: No plan keeps the objective's bounds.
        """
        plans = self.frontier_plans
        seconds = np.array([plan.seconds for plan in plans])
        joules = np.array([plan.joules for plan in plans])
        scores = score(objective, seconds, joules, self.full_clocks)
        if not np.isfinite(scores).any():
            raise InfeasibleError(
                f"no plan meets {objective}",
                remedy=f"the fastest takes {seconds[0]:g} s and the lowest energy is "
                f"{joules[-1]:g} J; widen the bound to one of them",
            )
        return plans[int(np.argmin(scores))]

    def bound_joules(self, seconds: float) -> float:
        """Energy that no clocks, even clocks in between, go below in ``seconds``."""
        return self.relaxation.bound(seconds) + self.network.blocking_watts * seconds

    @functools.cached_property
    def frontier_plans(self) -> tuple[ClockPlan, ...]:
        """Plans evenly from the fastest to the least energy, each of less energy than the last."""
        ends = self.fastest_seconds, self.least_energy_seconds
        kept: list[ClockPlan] = []
        for plan in PlanSweep(self, np.linspace(*ends, _FRONTIER_PLANS), THOROUGH):
            # Whole clocks may leave two deadlines with one plan.
            if not kept or plan.joules < kept[-1].joules:
                kept.append(plan)
        return tuple(kept)

    @functools.cached_property
    def frontier(self) -> Frontier:
        """The plans as operating points of one iteration."""
        setting = Setting(parallel=f"pp{self.problem.ranks}")
        provenance = self._provenance()
        points = (
            OperatingPoint(plan.seconds, plan.joules, setting, provenance)
            for plan in self.frontier_plans
        )
        return Frontier.from_points(points, "one iteration")

    @functools.cached_property
    def full_clocks(self) -> Timetable:
        """The iteration with every clock at its highest, which is what happens without a plan."""
        profiles = self.problem.profiles
        each = [profiles[profile].full_clock for profile in self.problem.profile_of.tolist()]
        durations = np.array([point.seconds for point in each])
        joules = np.array([point.joules for point in each])
        starts = self.network.starts(durations)
        seconds = float(np.max(starts + durations))
        waiting = self.problem.waiting_joules(durations, seconds)
        return Timetable(
            seconds=seconds,
            joules=float(np.sum(joules)) + waiting,
            starts=starts,
            durations=durations,
            joules_each=joules,
            clocks_hertz=np.array([clock_hertz(point) for point in each]),
            blocking_watts=self.network.blocking_watts,
        )

    def save(
        self, path: Path | str, seconds: float | None = None, *, hold: HoldTime | None = None
    ) -> None:
        """Write the plan to a JSON file, with the share of every rank at one iteration time.

        Args:
            path: File for :func:`load_plan` (everything) and ``load_rank_plan`` (one rank's share).
            seconds: Iteration time that ranks follow; by default that of full clocks.
            hold: Minimum hold time of their clocks.
        """
        plan = self.at(self.full_clocks.seconds if seconds is None else seconds)
        held = hold_clocks(self, plan, hold or HoldTime()).plan
        document = {
            "schema": SCHEMA,
            "frontier": [found.totals() for found in self.frontier_plans],
            "problem": self.problem.to_dict(),
            "ranks": [rank.to_dict() for rank in rank_plans(self.problem, held)],
        }
        write_text(Path(path), json.dumps(document, allow_nan=False) + "\n", "plan")

    def _provenance(self) -> Provenance:
        counts = np.bincount(self.problem.profile_of, minlength=len(self.problem.profiles))
        return Provenance.combined(
            (profile.points[0].provenance, profile.points[0].joules * count)
            for profile, count in zip(self.problem.profiles, counts.tolist(), strict=True)
            if count
        )


def plan_problem(problem: PipelineProblem) -> PipelinePlan:
    """Find all plans of a pipeline.

    Raises:
        InvalidValueError: Instructions wait for each other in a circle, or an array is malformed.
        MissingExtraError: There is neither a compiled core nor a compiler for it.
    """
    return PipelinePlan(problem)


def load_plan(path: Path | str) -> PipelinePlan:
    """The plan that :meth:`PipelinePlan.save` wrote; it is planned again, which takes moments.

    Raises:
        FileError: The file cannot be read, or holds something else.
    """
    document = read_plan(Path(path))
    try:
        return plan_problem(PipelineProblem.from_dict(document["problem"]))
    except (KeyError, TypeError, ValueError, JouleryError) as error:
        raise FileError(f"{path} holds a broken plan: {error}", remedy="save it again") from None
