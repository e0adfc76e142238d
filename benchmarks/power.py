"""What finding a power limit costs, and how good the limit is, beside Zeus.

Three parts. Loops on emulated boards behind the real NVML binding, at held time, tuned by us and by
Zeus's GlobalPowerLimitOptimizer, with the same boards, steps and noise. Virtual jobs from measured
power-limit sweeps, tuned by us and by measuring every limit of the sweep for five seconds. The cost
of one ``step()`` once settled.

usage: python benchmarks/power.py [--quick] [--json FILE] [--data DIR]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from peers import say, work, write_results
from power_tables import WORK_SECONDS, Job, regret_of, tables

from joulery.cli.table import table
from joulery.clock import VirtualClock
from joulery.hardware import catalog
from joulery.hardware.simulated import SimulatedGpu
from joulery.measure.meter import Meter
from joulery.objectives import Cost
from joulery.power.knob import LimitKnob, held_here
from joulery.power.machine import State
from joulery.power.tuner import PowerTuner

WORKER = Path(__file__).with_name("power_worker.py")
BOARDS = ("V100", "A100")
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


def emulated(*, quick: bool) -> list[dict[str, Any]]:
    """Every board, step length, objective and seed, tuned by us and by Zeus."""
    seeds, peer_seeds = (1, 1) if quick else (20, 20)
    groups = []
    for board in BOARDS:
        for seconds in STEPS_SECONDS:
            for objective in OBJECTIVES:
                task = {"board": board, "step_seconds": seconds, "objective": objective}
                peers = ["zeus", "zeus_5s"] if seconds < FIVE_SECONDS_BELOW else ["zeus"]
                kinds = [("ours", seed) for seed in range(seeds)]
                kinds += [(peer, seed) for peer in peers for seed in range(peer_seeds)]
                groups.append([{**task, "noise": NOISE, "tuner": k, "seed": s} for k, s in kinds])
    with ThreadPoolExecutor(PROCESSES) as pool:
        return list(pool.map(_group, groups))


def _group(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    first = tasks[0]
    label = f"{first['board']}, {first['step_seconds']:g} s steps, {first['objective']}"
    answers = work(WORKER, dict(os.environ), tasks)
    say(label)
    row: dict[str, Any] = {k: first[k] for k in ("board", "step_seconds", "objective")}
    for kind in ("ours", "zeus", "zeus_5s"):
        runs = [a for t, a in zip(tasks, answers, strict=True) if t["tuner"] == kind and a]
        done = [run for run in runs if "failed" not in run]
        row[kind] = {"runs": len(runs), "failed": len(runs) - len(done)}
        if done:
            row[kind] |= _summary(done)
    return row


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "good": sum(run["regret"] <= GOOD for run in runs),
        "limits": sorted({run["limit"] for run in runs}),
        "best": runs[0]["best"],
        # The time that the tuner itself computes counts too, as if the board waited.
        "extra": statistics.mean(run["extra_cost"] + run["own_seconds"] for run in runs),
        **{
            name: statistics.mean(run[name] for run in runs)
            for name in ("extra_seconds", "extra_joules", "own_seconds", "seconds", "steps")
        },
        "worst_regret": max(run["regret"] for run in runs),
        "settled_seconds": statistics.mean(
            run.get("settled_seconds", run["seconds"]) for run in runs
        ),
    }


def peer_of(row: dict[str, Any]) -> dict[str, Any]:
    """The Zeus that is compared: with five seconds per limit where its default cannot measure."""
    found: dict[str, Any] = row["zeus_5s" if row["step_seconds"] < FIVE_SECONDS_BELOW else "zeus"]
    return found


def virtual(folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Regret on measured sweeps."""
    jobs = list(tables(folder))
    if quick:
        jobs = jobs[::16]
    rows = []
    for objective in TABLE_OBJECTIVES:
        say(f"measured sweeps: {len(jobs)} jobs, {objective}")
        work_list = [(job, objective) for job in jobs]
        with ProcessPoolExecutor(PROCESSES) as pool:
            found = list(pool.map(_table_regret, work_list, chunksize=2))
        rows += [
            {
                "job": job.name,
                "objective": objective,
                "ours": answer[0],
                "ours_choice": answer[1],
                "exhaustive": answer[2],
                "exhaustive_choice": answer[3],
            }
            for job, answer in zip(jobs, found, strict=True)
        ]
    return rows


def _table_regret(job_and_objective: tuple[Job, str]) -> tuple[float, float, float, float]:
    job, objective = job_and_objective
    return regret_of(job, objective, seed=3)


