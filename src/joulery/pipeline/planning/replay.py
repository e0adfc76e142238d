"""An event simulator of one iteration, independent of the planner, to check its figures.

Every rank works through its instructions one at a time, each as soon as what it waits for has ended
and the data has arrived.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.pipeline.planning.problem import PipelineProblem


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
