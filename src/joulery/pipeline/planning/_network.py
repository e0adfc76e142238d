"""A problem as arrays: dependencies, and the time and cost of every clock choice.

The cost of a point is its energy above that of waiting as long: ``joules - blocking * seconds``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.pipeline.planning._problem import clock_hertz
from joulery.pipeline.schedules._check import topological_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.frontier import OperatingPoint
    from joulery.pipeline.planning._problem import ClockChoices, PipelineProblem


@dataclass(frozen=True, slots=True)
class CostCurve:
    """The choices of one piece of work on one kind of rank, fastest first; cost falls strictly.

    Attributes:
        seconds: (points,), time of each choice.
        cost: (points,), joules above waiting.
        on_hull: (points,), whether the point is a vertex of the lower convex hull.
        joules: (points,), energy of each choice.
        hertz: (points,), clock of each choice; NaN where the profile names none.
    """

    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    on_hull: NDArray[np.uint8]
    joules: NDArray[np.float64]
    hertz: NDArray[np.float64]

    def hull(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds and cost of the vertices."""
        on_hull = self.on_hull.astype(bool)
        return self.seconds[on_hull], self.cost[on_hull]


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Neighbours of instruction i: ``node[first[i]:first[i + 1]]``, ``seconds`` away."""

    first: NDArray[np.int32]
    node: NDArray[np.int32]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Network:
    """The arrays that relaxation and rounding work on.

    Attributes:
        order: (instructions,), each after all that it waits for.
        before: Instructions that each instruction waits for.
        after: Instructions that wait for it.
        curves: Cost curves, one per distinct pair of profile and blocking power.
        curve_of: (instructions,), position in ``curves``.
        points: All curves end to end.
        first_point: (curves + 1,), where each curve begins in ``points``.
        blocking_watts: Blocking power of all ranks together.
    """

    order: NDArray[np.int32]
    before: Adjacency
    after: Adjacency
    curves: tuple[CostCurve, ...]
    curve_of: NDArray[np.int32]
    points: CostCurve
    first_point: NDArray[np.int32]
    blocking_watts: float

    def __len__(self) -> int:
        return len(self.order)

    def end_seconds(self, durations: NDArray[np.float64]) -> float:
        """End of the last instruction if each starts as soon as it can."""
        return float(np.max(self.starts(durations) + durations, initial=0.0))

    def starts(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """The earliest start of each instruction."""
        starts, lengths = [0.0] * len(self), durations.tolist()
        first, node = self.before.first.tolist(), self.before.node.tolist()
        seconds = self.before.seconds.tolist()
        for i in self.order.tolist():
            ready = 0.0
            for k in range(first[i], first[i + 1]):
                ready = max(ready, starts[node[k]] + lengths[node[k]] + seconds[k])
            starts[i] = ready
        return np.array(starts)

    def latest_ends(
        self, durations: NDArray[np.float64], deadline_seconds: float
    ) -> NDArray[np.float64]:
        """The latest end of each instruction with which all that follows meets the deadline."""
        ends, lengths = [deadline_seconds] * len(self), durations.tolist()
        first, node = self.after.first.tolist(), self.after.node.tolist()
        seconds = self.after.seconds.tolist()
        for i in reversed(self.order.tolist()):
            for k in range(first[i], first[i + 1]):
                ends[i] = min(ends[i], ends[node[k]] - lengths[node[k]] - seconds[k])
        return np.array(ends)

    def extreme(self, position: int) -> NDArray[np.float64]:
        """Seconds of every instruction at its fastest (0) or slowest (-1) point."""
        return np.array([curve.seconds[position] for curve in self.curves])[self.curve_of]


def network(problem: PipelineProblem) -> Network:
    """The arrays of a problem.

    Raises:
        InvalidValueError: Instructions wait for each other forever, or an array is malformed.
    """
    _check(problem)
    count = len(problem)
    order = topological_order(problem.instructions, problem.edge_from, problem.edge_to)
    before = _adjacency(count, problem.edge_to, problem.edge_from, problem.edge_seconds)
    after = _adjacency(count, problem.edge_from, problem.edge_to, problem.edge_seconds)
    ranks = np.array([instruction.rank for instruction in problem.instructions])
    # Ranks of equal blocking power share curves, so that equal work is equal to the last digit.
    watts, watts_of = np.unique(problem.blocking_watts[ranks], return_inverse=True)
    keys, curve_of = np.unique(
        problem.profile_of.astype(np.int64) * len(watts) + watts_of, return_inverse=True
    )
    curves = tuple(
        _curve(problem.profiles[key // len(watts)], float(watts[key % len(watts)]))
        for key in keys.tolist()
    )
    return Network(
        order=np.array(order, dtype=np.int32),
        before=before,
        after=after,
        curves=curves,
        curve_of=curve_of.astype(np.int32),
        points=CostCurve(
            *(
                np.concatenate([getattr(curve, f.name) for curve in curves])
                for f in fields(CostCurve)
            )
        ),
        first_point=np.cumsum([0, *(len(curve.seconds) for curve in curves)]).astype(np.int32),
        blocking_watts=float(problem.blocking_watts.sum()),
    )


def _check(problem: PipelineProblem) -> None:
    count = len(problem)
    if not count:
        raise InvalidValueError(
            "a pipeline without instructions cannot be planned",
            remedy="give at least one stage and one microbatch",
        )
    edges = problem.edge_from, problem.edge_to
    lengths = {len(array) for array in (*edges, problem.edge_seconds)}
    if len(lengths) > 1 or len(problem.profile_of) != count:
        raise InvalidValueError(
            "edges, or profiles of instructions, are incomplete",
            remedy="give edges of one length, and each instruction a profile",
        )
    ranks = np.array([instruction.rank for instruction in problem.instructions])
    for noun, array, size in (
        *(("an edge", array, count) for array in edges),
        ("a profile", problem.profile_of, len(problem.profiles)),
        ("a rank", ranks, problem.ranks),
    ):
        wrong = array[(array < 0) | (array >= size)]
        if len(wrong):
            raise InvalidValueError(
                f"{noun} refers to number {wrong[0]} of {size}", remedy="number them from 0"
            )
    for noun, values in (
        ("time between instructions", problem.edge_seconds),
        ("blocking power", problem.blocking_watts),
    ):
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise InvalidValueError(
                f"a {noun} is negative or not finite", remedy="give finite values from 0 on"
            )


def _adjacency(
    count: int,
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    seconds: NDArray[np.float64],
) -> Adjacency:
    by_node = np.argsort(tails, kind="stable")
    first = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(tails, minlength=count), out=first[1:])
    lag = np.ascontiguousarray(seconds[by_node], dtype=np.float64)
    return Adjacency(first, heads[by_node].astype(np.int32), lag)


def _curve(choices: ClockChoices, blocking_watts: float) -> CostCurve:
    """The cost of the points above waiting; points that do not pay for their time are left out."""
    points: list[OperatingPoint] = []
    costs: list[float] = []
    for point in choices.points:
        cost = point.joules - blocking_watts * point.seconds
        if not points or cost < costs[-1]:
            points.append(point)
            costs.append(cost)
    seconds = [point.seconds for point in points]
    on_hull = np.zeros(len(points), dtype=np.uint8)
    on_hull[_hull(seconds, costs)] = 1
    return CostCurve(
        seconds=np.array(seconds),
        cost=np.array(costs),
        on_hull=on_hull,
        joules=np.array([point.joules for point in points]),
        hertz=np.array([clock_hertz(point) for point in points]),
    )


def _hull(seconds: Sequence[float], costs: Sequence[float]) -> list[int]:
    """Positions of the vertices of the lower convex hull, by time."""
    hull: list[int] = []
    for position, (time, cost) in enumerate(zip(seconds, costs, strict=True)):
        while len(hull) >= 2:
            a, b = hull[-2:]
            rise, run = costs[b] - costs[a], seconds[b] - seconds[a]
            if rise * (time - seconds[a]) < (cost - costs[a]) * run:
                break
            hull.pop()
        hull.append(position)
    return hull
