"""What finding a power limit costs, and how good the limit is, beside Zeus.

Three parts. Loops on emulated boards behind the real NVML binding, at held time, tuned by us and by
Zeus's GlobalPowerLimitOptimizer, with the same boards, steps and noise. Virtual jobs from measured
power-limit sweeps, tuned by us and by measuring every limit of the sweep for five seconds. The cost
of one ``step()`` once settled.

The tuner's constants were chosen on the boards named in ``CHOSEN_ON``, on samples of the measured
sweeps, and on drawn and bent boards of other seeds. The ones drawn here tell what to expect
elsewhere.

usage: python benchmarks/power.py [--quick | --sweeps] [--json FILE] [--data DIR]
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from peers import benchmark_parser, print_figures, say, work, write_results
from power_tables import WORK_SECONDS, Job, made_up, regret_of, tables

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.metering import Meter
from joulery.objectives import Cost
from joulery.power import LimitKnob, PowerTuner, TunerState
from joulery.reports import table_text as table

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.training_loop import held_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WORKER = Path(__file__).with_name("power_worker.py")
BOARDS = ("V100", "A100")
# Emulated boards that the constants of the tuner were chosen on.
CHOSEN_ON = frozenset({"V100", "A100"})
MADE_UP = ("drawn", "bent")
SLOWDOWN = 0.05
STEPS_SECONDS = (0.002, 0.1, 2.0)
OBJECTIVES = ("eta 0", "eta 0.5", "eta 1", "5 % slower")
TABLE_OBJECTIVES = ("eta 0.5", "eta 1", "5 % slower")
GOOD = 0.005
# Relative standard deviation of a step's time.
NOISE = 0.005
PROCESSES = os.cpu_count() or 1
# A board's counter refreshes every 100 ms, so Zeus's 40 steps of 2 ms measure nothing; there it
# gets the five seconds per limit that its paper found to be enough.
FIVE_SECONDS_BELOW = 0.1

Cell = tuple[str, float, str]


class Seeds(NamedTuple):
    """How many runs of each tuner."""

    ours: int
    zeus: int


QUICK_CELLS: tuple[Cell, ...] = (
    *(("V100", 0.1, objective) for objective in OBJECTIVES),
    ("V100", 0.002, "5 % slower"),
    ("V100", 2.0, "5 % slower"),
    ("A100", 0.1, "eta 1"),
    *(("drawn", 0.1, objective) for objective in TABLE_OBJECTIVES),
)
CELLS: tuple[Cell, ...] = (
    *itertools.product(BOARDS, STEPS_SECONDS, OBJECTIVES),
    *itertools.product(("drawn",), (0.1, 2.0), TABLE_OBJECTIVES),
)


def emulated(*, quick: bool) -> list[dict[str, Any]]:
    """Every cell and seed, tuned by us and by Zeus."""
    cells, seeds = (QUICK_CELLS, Seeds(2, 2)) if quick else (CELLS, Seeds(20, 5))
    # Few processes for few tasks: each imports Zeus anew, which takes seconds.
    count = PROCESSES if quick else len(cells)
    batches = [cells[start::count] for start in range(count)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        rows = [
            row for done in pool.map(lambda batch: _rows(batch, seeds), batches) for row in done
        ]
    return sorted(rows, key=lambda row: cells.index(_cell(row)))


def _rows(cells: Sequence[Cell], seeds: Seeds) -> list[dict[str, Any]]:
    tasks = [task for cell in cells for task in _tasks(cell, seeds)]
    answers = work(WORKER, dict(os.environ), tasks)
    say("; ".join(f"{board}, {seconds:g} s steps, {words}" for board, seconds, words in cells))
    done = list(zip(tasks, answers, strict=True))
    return [_row(cell, [(t, a) for t, a in done if _cell(t) == cell and a]) for cell in cells]


def _cell(row: dict[str, Any]) -> Cell:
    return row["board"], row["step_seconds"], row["objective"]


def _tasks(cell: Cell, seeds: Seeds) -> list[dict[str, Any]]:
    board, seconds, objective = cell
    task = {"board": board, "step_seconds": seconds, "objective": objective, "noise": NOISE}
    peers = ("zeus_5s", "zeus") if seconds < FIVE_SECONDS_BELOW else ("zeus",)
    # What Zeus's profile costs hardly varies on one board; drawn ones are all different.
    zeus_seeds = seeds.ours if board == "drawn" else seeds.zeus
    runs = [("ours", seed) for seed in range(seeds.ours)]
    runs += [(zeus, seed) for zeus in peers for seed in range(zeus_seeds)]
    return [{**task, "tuner": tuner, "seed": seed} for tuner, seed in runs]


def _row(cell: Cell, runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(("board", "step_seconds", "objective"), cell, strict=True))
    tried = {task["tuner"] for task, _ in runs}
    fair = "zeus_5s" if "zeus_5s" in tried else "zeus"
    for kind, tuner in (("ours", "ours"), ("zeus", fair), ("zeus_default", "zeus")):
        answers = [answer for task, answer in runs if task["tuner"] == tuner]
        # What Zeus's profile costs with its defaults counts even where it then finds nothing.
        done = [a for a in answers if kind == "zeus_default" or "failed" not in a]
        row[kind] = {"runs": len(answers), "failed": len(answers) - len(done)}
        if done:
            row[kind] |= _summary(done)
    return row


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "good": sum(run["regret"] <= GOOD for run in runs),
        "limits": sorted({run["limit"] for run in runs}),
        "best": sorted({run["best"] for run in runs}),
        # The time that the loop spends in the tuner counts too, as if the board waited.
        "extra": statistics.mean(run["extra_cost"] + run["loop_seconds"] for run in runs),
        **{
            name: statistics.mean(run[name] for run in runs)
            for name in (
                "extra_seconds",
                "extra_joules",
                "loop_seconds",
                "beside_seconds",
                "seconds",
                "steps",
            )
        },
        "broke_its_bound": sum(math.isinf(run["regret"]) for run in runs),
        "settled_seconds": statistics.mean(
            run.get("settled_seconds", run["seconds"]) for run in runs
        ),
    }


def virtual(folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Regret on measured sweeps."""
    jobs = list(tables(folder))
    count = 4 if quick else 40
    if quick:
        jobs = jobs[::21]
    jobs += made_up(count)
    tasks = list(itertools.product(jobs, TABLE_OBJECTIVES))
    say(f"sweeps and curves: {len(jobs)} jobs, {len(TABLE_OBJECTIVES)} objectives each")
    with ProcessPoolExecutor(PROCESSES) as pool:
        found = list(pool.map(_table_regret, tasks, chunksize=2))
    return [
        {"job": job.name, "board": job.board, "objective": objective, **answer}
        for (job, objective), answer in zip(tasks, found, strict=True)
    ]


