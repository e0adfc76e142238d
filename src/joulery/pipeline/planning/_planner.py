"""Plan the clock of every instruction, for every iteration time of a pipeline."""

from __future__ import annotations

import functools
import json
import math
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import (
    FileError,
    InfeasibleError,
    InvalidValueError,
    JouleryError,
    flaw_text,
)
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.objectives import check_objective, parse_objective, score
from joulery.pipeline._files import write_text
from joulery.pipeline.planning._holding import hold_clocks, hold_power
from joulery.pipeline.planning._network import network
from joulery.pipeline.planning._problem import PipelineProblem, check_limit, clock_hertz
from joulery.pipeline.planning._rank_plan import SCHEMA, rank_plans, read_plan
from joulery.pipeline.planning.native.library import (
    QUICK,
    THOROUGH,
    UNBOUNDED,
    USUAL,
    Rounder,
    walk,
)
from joulery.tables import Tabular
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.pipeline.planning._network import CostCurve, Network

# Plans that stand for the whole frontier, evenly over its time; by hand.
_FRONTIER_PLANS = 33
# Resolution of the core's whole numbers. Times of all instructions add up to less than 2**52 units:
# a float holds them and their sums exactly. Flows stay safely below a capacity without bound.
_TIME_UNITS = 2.0**52
_POWER_UNITS = 2.0**58
# Steps of slopes in the mean power, times the root of how many different curves there are: errors
# of few curves add up, those of many even out. Then the largest step; by hand.
_STEPS = 600.0
_COARSEST = 1.0 / 80.0
# Lines between samples are off by at most this share of the energy; by hand.
_OFF = 3e-6
# At so many instructions both are as coarse as that; below they shrink quickly, until every vertex
# of a small pipeline is exact, and beyond steps grow slowly, so that planning stays quick;
# chosen on random 1F1B pipelines of 4,096 and 16,384 instructions.
_LARGE, _SHRINK, _GROW = 2000.0, 4, 0.5
# Iteration times this close are one, when one is sought for a power; by hand.
_SAME_PACE = 1e-3
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
    starts: NDArray[np.float64] = field(repr=False)
    durations: NDArray[np.float64] = field(repr=False)
    joules_each: NDArray[np.float64] = field(repr=False)
    clocks_hertz: NDArray[np.float64] = field(repr=False)
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
    """

    deadline_seconds: float
    lower_bound_joules: float

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
    """Plans for many deadlines, rounded together; a sequence of ``ClockPlan``.

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
        indices, arrays = self._chosen[position], self._pipeline.network
        seconds, deadline = float(self.seconds[position]), float(self.deadlines[position])
        waiting = arrays.blocking_watts * seconds
        return ClockPlan(
            seconds=seconds,
            joules=float(self.joules[position]),
            starts=self._starts[position],
            durations=self._durations[position],
            joules_each=arrays.points.joules[indices],
            clocks_hertz=arrays.points.hertz[indices],
            blocking_watts=arrays.blocking_watts,
            deadline_seconds=deadline,
            lower_bound_joules=self._pipeline.relaxation.bound(deadline) + waiting,
        )


