"""What a clock for each phase saves on jobs that alternate between generation and updates.

Jobs are drawn: generation waits for memory, updates compute, 2 to 10 s each, half of the time
generation. A run tunes both on a simulated board and a virtual clock. What it holds at its end is
judged by the truth, beside the best single limit and the best single clock in hindsight and the
best clock for each phase.

usage: python benchmarks/power_phases.py [--smoke | --quick] [--json FILE]
"""

from __future__ import annotations

import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import benchmark_parser, say, write_results

from joulery import LeastEnergy, Run
from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, Workload, catalog, settle
from joulery.reports import table_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.hardware import Board

    Array = NDArray[np.float64]

BOUNDS, BOARDS, ROUNDS = (0.02, 0.05), ("V100", "A100", "H100"), 240


def draw(seed: int) -> tuple[Board, dict[str, Workload]]:
    """A board and the work of the two phases."""
    chance = np.random.default_rng(4_000 + seed)
    board = catalog.board(str(chance.choice(BOARDS)))
    memory = Workload("decode", chance.uniform(0.15, 0.5), 1.0, 0.05, activity=0.4)
    update = Workload("update", 1.0, chance.uniform(0.0, 0.6), 0.03, chance.uniform(0.6, 1.0))
    seconds = chance.uniform(2.0, 10.0)
    return board, {
        name: work.scaled(seconds / settle(board, work, board.default_limit_watts).seconds)
        for name, work in (("rollout", memory), ("update", update))
    }


def points(board: Board, work: Workload, limits: Array, clock: float | None = None) -> Array:
    """Seconds and joules of a phase, a row per limit."""
    steady = [settle(board, work, float(limit), clock) for limit in limits]
    return np.array([[point.seconds, point.seconds * point.watts] for point in steady])


def cheapest(seconds: Array, joules: Array, allowed: float) -> float:
    """Least energy within a time."""
    return float(joules[seconds <= allowed * (1 + 1e-9)].min())


def run(task: tuple[int, float]) -> dict[str, Any]:
    """One job to its end, and what could have been held."""
    seed, bound = task
    board, phases = draw(seed)
    chance = np.random.default_rng(seed)
    gpu = SimulatedGpu(board, VirtualClock(), seed=seed)
    with Run(objective=LeastEnergy(bound), devices=[gpu]) as tuned:
        for _ in range(ROUNDS):
            for name, work in phases.items():
                with tuned.phase(name):
                    gpu.run(work.scaled(float(chance.normal(1.0, 0.01))))
        uses = tuned.phases
    highest = np.array([board.default_limit_watts])
    full = sum(points(board, work, highest)[0] for work in phases.values())
    allowed = (1 + bound) * full[0]
    limits = np.arange(board.min_limit_watts, board.default_limit_watts + 0.5)
    by_limit = sum(points(board, work, limits) for work in phases.values())
    clocks = gpu.supported_clocks()
    by_clock = [
        np.array([points(board, work, highest, clock)[0] for clock in clocks])
        for work in phases.values()
    ]
    both = by_clock[0] + by_clock[1]
    pairs = by_clock[0][:, None] + by_clock[1][None]
    held = 0.0
    for name, work in phases.items():
        result = uses[name].result
        clock = None if result is None else result.chosen.setting.clock_hertz
        held = held + points(board, work, highest, clock)[0]
    references = {
        "limit": cheapest(by_limit[:, 0], by_limit[:, 1], allowed),
        "clock": cheapest(both[:, 0], both[:, 1], allowed),
    }
    best = cheapest(pairs[..., 0], pairs[..., 1], allowed)
    return {
        "seed": seed,
        "bound": bound,
        "slowdown": float(held[0] / full[0] - 1),
        "below_default": float(1 - held[1] / full[1]),
        **{f"below_{name}": float(1 - held[1] / joules) for name, joules in references.items()},
        **{f"possible_{name}": float(1 - best / joules) for name, joules in references.items()},
    }


def main() -> None:
    """Run every job."""
    parser = benchmark_parser(__doc__, "few jobs")
    parser.add_argument("--first", type=int, default=100, metavar="N", help="first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    bounds = BOUNDS[-1:] if options.smoke else BOUNDS
    count = 1 if options.smoke else 3 if options.quick else 30
    seeds = range(options.first, options.first + count)
    tasks = [(seed, bound) for bound in bounds for seed in seeds]
    say(f"{len(tasks)} jobs")
    with ProcessPoolExecutor(options.processes) as pool:
        rows = list(pool.map(run, tasks, chunksize=1))
    figures, lines = {}, []
    for bound in bounds:
        part = [row for row in rows if row["bound"] == bound]
        names = [name for name in part[0] if "below" in name or "possible" in name]
        means = {name: statistics.mean(row[name] for row in part) for name in names}
        means["worst_slowdown"] = max(row["slowdown"] for row in part)
        figures |= {f"{name}_{100 * bound:g}_percent": value for name, value in means.items()}
        shown = [f"{100 * value:.1f} %" for value in means.values()]
        lines.append([f"{100 * bound:g} %", str(len(part)), *shown])
    heads = ["slower", "jobs", "below default", "below best limit", "below best clock"]
    heads += ["possible below limit", "possible below clock", "worst slowdown"]
    print(table_text(heads, lines))
    write_results(options.json, "power_phases", figures, rows)


if __name__ == "__main__":
    main()