def _table_regret(job_and_objective: tuple[Job, str]) -> dict[str, float]:
    job, objective = job_and_objective
    # Other noise for every job: else one unlucky reading would count in all of them.
    return regret_of(job, objective, seed=zlib.crc32(f"{job.name} {objective}".encode()) + 1)


def overhead(steps: int) -> dict[str, float]:
    """Time of one step() once settled, with the boundaries that fall among them."""
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    workload = catalog.workload("resnet50", gpu.board)
    gpu.set_load(workload.scaled(0.01 / 0.6))
    meter = Meter([gpu], clock=clock)
    knob = LimitKnob([gpu], held_here)
    with PowerTuner([gpu], Cost(0.5, 250.0), knob=knob, meter=meter, clock=clock) as tuner:
        while tuner.state is not TunerState.HOLDING:
            clock.sleep(gpu.steady().seconds)
            tuner.step()
        for _ in range(min(20_000, steps)):  # late corrections
            clock.sleep(gpu.steady().seconds)
            tuner.step()
        spent = []
        for _ in range(steps):
            clock.sleep(0.01)
            # Processor time, so that other work on the machine does not count.
            started = time.thread_time_ns()
            tuner.step()
            spent.append(time.thread_time_ns() - started)
    meter.close()
    mean = statistics.mean(spent) / 1e3
    return {
        "median_us": statistics.median(spent) / 1e3,
        "mean_us": mean,
        "share_of_10_ms": mean / 1e4,
    }


