"""Virtual jobs from measured power-limit sweeps, for the power benchmark."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from physics import discovered
from power_draws import bent, drawn_curves

from joulery.frontier import OperatingPoint
from joulery.objectives import Cost, EnergyDelayProduct, LeastEnergy, score
from joulery.power import KnobRange, Reading, TunerConfig, TunerState, TuningMachine, limit_curves

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulery.objectives import Objective

STEP_SECONDS = 0.1
WORK_SECONDS = 600.0
EXHAUSTIVE_SECONDS = 5.0
NOISE = 0.005
# One sigma of the moment at which a counter is read.
EDGE_SECONDS = 0.005


@dataclass(frozen=True)
class Job:
    """Step time and power at every whole watt; linear between the limits of the sweep."""

    name: str
    board: str
    sweep_watts: tuple[float, ...]
    limits: tuple[float, ...]
    seconds: tuple[float, ...]
    watts: tuple[float, ...]

    @property
    def joules(self) -> tuple[float, ...]:
        """Energy per step at every whole watt."""
        return tuple(s * w for s, w in zip(self.seconds, self.watts, strict=True))


def tables(folder: Path) -> Iterator[Job]:
    """Every workload and batch size of every power-limit sweep under a folder."""
    for sweep in discovered(folder):
        points = [(seen.limit_watts, seen.seconds, seen.watts) for seen in sweep.measurements]
        yield _job(sweep.label, sweep.board.name, points)


def made_up(count: int) -> Iterator[Job]:
    """Jobs on drawn boards, as they are and bent; every 25 W is a limit to measure."""
    for number in range(count):
        limits, seconds, watts = drawn_curves(number)
        kinds = {"drawn": (seconds, watts), "bent": bent(number, limits, seconds, watts)}
        sweep = sorted({limits[0], *np.arange(limits[-1], limits[0], -25.0)})
        for kind, (pace, power) in kinds.items():
            scaled = pace * STEP_SECONDS / pace[-1]
            curves = (tuple(each) for each in (sweep, limits, scaled, power))
            yield Job(f"{kind} {number}", kind, *curves)


def _job(name: str, board: str, points: list[tuple[float, float, float]]) -> Job:
    limits, seconds, watts = (np.array(column) for column in zip(*points, strict=True))
    every = np.arange(math.ceil(limits[0]), math.floor(limits[-1]) + 1.0)
    pace = np.interp(every, limits, seconds) * STEP_SECONDS / seconds[-1]
    return Job(
        name,
        board,
        tuple(limits),
        tuple(every),
        tuple(pace),
        tuple(np.interp(every, limits, watts)),
    )


def objective_named(name: str, max_watts: float) -> Objective:
    """The objectives that the benchmark asks for."""
    if name.startswith("eta"):
        return Cost(float(name.split()[1]), max_watts)
    return EnergyDelayProduct() if name == "EDP" else LeastEnergy(max_slowdown=0.05)


class Run:
    """One pass over the work under a changing limit, with everything counted."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job = job
        self.now = self.joules = 0.0
        self.steps = 0
        self.visits: dict[int, int] = defaultdict(int)
        self._chance = random.Random(seed)  # noqa: S311 - a benchmark, not a secret

    def advance(self, position: int, steps: int) -> None:
        """Do some steps."""
        pace, watts = self.job.seconds[position], self.job.watts[position]
        noise = NOISE * self._chance.gauss(0, 1) / math.sqrt(steps)
        seconds = pace * steps * max(0.5, 1 + noise)
        self.now += seconds
        self.joules += watts * seconds
        self.steps += steps
        self.visits[position] += steps

    def reading(self, position: int) -> Reading:
        """What a counter with a somewhat uncertain refresh shows."""
        sigma = EDGE_SECONDS * self.job.watts[position]
        shown = self.joules + sigma * self._chance.gauss(0, 1)
        return Reading(self.now, shown, sigma, self.steps)


def regret_of(job: Job, name: str, seed: int) -> dict[str, float]:
    """Regret of the tuner and of measuring every limit, each with that of the final choice.

    In seconds of work at the best limit, over ``WORK_SECONDS`` of work at the highest limit. Then
    the tuner's choice: its relative excess over the best and over the default, and its slowdown.
    """
    objective = objective_named(name, job.limits[-1])
    steps = round(WORK_SECONDS / STEP_SECONDS)
    ours = Run(job, seed)
    chosen = _tuned(ours, objective, steps, TunerConfig())
    exhaustive = Run(job, seed + 1)
    best_seen = _exhaustive(exhaustive, objective, steps)
    excesses = _excesses(job, objective)
    return {
        "ours": _regret(job, ours.visits, excesses),
        "ours_choice": steps * STEP_SECONDS * excesses[chosen],
        "exhaustive": _regret(job, exhaustive.visits, excesses),
        "exhaustive_choice": steps * STEP_SECONDS * excesses[best_seen],
        "excess": excesses[chosen],
        "above_default": (1 + excesses[chosen]) / (1 + excesses[-1]) - 1,
        "slowdown": job.seconds[chosen] / job.seconds[-1] - 1,
    }


def _excesses(job: Job, objective: Objective) -> list[float]:
    """Relative excess of every limit over the best; too slow counts as late, lean or not."""
    points = [OperatingPoint(s, j) for s, j in zip(job.seconds, job.joules, strict=True)]
    scores = [score(objective, p.seconds, p.joules, points[-1]) for p in points]
    best = min(range(len(points)), key=scores.__getitem__)
    excesses = []
    for point, value in zip(points, scores, strict=True):
        if math.isfinite(value):
            excesses.append(value / scores[best] - 1)
        else:
            late = point.seconds / points[best].seconds - 1
            excesses.append(max(late, abs(point.joules / scores[best] - 1)))
    return excesses


def _regret(job: Job, visits: dict[int, int], excesses: list[float]) -> float:
    best = job.seconds[min(range(len(excesses)), key=excesses.__getitem__)]
    return best * sum(n * excesses[position] for position, n in visits.items())


def _tuned(run: Run, objective: Objective, steps: int, rules: TunerConfig) -> int:
    values = np.array(run.job.limits)
    span = KnobRange(values, lambda watts: limit_curves(values, watts))
    machine = TuningMachine(span, objective, rules)
    last = len(values) - 1
    run.advance(last, 1)
    command = machine.start(run.reading(last))
    while run.steps < steps:
        run.advance(command.position, min(command.steps, steps - run.steps))
        command = machine.send(run.reading(command.position))
    assert command.state is not TunerState.STOPPED
    # Whatever it is compared with at the moment.
    return command.position if machine.choice is None else machine.choice.position


def _exhaustive(run: Run, objective: Objective, steps: int) -> int:
    job = run.job
    seen: list[tuple[OperatingPoint, int]] = []
    for watts in reversed(job.sweep_watts):
        position = bisect_right(job.limits, watts) - 1
        count = math.ceil(EXHAUSTIVE_SECONDS / job.seconds[position])
        before = run.reading(position)
        run.advance(position, count)
        after = run.reading(position)
        elapsed = after.now_seconds - before.now_seconds
        point = OperatingPoint(elapsed / count, max(0.0, after.joules - before.joules) / count)
        seen.append((point, position))
    _, best = min(
        seen,
        key=lambda pair: score(objective, pair[0].seconds, pair[0].joules, seen[0][0]),
    )
    run.advance(best, max(1, steps - run.steps))
    return best
