"""Random pipelines to plan, and what checks plans without the planner: events, linear programs."""

from __future__ import annotations

import heapq
import importlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError, JouleryError
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.pipeline import ClockChoices, Instruction, PipelineProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from joulery.pipeline.planning._network import Network


def random_problem(
    seed: int, instructions: int = 8, ranks: int = 3, points: int = 4, *, whole: bool = False
) -> PipelineProblem:
    """Ranks that work through their instructions one by one, with random edges in between.

    Args:
        seed: Seed; equal seeds give equal problems.
        instructions: Number of instructions.
        ranks: Number of ranks that they are spread over.
        points: Largest number of clocks for each piece of work.
        whole: Whether times, energies and powers are whole numbers, which makes ties likely.
    """
    draw = np.random.default_rng(seed)
    rank_of = draw.integers(0, ranks, instructions)
    last: dict[int, int] = {}
    edges: list[tuple[int, int, float]] = []
    for i, rank in enumerate(rank_of.tolist()):
        if rank in last:
            edges.append((last[rank], i, 0.0))
        last[rank] = i
        if i and draw.random() < 0.6:
            lag = (
                float(draw.integers(0, 2)) if whole else draw.uniform(0, 0.3) * draw.integers(0, 2)
            )
            edges.append((int(draw.integers(0, i)), i, float(lag)))
    kinds = max(1, instructions // 2)
    profiles = tuple(_random_choices(draw, points, whole=whole) for _ in range(kinds))
    watts = draw.integers(0, 3, ranks).astype(float) if whole else draw.uniform(0, 30, ranks)
    return PipelineProblem(
        instructions=tuple(Instruction(r, r, "work", i) for i, r in enumerate(rank_of.tolist())),
        profiles=profiles,
        profile_of=draw.integers(0, kinds, instructions),
        edge_from=np.array([edge[0] for edge in edges], dtype=np.int64),
        edge_to=np.array([edge[1] for edge in edges], dtype=np.int64),
        edge_seconds=np.array([edge[2] for edge in edges], dtype=np.float64),
        blocking_watts=watts,
    )


def _random_choices(draw: Generator, points: int, *, whole: bool) -> ClockChoices:
    count = int(draw.integers(1, points + 1))
    if whole:
        seconds = np.cumsum(draw.integers(1, 4, count)).astype(float)
        joules = np.cumsum(draw.integers(1, 12, count))[::-1].astype(float) + 20.0
    else:
        seconds = np.sort(draw.uniform(0.5, 2.0, count))
        joules = np.sort(draw.uniform(100.0, 300.0, count))[::-1]
    cloud = (
        OperatingPoint(float(t), float(e), Setting(clock_hertz=1e9 + 1e6 * (count - k)))
        for k, (t, e) in enumerate(zip(seconds, joules, strict=True))
    )
    return ClockChoices(tuple(Frontier.from_points(cloud)))


def random_rows(stages: int, seed: int, clocks: int = 25) -> list[dict[str, Any]]:
    """Rows of a pipeline profile: unequal stages under a plausible power law, with some noise."""
    draw = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for stage in range(stages):
        size = draw.uniform(0.8, 1.2)
        for kind, work in (("forward", 1.0), ("backward", 2.0)):
            speed = np.linspace(1.0, 0.45, clocks)
            bound_by_memory = draw.uniform(0.2, 0.5)
            base = 0.05 * work * size * draw.uniform(0.9, 1.1)
            seconds = base * (bound_by_memory + (1 - bound_by_memory) / speed)
            watts = draw.uniform(60, 100) + draw.uniform(200, 300) * speed ** draw.uniform(2, 3)
            seconds *= 1 + draw.normal(0, 0.002, clocks)
            joules = watts * seconds * (1 + draw.normal(0, 0.005, clocks))
            rows += [
                {
                    "stage": stage,
                    "instruction": kind,
                    "frequency": float(1410 * f),
                    "time": float(t),
                    "energy": float(e),
                }
                for f, t, e in zip(speed, seconds, joules, strict=True)
            ]
    return rows


@dataclass(frozen=True, slots=True)
class Replay:
    """What happened in a simulated iteration.

    Attributes:
        starts: (instructions,), seconds from the start of the iteration.
        seconds: Time until the iteration ended.
        joules: Energy of all instructions and of all waiting.
        waiting_seconds: (ranks,), time that each rank waited.
    """

    starts: NDArray[np.float64]
    seconds: float
    joules: float
    waiting_seconds: NDArray[np.float64]


def replay(
    problem: PipelineProblem,
    durations: Sequence[float] | NDArray[np.float64],
    energies: Sequence[float] | NDArray[np.float64],
    iteration_seconds: float | None = None,
) -> Replay:
    """Run an iteration whose instructions take and need what is given.

    Args:
        problem: Dependencies, and the power of waiting.
        durations: (instructions,), seconds of each.
        energies: (instructions,), joules of each.
        iteration_seconds: Time at which the iteration ends for all ranks, such as a straggler's
            pace; the end of the last instruction by default or if that is later.

    Raises:
        InvalidValueError: The instructions wait for each other forever, or a figure is missing.
    """
    if len(durations) != len(problem) or len(energies) != len(problem):
        raise InvalidValueError(
            f"{len(durations)} durations and {len(energies)} energies for {len(problem)} "
            "instructions",
            remedy="give one of each per instruction",
        )
    starts = _run(problem, [float(duration) for duration in durations])
    lengths = np.asarray(durations, dtype=np.float64)
    end = float(np.max(starts + lengths, initial=0.0))
    end = end if iteration_seconds is None else max(end, iteration_seconds)
    busy = np.zeros(problem.ranks)
    np.add.at(busy, [item.rank for item in problem.instructions], lengths)
    waiting = end - busy
    joules = float(np.sum(energies)) + float(problem.blocking_watts @ waiting)
    return Replay(starts, end, joules, waiting)


def _run(problem: PipelineProblem, durations: list[float]) -> NDArray[np.float64]:
    """When each instruction starts, by events in the order in which they happen."""
    missing = np.bincount(problem.edge_to, minlength=len(problem)).tolist()
    followers: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for before, after, delay in zip(
        problem.edge_from.tolist(),
        problem.edge_to.tolist(),
        problem.edge_seconds.tolist(),
        strict=True,
    ):
        followers[before].append((after, delay))
    events = [(0.0, position) for position, count in enumerate(missing) if not count]
    heapq.heapify(events)
    arrivals: dict[int, float] = {}
    starts = np.full(len(problem), np.nan)
    occupied: dict[int, float] = defaultdict(float)
    done = 0
    while events:
        ready, position = heapq.heappop(events)
        rank = problem.instructions[position].rank
        if ready < occupied[rank]:
            raise InvalidValueError(
                f"{problem.instructions[position]} would start while rank {rank} is at work",
                remedy="order the instructions of each rank one after another",
            )
        starts[position] = ready
        occupied[rank] = end = ready + durations[position]
        done += 1
        for after, delay in followers[position]:
            arrivals[after] = max(arrivals.get(after, 0.0), end + delay)
            missing[after] -= 1
            if not missing[after]:
                heapq.heappush(events, (arrivals[after], after))
    if done < len(problem):
        raise InvalidValueError(
            f"{len(problem) - done} instructions wait for each other forever",
            remedy="check the order of the instructions",
        )
    return starts


class LinearProgram:
    """The continuous frontier of a network by HiGHS, to check the planner's core against.

    A duration is its fastest plus a piece of each edge of its hull; cost is convex, so the cheapest
    pieces fill up first.
    """

    def __init__(self, network: Network) -> None:
        self._highspy: Any = importlib.import_module("highspy")
        self._network = network
        hulls = [curve.hull() for curve in network.curves]
        pieces = [np.diff(seconds) for seconds, _ in hulls]
        slopes = [np.diff(cost) / np.diff(seconds) for seconds, cost in hulls]
        curve_of = network.curve_of.tolist()
        self._fastest = network.extreme(0)
        self._cost_fastest = float(sum(hulls[curve][1][0] for curve in curve_of))
        counts = np.array([len(piece) for piece in pieces], dtype=np.int64)[curve_of]
        self._first_piece = np.concatenate([[0], np.cumsum(counts)])
        longest = np.concatenate([pieces[curve] for curve in curve_of])
        price = np.concatenate([slopes[curve] for curve in curve_of])
        self._solver = self._highspy.Highs()
        self._solver.setOptionValue("output_flag", False)  # noqa: FBT003 - HiGHS's own signature
        for tolerance in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self._solver.setOptionValue(tolerance, 1e-10)
        self._solver.passModel(self._model(longest, price))

    def solve(self, seconds: float) -> tuple[float, float, NDArray[np.float64]]:
        """Least cost, what a second more would save, and durations, within ``seconds``."""
        self._solver.changeColBounds(0, 0.0, seconds)
        self._solver.run()
        status = self._solver.getModelStatus()
        if status != self._highspy.HighsModelStatus.kOptimal:
            words = self._solver.modelStatusToString(status)
            raise JouleryError(
                f"HiGHS cannot solve an iteration of {seconds:g} s: {words}",
                remedy="allow at least the time of the fastest clocks",
            )
        solution = self._solver.getSolution()
        pieces = np.array(solution.col_value)[1 + len(self._network) :]
        sums = np.concatenate([[0.0], np.cumsum(pieces)])
        durations = self._fastest + np.diff(sums[self._first_piece])
        cost = self._cost_fastest + self._solver.getInfo().objective_function_value
        return cost, -float(solution.col_dual[0]), durations

    def _model(self, longest: NDArray[np.float64], price: NDArray[np.float64]) -> Any:
        """Columns: the iteration time, starts, pieces. Rows: edges, then ends of the last ones."""
        count, pieces = len(self._network), len(longest)
        starts, columns, values, least = self._rows()
        model = self._highspy.HighsLp()
        model.num_col_, model.num_row_ = 1 + count + pieces, len(least)
        model.col_cost_ = np.concatenate([np.zeros(1 + count), price])
        model.col_lower_ = np.zeros(1 + count + pieces)
        model.col_upper_ = np.concatenate([np.full(1 + count, self._highspy.kHighsInf), longest])
        model.row_lower_ = least
        model.row_upper_ = np.full(len(least), self._highspy.kHighsInf)
        model.a_matrix_.format_ = self._highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = starts
        model.a_matrix_.index_ = columns
        model.a_matrix_.value_ = values
        return model

    def _rows(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
        """``start of the next - start - pieces >= fastest + lag``; the end is everyone's next."""
        after, count = self._network.after, len(self._network)
        first, node, lag = after.first.tolist(), after.node.tolist(), after.seconds.tolist()
        starts, columns, values, least = [0], list[int](), list[float](), list[float]()
        for i in range(count):
            pieces = range(1 + count + self._first_piece[i], 1 + count + self._first_piece[i + 1])
            nexts = [(1 + node[k], lag[k]) for k in range(first[i], first[i + 1])]
            for column, seconds in nexts or [(0, 0.0)]:
                columns += [column, 1 + i, *pieces]
                values += [1.0] + [-1.0] * (1 + len(pieces))
                least.append(self._fastest[i] + seconds)
                starts.append(len(columns))
        return (
            np.array(starts, dtype=np.int32),
            np.array(columns, dtype=np.int32),
            np.array(values),
            np.array(least),
        )