def show(
    loops: list[dict[str, Any]], sweeps: list[dict[str, Any]], steps: dict[str, float]
) -> None:
    """Tables for people."""
    print(
        "\nUntil settled: extra seconds at the best limit's cost (eta 0.5), with the loop's own "
        "time in the tuner; beside: processor time of the tuner's thread"
    )
    print(
        "Boards that the constants were chosen on; then boards and jobs drawn at random, held out"
    )
    heads = [
        "board",
        "step s",
        "objective",
        "good",
        "limits",
        "best",
        "extra",
        "beside",
        "settled s",
    ]
    heads += ["zeus good", "limits", "extra", "ratio", "at its defaults: good", "extra", "ratio"]
    print(table(heads, [_loop_row(row) for row in loops]))
    show_sweeps(sweeps)
    print(
        f"\nstep() once settled: median {steps['median_us']:.2f} µs, "
        f"mean {steps['mean_us']:.2f} µs, "
        f"{100 * steps['share_of_10_ms']:.4f} % of a 10 ms step"
    )


def show_sweeps(sweeps: list[dict[str, Any]]) -> None:
    """The table of measured sweeps and drawn boards."""
    print(
        f"\nMeasured sweeps, drawn boards, and those bent by kinks and dips: "
        f"regret over {WORK_SECONDS:g} s of work, summed over jobs, in s"
    )
    heads = ["board", "objective", "jobs", "good", "late", "worst above default"]
    heads += ["ours", "of it the choice", "every limit 5 s", "of it the choice", "ratio"]
    print(table(heads, list(_sweep_rows(sweeps))))


def _loop_row(row: dict[str, Any]) -> list[str]:
    own, peer = row["ours"], row["zeus"]
    cells = [row["board"], f"{row['step_seconds']:g}", row["objective"]]
    cells += [f"{own['good']}/{own['runs']}", _span(own["limits"]), _span(own["best"])]
    cells += [f"{own['extra']:.2f}", f"{own['beside_seconds']:.2f}"]
    cells += [f"{own['settled_seconds']:.0f}"]
    if "extra" in peer:
        cells += [f"{peer['good']}/{peer['runs']}", _span(peer["limits"])]
        cells += [f"{peer['extra']:.2f}", f"{own['extra'] / peer['extra']:.2f}"]
    else:
        cells += [f"failed {peer['failed']}/{peer['runs']}", "", "", ""]
    default = row["zeus_default"]
    if row["step_seconds"] >= FIVE_SECONDS_BELOW or "extra" not in default:
        return [*cells, "", "", ""]
    cells += [f"{default['good']}/{default['runs']}", f"{default['extra']:.2f}"]
    return [*cells, f"{own['extra'] / default['extra']:.2f}"]


def _span(limits: list[int]) -> str:
    return f"{limits[0]}" if len(limits) == 1 else f"{limits[0]}–{limits[-1]}"


def _sweep_rows(sweeps: list[dict[str, Any]]) -> Iterator[list[str]]:
    """By board, measured ones first."""
    boards = sorted({row["board"] for row in sweeps}, key=lambda b: (b in MADE_UP, b))
    for board, objective in itertools.product(boards, TABLE_OBJECTIVES):
        mine = [r for r in sweeps if r["board"] == board and r["objective"] == objective]
        names = ("ours", "ours_choice", "exhaustive", "exhaustive_choice")
        sums = [f"{sum(row[name] for row in mine):.1f}" for name in names]
        late = sum(is_late(row) for row in mine)
        above = f"{100 * max(row['above_default'] for row in mine):.1f} %"
        count = f"{sum(is_good(row) for row in mine)}/{len(mine)}"
        yield [
            board,
            objective,
            str(len(mine)),
            count,
            str(late),
            above,
            *sums,
            f"{regret_ratio(mine):.2f}",
        ]


