"""Random pipelines to plan, and an event simulator, independent of the planner, to check plans."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.pipeline import ClockChoices, Instruction, PipelineProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray


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
    return ClockChoices.from_points(Frontier.from_points(cloud))


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