class PipelinePlan(Tabular):
    """All clock plans of one pipeline, from its fastest to its slowest iteration.

    Args:
        problem: Pipeline to plan.

    Raises:
        InvalidValueError: Instructions wait for each other forever, or an array is malformed.
        MissingExtraError: There is neither a compiled core nor a compiler for it.

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
        self.relaxation = relaxation = relax(arrays)
        self.round = Rounder(
            (
                arrays.order,
                *(arrays.before.first, arrays.before.node, arrays.before.seconds),
                *(arrays.after.first, arrays.after.node, arrays.after.seconds),
                arrays.curve_of,
                arrays.first_point,
                *(arrays.points.seconds, arrays.points.cost, arrays.points.on_hull),
                *(relaxation.seconds, relaxation.durations),
            )
        )
        self.fastest_seconds = arrays.end_seconds(arrays.extreme(0))
        self.slowest_seconds = arrays.end_seconds(arrays.extreme(-1))
        bounds = relaxation.cost + arrays.blocking_watts * relaxation.seconds
        # The core's whole units may have rounded it down.
        best = float(relaxation.seconds[int(np.argmin(bounds))]) * (1.0 + _SAME)
        self.least_energy_seconds = min(max(best, self.fastest_seconds), self.slowest_seconds)
        self._limited: dict[float, PipelinePlan] = {}
        self.planning_cpu_seconds = time.process_time() - begin

    def __str__(self) -> str:
        problem, full = self.problem, self.full_clocks
        planned = self.at(full.seconds).joules_until(full.seconds)
        return (
            f"{problem.stages} stages, {problem.microbatches} microbatches, iterations of "
            f"{self.fastest_seconds:.4g} to {self.slowest_seconds:.4g} s; in equal time "
            f"{100 * (1 - planned / full.joules):.1f} % less energy than at full clocks (predicted)"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row per plan of the frontier: an iteration's time and energy, and what is saved."""
        full = self.full_clocks.joules
        return [
            {"seconds": plan.seconds, "joules": plan.joules, "saved": 1 - plan.joules / full}
            for plan in self.frontier_plans
        ]

    def to_dict(self) -> dict[str, Any]:
        """The frontier as a JSON document, without its clocks."""
        seconds = {"fastest": self.fastest_seconds, "slowest": self.slowest_seconds}
        return {
            "schedule": self.problem.schedule,
            "provenance": Origin.PREDICTED.value,
            "seconds": seconds,
            "plans": self.rows(),
        }

    def at(self, seconds: float, *, thorough: bool = False) -> ClockPlan:
        """The plan of least energy if the next iteration starts at that time and not before.

        Args:
            seconds: Time of the iteration.
            thorough: Whether to look as long as for the plans of the frontier: ten to thirty times
                as long, for up to 0.2 % less energy.

        Raises:
            InfeasibleError: The fastest clocks take longer.
        """
        return PlanSweep(self, self._deadlines([seconds]), THOROUGH if thorough else USUAL)[0]

    def sweep(self, seconds: Iterable[float]) -> PlanSweep:
        """Plans for many deadlines, each found in microseconds: somewhat above those of ``at``.

        Raises:
            InfeasibleError: The fastest clocks take longer than one of them.
        """
        return PlanSweep(self, self._deadlines(seconds), QUICK)

    def _deadlines(self, seconds: Iterable[float]) -> NDArray[np.float64]:
        requests = np.array([finite(deadline, "deadline", minimum=0.0) for deadline in seconds])
        if len(requests) and requests.min() < self.fastest_seconds * (1.0 - _SAME):
            raise InfeasibleError(
                f"no clocks finish an iteration within {requests.min():g} s",
                remedy=f"the fastest take {self.fastest_seconds:.9g} s; allow at least that",
            )
        deadlines: NDArray[np.float64] = np.maximum(requests, self.fastest_seconds)
        return deadlines

    def best_by(self, seconds: float) -> ClockPlan:
        """The plan of least energy if the next iteration starts as soon as this one ends."""
        return self.at(max(min(seconds, self.least_energy_seconds), 0.0), thorough=True)

    def for_seconds(self, seconds: float) -> ClockPlan:
        """The plan of least energy whose own clocks make the iteration about that long.

        Beyond least energy that costs more than it saves, but lowers the power: iterations that
        follow each other without a pause draw ``joules / seconds``.

        Raises:
            InfeasibleError: The fastest clocks take longer, or the lowest less.
        """
        return self.slowed(self.reachable(seconds)).at(seconds)

    def reachable(self, seconds: float) -> float:
        """The iteration time, if clocks alone lead to it.

        Raises:
            InfeasibleError: The fastest clocks take longer, or the lowest less.
        """
        self._deadlines([seconds])
        if seconds > self.longest_seconds * (1.0 + _SAME):
            raise InfeasibleError(
                f"no clocks make an iteration {seconds:g} s long",
                remedy=f"the lowest take {self.longest_seconds:.9g} s; ask for that at most",
            )
        return seconds

    @functools.cached_property
    def longest_seconds(self) -> float:
        """Iteration time with every instruction at its lowest clock."""
        return max(self.slowest_seconds, self._below(self._limits()[-1]).slowest_seconds)

    def for_power(self, watts: float) -> ClockPlan:
        """The fastest plan whose mean power, of all devices together, is at most ``watts``.

        Raises:
            InfeasibleError: The lowest clocks draw more.
        """
        finite(watts, "power", minimum=0.0)
        plans = self
        if self.lowest_watts > watts:
            limits = self._limits()
            # Searched by negative power, since that of falling limits falls.
            position = bisect_left(limits, -watts, key=lambda w: -self._below(w).lowest_watts)
            plans = self._below(limits[min(position, len(limits) - 1)])
        if plans.lowest_watts > watts:
            raise InfeasibleError(
                f"no clocks keep the pipeline below {watts:g} W",
                remedy=f"the lowest draw {math.ceil(plans.lowest_watts)} W; allow at least that",
            )
        low, high = plans.fastest_seconds, plans.slowest_seconds
        if (plan := plans.at(low)).joules <= watts * plan.seconds:
            return plan
        while high - low > _SAME_PACE * low:
            middle = (low + high) / 2
            plan = plans.at(middle)
            low, high = (low, middle) if plan.joules <= watts * plan.seconds else (middle, high)
        return plans.at(high)

    def limited(self, watts: float) -> PipelinePlan:
        """The plans on devices limited to ``watts`` each, which count as upper clocks.

        Raises:
            InvalidValueError: Some work draws more at its lowest profiled clock.
        """
        check_limit(self.problem, watts)
        return self._below(watts)

    def _below(self, watts: float) -> PipelinePlan:
        """The plans up to the clocks that draw so much; work that draws more keeps its lowest."""
        if watts not in self._limited:
            self._limited[watts] = PipelinePlan(self.problem.limited(watts))
        return self._limited[watts]

    def slowed(self, seconds: float) -> PipelinePlan:
        """The plans among which ``seconds`` is a time that clocks alone lead to.

        They are these plans up to the slowest, and beyond it those under the lowest limit of the
        devices that does not take longer.
        """
        if seconds <= self.slowest_seconds:
            return self
        limits = self._limits()
        position = bisect_right(limits, seconds, key=lambda w: self._below(w).fastest_seconds)
        return self._below(limits[position - 1])

    def _limits(self) -> list[float]:
        """Power limits of a device that make a difference, falling."""
        devices = self.problem.config.devices
        watts = {
            point.watts / devices
            for profile in self.problem.profiles
            for point in (*profile.points, *profile.others)
            if point.setting.clock_hertz is not None
        }
        # A little more, so that the point itself still fits.
        return sorted((limit * (1 + _SAME) for limit in watts), reverse=True) or [0.0]

    @functools.cached_property
    def lowest_watts(self) -> float:
        """Mean power of the slowest iteration, of all devices together."""
        plan = self.at(self.slowest_seconds)
        return plan.joules / plan.seconds

    def for_straggler(self, factor: float) -> ClockPlan:
        """The plan at the pace of a pipeline ``factor`` times as slow as this one's fastest."""
        if not finite(factor, "factor of a straggler", minimum=0.0) >= 1.0:
            raise InvalidValueError(
                f"slowdown factor {factor:g} is below 1", remedy="give a factor from 1 on"
            )
        return self.at(self.fastest_seconds * factor)

    def choose(self, objective: Objective | str) -> ClockPlan:
        """The plan of the frontier that an objective or its text prefers, against full clocks.

        Raises:
            InfeasibleError: No plan keeps the objective's bounds.
        """
        plans = self.frontier_plans
        seconds = np.array([plan.seconds for plan in plans])
        joules = np.array([plan.joules for plan in plans])
        if isinstance(objective, str):
            objective = parse_objective(objective, float((joules / seconds).max()))
        check_objective(objective)
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
        plans: list[ClockPlan] = []
        for plan in PlanSweep(self, np.linspace(*ends, _FRONTIER_PLANS), THOROUGH):
            # Whole clocks may leave two deadlines with one plan.
            if not plans or plan.joules < plans[-1].joules:
                plans.append(plan)
        return tuple(plans)

    @functools.cached_property
    def frontier(self) -> Frontier:
        """The plans as operating points of one iteration."""
        setting = Setting(
            devices=self.problem.ranks * self.problem.config.devices,
            parallel=f"pp{self.problem.ranks}",
        )
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
        choices = [profiles[profile].full_clock for profile in self.problem.profile_of.tolist()]
        durations = np.array([point.seconds for point in choices])
        joules = np.array([point.joules for point in choices])
        starts = self.network.starts(durations)
        seconds = float(np.max(starts + durations))
        waiting = self.problem.waiting_joules(durations, seconds)
        return Timetable(
            seconds=seconds,
            joules=float(np.sum(joules)) + waiting,
            starts=starts,
            durations=durations,
            joules_each=joules,
            clocks_hertz=np.array([clock_hertz(point) for point in choices]),
            blocking_watts=self.network.blocking_watts,
        )

    def save(
        self, path: Path | str, seconds: float | None = None, *, watts: float | None = None
    ) -> None:
        """Write the plan to a JSON file, with the share of every rank at one iteration time.

        Args:
            path: File for ``load_plan`` (everything) and ``load_rank_plan`` (one rank's share).
            seconds: Iteration time that ranks follow; by default that of full clocks.
            watts: Mean power to stay below instead, of all devices and with clocks held.

        Raises:
            InvalidValueError: Both are given.
            InfeasibleError: No clocks lead to that time or power.
        """
        if seconds is not None and watts is not None:
            raise InvalidValueError("both a time and a power are given", remedy="give one of them")
        target = self.full_clocks.seconds if seconds is None else seconds
        plans = self.slowed(target)
        plan = plans.at(target, thorough=True)
        holding = hold_clocks(plans, plan) if watts is None else hold_power(self, watts)
        document = {
            "schema": SCHEMA,
            "frontier": [plan_point.totals() for plan_point in self.frontier_plans],
            "problem": self.problem.to_dict(),
            "ranks": [rank.to_dict() for rank in rank_plans(self.problem, holding.plan)],
        }
        write_text(Path(path), json.dumps(document, allow_nan=False) + "\n", "plan")

    def _provenance(self) -> Provenance:
        counts = np.bincount(self.problem.profile_of, minlength=len(self.problem.profiles))
        return Provenance.combined(
            (profile.points[0].provenance, profile.points[0].joules * count)
            for profile, count in zip(self.problem.profiles, counts.tolist(), strict=True)
            if count
        )


