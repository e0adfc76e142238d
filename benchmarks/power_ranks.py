"""What a limit for each rank saves where boards of one model differ, against one limit for all.

Jobs on 8 boards whose constants are shaken (speed by up to 5 %, power by up to 8 %, from rank to
rank) are tuned to their end; every step waits for the slowest rank, and a rank that waits draws a
share of its power. They are judged by the truth of the limits that are held at the end.

usage: python benchmarks/power_ranks.py [--smoke | --quick] [--json FILE]
"""

from __future__ import annotations

import math
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import benchmark_parser, say, write_results

from joulery.hardware import catalog, settle
from joulery.objectives import LeastEnergy
from joulery.power import (
    KnobRange,
    Reading,
    TunerConfig,
    TunerState,
    TuningMachine,
    UnequalBoards,
    limit_curves,
)
from joulery.reports import table_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RANKS, STEPS, STEP_SECONDS, NOISE = 8, 12_000, 0.1, 0.005
SPEED, POWER = 0.05, 0.08
BOUNDS = (0.01, 0.05, 0.1)
BOARDS = ("V100", "A100", "H100")
# One sigma of the moment at which the counters are read.
EDGE_SECONDS = 0.002


@dataclass(frozen=True)
class Job:
    """Boards of a job: seconds and watts of each (row) under each limit (column) while it works."""

    limits: Array
    seconds: Array
    watts: Array
    waiting: float

    def step(self, limits: Array) -> tuple[float, float]:
        """Seconds and joules of a step with these limits by rank."""
        own = np.array(
            [np.interp(w, self.limits, row) for w, row in zip(limits, self.seconds, strict=True)]
        )
        power = np.array(
            [np.interp(w, self.limits, row) for w, row in zip(limits, self.watts, strict=True)]
        )
        longest = own.max()
        return float(longest), float((power * (own + self.waiting * (longest - own))).sum())


def draw(seed: int, *, equal: bool) -> Job:
    """A job on boards of one model, drawn at random."""
    chance = np.random.default_rng(9_000 + seed)
    board = catalog.board(str(chance.choice(BOARDS)))
    work = catalog.workload(str(chance.choice(catalog.workload_names())), board)
    limits = np.arange(math.ceil(board.min_limit_watts), math.floor(board.default_limit_watts) + 1)
    seconds, watts = [], []
    for _ in range(RANKS):
        speed, power = chance.uniform(-SPEED, SPEED), chance.uniform(-POWER, POWER)
        if equal:
            speed = power = 0.0
        shaken = replace(
            board,
            clock_watts=board.clock_watts * (1 + power),
            dynamic_watts=board.dynamic_watts * (1 + power),
            memory_watts=board.memory_watts * (1 + power),
        )
        points = [settle(shaken, work.scaled(1 / (1 + speed)), float(limit)) for limit in limits]
        seconds.append([point.seconds for point in points])
        watts.append([point.watts for point in points])
    pace = np.array(seconds)
    pace *= STEP_SECONDS / pace[:, -1].max()
    return Job(limits.astype(float), pace, np.array(watts), float(chance.uniform(0.4, 0.8)))


def run(task: tuple[int, float, bool]) -> dict[str, Any]:
    """One job to its end, and what its limits do."""
    seed, bound, equal = task
    job = draw(seed, equal=equal)
    chance, objective, config = np.random.default_rng(seed), LeastEnergy(bound), TunerConfig()
    span = KnobRange(job.limits, lambda watts: limit_curves(job.limits, watts / RANKS))
    alike = TuningMachine(span, objective, config)
    machine = UnequalBoards(alike, span, objective, config, RANKS)
    now, joules, steps = 0.0, 0.0, 0
    limits = held = np.full(RANKS, job.limits[-1])

    def reading(watts: float) -> Reading:
        sigma = EDGE_SECONDS * watts
        return Reading(now, joules + sigma * float(chance.standard_normal()), sigma, steps)

    command, watts = machine.start(reading(0.0)), 0.0
    while steps < STEPS:
        shares = np.array(command.shares or [1.0] * RANKS)
        limits = np.maximum(job.limits[0], job.limits[command.position] * shares)
        settled = machine.choice
        if command.state is TunerState.HOLDING and settled is not None:
            share = np.array(settled.shares or [1.0] * RANKS)
            held = np.maximum(job.limits[0], job.limits[settled.position] * share)
        seconds, energy = job.step(limits)
        work = float((1 + NOISE * chance.standard_normal(command.steps)).sum())
        now, joules, steps = now + work * seconds, joules + work * energy, steps + command.steps
        watts = energy / seconds
        command = machine.send(reading(watts))
    return {"seed": seed, "bound": bound, "equal": equal} | _judge(job, held)


def _judge(job: Job, held: Array) -> dict[str, float]:
    seconds, joules = job.step(held)
    alike = np.array([job.step(np.full(RANKS, watts)) for watts in job.limits])
    pace, energy = np.maximum.accumulate(alike[::-1, 0])[::-1], alike[:, 1]
    # One limit for all with the same step time, and one with the same watts.
    same_time = float(energy[pace <= seconds * (1 + 1e-9)].min())
    within = energy / pace <= joules / seconds
    same_watts = float(pace[within].min()) if within.any() else math.nan
    return {
        "slowdown": seconds / float(pace[-1]) - 1,
        "below_default": 1 - joules / float(energy[-1]),
        "below_common": 1 - joules / same_time,
        "faster": same_watts / seconds - 1,
        "lowest_share": float(held.min() / held.max()),
    }


def main() -> None:
    """Run every job."""
    parser = benchmark_parser(__doc__, "few jobs")
    parser.add_argument("--first", type=int, default=100, metavar="N", help="first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    bounds = BOUNDS[-1:] if options.smoke else BOUNDS
    count = 1 if options.smoke else 6 if options.quick else 40
    seeds = range(options.first, options.first + count)
    tasks = [(seed, bound, equal) for equal in (False, True) for bound in bounds for seed in seeds]
    say(f"{len(tasks)} jobs")
    with ProcessPoolExecutor(options.processes) as pool:
        rows = list(pool.map(run, tasks, chunksize=1))
    figures, lines = {}, []
    for equal in (False, True):
        for bound in bounds:
            part = [row for row in rows if (row["equal"], row["bound"]) == (equal, bound)]
            kind = "equal" if equal else "unequal"
            means = {
                name: statistics.mean(row[name] for row in part)
                for name in ("below_default", "below_common", "faster")
            }
            means["kept"] = statistics.mean(row["slowdown"] <= bound for row in part)
            means["worst_slowdown"] = max(row["slowdown"] for row in part)
            means["lowest_share"] = min(row["lowest_share"] for row in part)
            name = f"{kind}_{100 * bound:g}_percent"
            figures |= {f"{name}_{figure}": value for figure, value in means.items()}
            shown = [f"{100 * value:.1f} %" for value in means.values()]
            lines.append([kind, f"{100 * bound:g} %", str(len(part)), *shown])
    heads = ["boards", "slower", "jobs", "below default", "below common limit", "faster"]
    print(table_text([*heads, "kept", "worst slowdown", "lowest share"], lines))
    write_results(options.json, "power_ranks", figures, rows)


if __name__ == "__main__":
    main()
