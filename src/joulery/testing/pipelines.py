"""Random pipelines to plan: small graphs, and rows of profiles for pipelines of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.pipeline.instructions import Instruction
from joulery.pipeline.planning.problem import ClockChoices, PipelineProblem

if TYPE_CHECKING:
    from numpy.random import Generator


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