def is_late(row: dict[str, Any]) -> bool:
    """Whether the choice breaks its bound."""
    return bool("slower" in row["objective"] and row["slowdown"] > SLOWDOWN * (1 + 1e-9))


def is_good(row: dict[str, Any]) -> bool:
    """Whether the choice keeps its bound and is within half a per cent of the best."""
    return bool(row["excess"] <= GOOD) and not is_late(row)


def regret_ratio(rows: list[dict[str, Any]]) -> float:
    """Regret as a share of that of measuring every limit."""
    return float(sum(row["ours"] for row in rows) / sum(row["exhaustive"] for row in rows))


def figures(
    loops: list[dict[str, Any]], sweeps: list[dict[str, Any]], steps: dict[str, float]
) -> dict[str, float]:
    """The headline numbers."""
    chosen_on = [row for row in loops if row["board"] in CHOSEN_ON]
    held_out = [row for row in loops if row["board"] not in CHOSEN_ON]
    found = {**_loop_figures(chosen_on, ""), **_loop_figures(held_out, "held_out_")}
    found |= {"step_mean_us": steps["mean_us"], "step_share_of_10_ms": steps["share_of_10_ms"]}
    for kind, objective in itertools.product(("sweep", *MADE_UP), TABLE_OBJECTIVES):
        mine = [row for row in sweeps if row["objective"] == objective and _kind(row) == kind]
        words = objective.replace(" ", "_").replace("%", "percent")
        if mine:
            found[f"{kind}_regret_ratio_{words}"] = regret_ratio(mine)
            found[f"{kind}_good_share_{words}"] = statistics.mean(map(is_good, mine))
    return found


def _kind(row: dict[str, Any]) -> str:
    return row["board"] if row["board"] in MADE_UP else "sweep"


def _loop_figures(loops: list[dict[str, Any]], prefix: str) -> dict[str, float]:
    shares = [row["ours"]["good"] / row["ours"]["runs"] for row in loops]
    found = {"good_share": statistics.mean(shares), "least_good_share": min(shares)}
    compared = [row for row in loops if "extra" in row["zeus"]]
    if compared:
        ours, peers = ([row[kind]["extra"] for row in compared] for kind in ("ours", "zeus"))
        found["cost_ratio"] = sum(ours) / sum(peers)
        found["worst_cost_ratio"] = max(o / p for o, p in zip(ours, peers, strict=True))
        found["zeus_good_share"] = statistics.mean(
            row["zeus"]["good"] / row["zeus"]["runs"] for row in compared
        )
    return {prefix + name: value for name, value in found.items()}


def main() -> None:
    """Run everything."""
    parser = benchmark_parser(__doc__, "few seeds and jobs, under a minute")
    parser.add_argument("--sweeps", action="store_true", help="sweeps and curves only, in full")
    options = parser.parse_args()
    if options.smoke:
        found = {**overhead(2000), "emulated": float(len(_rows(QUICK_CELLS[:1], Seeds(1, 0))))}
        write_results(options.json, "power", found, [])
        print(found)
        return
    if options.sweeps:
        show_sweeps(virtual(options.data, quick=False))
        return
    loops = emulated(quick=options.quick)
    sweeps = virtual(options.data, quick=options.quick)
    steps = overhead(20_000 if options.quick else 200_000)
    show(loops, sweeps, steps)
    found = figures(loops, sweeps, steps)
    print_figures(found)
    write_results(options.json, "power", found, [*loops, *sweeps])


if __name__ == "__main__":
    main()