def overhead(*, quick: bool) -> dict[str, float]:
    """Time of one step() once settled, with the boundaries that fall among them."""
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    workload = catalog.workload("resnet50", gpu.board)
    gpu.set_load(workload.scaled(0.01 / 0.6))
    meter = Meter([gpu], clock=clock)
    knob = LimitKnob([gpu], held_here)
    with PowerTuner([gpu], Cost(0.5, 250.0), knob=knob, meter=meter, clock=clock) as tuner:
        while tuner.state is not State.HOLDING:
            clock.sleep(gpu.steady().seconds)
            tuner.step()
        for _ in range(20_000):  # late corrections
            clock.sleep(gpu.steady().seconds)
            tuner.step()
        steps = 20_000 if quick else 200_000
        spent = []
        for _ in range(steps):
            clock.sleep(0.01)
            started = time.perf_counter_ns()
            tuner.step()
            spent.append(time.perf_counter_ns() - started)
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
        "\nUntil settled: extra seconds at the best limit's cost (eta 0.5), own computing included"
    )
    heads = ["board", "step s", "objective", "good", "limits", "best", "extra", "own", "settled s"]
    heads += ["zeus good", "limits", "extra", "ratio"]
    rows = []
    for row in loops:
        own, peer = row["ours"], peer_of(row)
        cells = [row["board"], f"{row['step_seconds']:g}", row["objective"]]
        cells += [f"{own['good']}/{own['runs']}", _span(own["limits"]), str(own["best"])]
        cells += [f"{own['extra']:.2f}", f"{own['own_seconds']:.2f}"]
        cells += [f"{own['settled_seconds']:.0f}"]
        if "extra" in peer:
            cells += [f"{peer['good']}/{peer['runs']}", _span(peer["limits"])]
            cells += [f"{peer['extra']:.2f}", f"{own['extra'] / peer['extra']:.2f}"]
        else:
            cells += [f"failed {peer['failed']}/{peer['runs']}", "", "", ""]
        rows.append(cells)
    print(table(heads, rows))
    if sweeps:
        print(f"\nMeasured sweeps: regret over {WORK_SECONDS:g} s of work, summed over jobs, in s")
        print(
            table(
                [
                    "objective",
                    "jobs",
                    "ours",
                    "of it the choice",
                    "every limit 5 s",
                    "of it the choice",
                    "ratio",
                ],
                [_sweep_row(sweeps, o) for o in TABLE_OBJECTIVES],
            )
        )
    print(
        f"\nstep() once settled: median {steps['median_us']:.2f} µs, "
        f"mean {steps['mean_us']:.2f} µs, "
        f"{100 * steps['share_of_10_ms']:.4f} % of a 10 ms step"
    )


def _span(limits: list[int]) -> str:
    return f"{limits[0]}" if len(limits) == 1 else f"{limits[0]}–{limits[-1]}"


def _sweep_row(sweeps: list[dict[str, Any]], objective: str) -> list[str]:
    mine = [row for row in sweeps if row["objective"] == objective]
    names = ("ours", "ours_choice", "exhaustive", "exhaustive_choice")
    sums = [sum(row[name] for row in mine) for name in names]
    return [objective, str(len(mine)), *(f"{s:.1f}" for s in sums), f"{sums[0] / sums[2]:.2f}"]


def figures(
    loops: list[dict[str, Any]], sweeps: list[dict[str, Any]], steps: dict[str, float]
) -> dict[str, float]:
    """The headline numbers."""
    compared = [row for row in loops if "extra" in peer_of(row)]
    found = {
        "good_share": sum(r["ours"]["good"] for r in loops) / sum(r["ours"]["runs"] for r in loops),
        "least_good_share": min(r["ours"]["good"] / r["ours"]["runs"] for r in loops),
        "step_mean_us": steps["mean_us"],
        "step_share_of_10_ms": steps["share_of_10_ms"],
    }
    if compared:
        ours, peers = (
            [pick(r)["extra"] for r in compared] for pick in (lambda r: r["ours"], peer_of)
        )
        found["cost_ratio"] = sum(ours) / sum(peers)
        found["worst_cost_ratio"] = max(o / p for o, p in zip(ours, peers, strict=True))
        found["zeus_good_share"] = sum(peer_of(r)["good"] for r in compared) / sum(
            peer_of(r)["runs"] for r in compared
        )
        for seconds in STEPS_SECONDS:
            mine = [r for r in compared if r["step_seconds"] == seconds]
            total = sum(peer_of(r)["extra"] for r in mine)
            found[f"cost_ratio_{seconds:g}_s_steps"] = sum(r["ours"]["extra"] for r in mine) / total
    for objective in TABLE_OBJECTIVES if sweeps else ():
        row = _sweep_row(sweeps, objective)
        found[f"sweep_regret_ratio_{objective.replace(' ', '_').replace('%', 'percent')}"] = float(
            row[-1]
        )
    return found


def main() -> None:
    """Run everything."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JOULERY_DATA", beside)))
    parser.add_argument("--quick", action="store_true", help="few seeds and jobs, under a minute")
    parser.add_argument("--json", metavar="FILE", help="also write figures here")
    options = parser.parse_args()
    loops = emulated(quick=options.quick)
    folder = options.data / "zeus" if (options.data / "zeus").is_dir() else options.data
    sweeps = virtual(folder, quick=options.quick)
    steps = overhead(quick=options.quick)
    show(loops, sweeps, steps)
    found = figures(loops, sweeps, steps)
    for name, value in found.items():
        print(f"{name}: {value:.4g}")
    write_results(options.json, "power", found, [*loops, *sweeps])


if __name__ == "__main__":
    main()