def load_plan(path: Path | str) -> PipelinePlan:
    """The plan that ``PipelinePlan.save`` wrote; it is planned again, which takes moments.

    Raises:
        FileError: The file cannot be read, or holds something else.
    """
    document = read_plan(Path(path))
    try:
        return PipelinePlan(PipelineProblem.from_dict(document["problem"]))
    except (KeyError, TypeError, ValueError, JouleryError) as error:
        raise FileError(
            f"{path} holds a broken plan: {flaw_text(error)}", remedy="save it again"
        ) from None


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The continuous frontier at sampled iteration times, and mixes of neighbours in between.

    If clocks had no steps, a duration could lie anywhere on the lower hull of its choices. Then the
    least cost is a convex, piecewise linear function of the iteration time, which the compiled core
    walks (``native/walk.c`` describes how).

    Attributes:
        seconds: (samples,), increasing iteration times.
        cost: (samples,), joules above waiting of the durations.
        proven: (samples,), joules above waiting that no durations go below.
        watts: (samples,), joules that a second more would save.
        durations: (samples, instructions), seconds.
    """

    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    proven: NDArray[np.float64]
    watts: NDArray[np.float64]
    durations: NDArray[np.float64]

    def bound(self, seconds: float) -> float:
        """The cost that no clocks go below if they end within ``seconds``, by the tangents."""
        within = min(seconds, float(self.seconds[-1]))  # beyond, nothing more is saved
        return float(np.max(self.proven - self.watts * (within - self.seconds)))


def relax(network: Network) -> Relaxation:
    """The continuous frontier.

    Slopes are rounded, in large pipelines to some per cent of the mean power: then far fewer
    changes of the flow remain to be walked. The durations found are feasible and cost, by the true
    curves, some millionths more than the least. The bound is what the flow proves, by the true
    curves too, up to some ten-thousandths below.
    """
    size = len(network) / _LARGE
    fine = min(1.0, size) ** _SHRINK
    longest = network.extreme(-1).sum() + network.after.seconds.sum()
    unit_seconds = float(2.0 ** np.ceil(np.log2(longest / _TIME_UNITS)))
    slopes = [_falls(curve) for curve in network.curves]
    steepest = max((float(fall.max()) for fall in slopes if len(fall)), default=1.0)
    joules = _joules(network)
    step = joules / network.extreme(-1).sum() * min(_variety(network) ** 0.5 / _STEPS, _COARSEST)
    coarse = fine * max(1.0, size) ** _GROW
    unit_watts = max(step * coarse, steepest * len(network) / _POWER_UNITS)
    hulls = [curve.hull() for curve in network.curves]
    bundles = [
        _bundle(seconds, fall / unit_watts, unit_seconds)
        for (seconds, _), fall in zip(hulls, slopes, strict=True)
    ]
    arrays: tuple[NDArray[Any], ...] = (
        network.curve_of,
        _firsts([times for times, _ in bundles]),
        np.concatenate([times for times, _ in bundles]),
        np.concatenate([rooms for _, rooms in bundles]),
        np.repeat(np.arange(len(network), dtype=np.int32), np.diff(network.after.first)),
        network.after.node,
        np.rint(network.after.seconds / unit_seconds).astype(np.int64),
        network.order,
        _firsts([seconds for seconds, _ in hulls]),
        np.concatenate([seconds[::-1] for seconds, _ in hulls]),
        np.concatenate([cost[::-1] for _, cost in hulls]),
    )
    table, durations = walk(arrays, (unit_seconds, unit_watts, _OFF * fine * joules))
    seconds, watts, cost, proven = table.T.copy()
    # Whole units may have made a path shorter than it is, by half a unit for each instruction.
    proven -= watts * len(network) * unit_seconds
    return Relaxation(seconds, cost, proven, watts, durations)


def _joules(network: Network) -> float:
    """About the energy that the work of an iteration needs at its slowest."""
    slowest = network.first_point[1:] - 1
    return float(network.points.joules[slowest][network.curve_of].sum())


def _variety(network: Network) -> float:
    """The number of different curves, each counted by the instructions it has."""
    counts: dict[bytes, int] = {}
    for curve, count in zip(network.curves, np.bincount(network.curve_of).tolist(), strict=True):
        key = curve.seconds.tobytes() + curve.cost.tobytes()
        counts[key] = counts.get(key, 0) + count
    shares = np.array(list(counts.values())) / len(network)
    return float(1.0 / np.sum(shares**2))


def _firsts(pieces: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
    return np.cumsum([0, *map(len, pieces)]).astype(np.int32)


def _falls(curve: CostCurve) -> NDArray[np.float64]:
    """Joules saved per second on each edge of the hull, slowest first: rising."""
    seconds, cost = curve.hull()
    falls: NDArray[np.float64] = (-np.diff(cost) / np.diff(seconds))[::-1]
    return falls


def _bundle(
    seconds: NDArray[np.float64], slopes: NDArray[np.float64], unit_seconds: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths and capacities of the arcs of one instruction, slowest vertex first."""
    times = np.rint(seconds / unit_seconds).astype(np.int64)[::-1]
    flows = np.maximum.accumulate(np.maximum(np.rint(slopes), 1.0)).astype(np.int64)
    rooms = np.append(np.diff(flows, prepend=0), UNBOUNDED)
    # A vertex whose slopes are equal in whole units carries no flow.
    positive = rooms > 0
    return np.ascontiguousarray(times[positive]), np.ascontiguousarray(rooms[positive])
