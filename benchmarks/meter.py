"""Overhead of a window and accuracy of its joules, compared with Zeus and CodeCarbon.

All run in one interpreter on the same emulated boards behind the real NVML binding, Zeus and we on
the very same windows. Watts are plausible, not measured; errors against the emulator's exact
energy and overheads are real. Error bars over every sensor of the catalog, and over mixtures of
their constants, are tried on simulated boards and a virtual clock.

usage: python benchmarks/meter.py [--quick] [--json FILE] [--data DIR]
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers import benchmark_parser, peer_python, say, work, write_results

from joulery.hardware import catalog
from joulery.reports import table_text as table
from joulery.testing.emulator import BoardSpec, EmulatedNode

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.bar_scores import best_score, coverage, fixed_score, score
from support.power_sensors import BURSTS, SMOOTH, draw
from support.sensor_trials import Trial, trial

WORKER = Path(__file__).with_name("meter_worker.py")
BOARD = "A100"


def boards(count: int, period_seconds: float, *, stamped: bool, seed: int = 0) -> list[BoardSpec]:
    """Boards that refresh at random phases."""
    chance = random.Random(seed)  # noqa: S311 - a benchmark, not a secret
    board = dataclasses.replace(catalog.board(BOARD), counter_period_seconds=period_seconds)
    return [
        BoardSpec(
            board,
            stamped=stamped,
            noise=0.02,
            refresh_phase_seconds=period_seconds * chance.random(),
        )
        for _ in range(count)
    ]


def plan(*, quick: bool) -> list[tuple[list[BoardSpec], list[dict[str, Any]]]]:
    """Nodes, each with the tasks of one worker process on it."""
    repeats = 2_000 if quick else 20_000
    overhead = {"task": "overhead", "repeats": repeats, "delay_us": 0}
    apart: list[dict[str, Any]] = [
        {"task": "apart", "seconds": seconds, "repeats": 10 if quick else 60}
        for seconds in (0.03, 0.1, 0.5)
    ]
    stamped = [
        overhead,
        {**overhead, "delay_us": 50},
        *apart,
        *_accuracy(0.1, stamped=True, waving=False, quick=quick),
        *_accuracy(0.1, stamped=True, waving=True, quick=quick),
    ]
    unstamped = _accuracy(0.1, stamped=False, waving=False, quick=quick)
    # In a process without the peers: theirs keep threads of their own.
    alone = [
        {"task": "sampler", "seconds": 3.0 if quick else 20.0},
        {"task": "memory", "windows": 50_000 if quick else 1_000_000},
    ]
    nodes = [
        (boards(1, 0.1, stamped=True), [overhead]),
        (boards(8, 0.1, stamped=True), alone),
        (boards(8, 0.1, stamped=True, seed=1), stamped),
        (boards(8, 0.1, stamped=False, seed=2), unstamped),
    ]
    if not quick:
        codecarbon = {"task": "codecarbon", "seconds": 1.0, "windows": 10}
        nodes += [
            (boards(4, 0.1, stamped=True), [overhead]),
            (boards(1, 0.1, stamped=True), [codecarbon]),
        ]
        for flag in (True, False):
            tasks = _accuracy(0.02, stamped=flag, waving=False, quick=False)
            nodes.append((boards(8, 0.02, stamped=flag, seed=3), tasks))
    return nodes


def smoke_plan() -> list[tuple[list[BoardSpec], list[dict[str, Any]]]]:
    """A moment of every kind of task."""
    tasks = {task["task"]: task for _, tasks in plan(quick=True) for task in tasks}
    short = {"repeats": 20, "windows": 2, "seconds": 0.1}
    few = [
        {name: short.get(name, value) for name, value in task.items()} for task in tasks.values()
    ]
    return [(boards(1, 0.1, stamped=True), few)]


def _accuracy(period: float, *, stamped: bool, waving: bool, quick: bool) -> list[dict[str, Any]]:
    lengths = [(0.1, 5), (1.0, 1)] if quick else [(0.1, 40), (0.3, 20), (1.0, 12), (10.0, 2)]
    return [
        {
            "task": "accuracy",
            "seconds": seconds,
            "windows": windows,
            "seed": windows,
            "period": period,
            "stamped": stamped,
            "waving": waving,
        }
        for seconds, windows in lengths
    ]


def measure(*, quick: bool, smoke: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Every task's answer, by kind of task."""
    found: dict[str, list[dict[str, Any]]] = {}
    for specs, tasks in smoke_plan() if smoke else plan(quick=quick):
        say(f"{len(specs)} boards: {', '.join(dict.fromkeys(task['task'] for task in tasks))}")
        with EmulatedNode(specs) as node:
            answers = work(WORKER, node.env, tasks)
        for task, answer in zip(tasks, answers, strict=True):
            row = {**task, **answer}
            if task["task"] == "accuracy":
                row |= _errors(row.pop("rows"))
            found.setdefault(task["task"], []).append(row)
    say("sensors")
    found["sensors"] = sensors(10 if smoke else 200 if quick else 2_000)
    say("bars")
    found["bars"] = bars(1 if smoke else 6 if quick else 40)
    say("import")
    imports = {
        "ours_ms": _import_ms("import joulery; joulery.Meter"),
        "zeus_ms": _import_ms("from zeus.monitor import ZeusMonitor"),
    }
    return {**found, "import": [imports]}


def _counter(kind: dict[str, Any]) -> str:
    words = [f"{1e3 * kind['period']:g} ms"]
    words += [] if kind["stamped"] else ["unstamped"]
    words += ["waving load"] if kind["waving"] else []
    return ", ".join(words)


def _errors(samples: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"n": len(samples)}
    for name in ("ours", "settled", "zeus"):
        if samples[0][name] is None:
            continue
        errors = [abs(row[name] - row["true"]) / row["true"] for row in samples]
        found[f"{name}_mean"] = statistics.mean(errors)
        found[f"{name}_max"] = max(errors)
    for name, bar in (("ours", "bar"), ("settled", "settled_bar")):
        inside = [abs(row[name] - row["true"]) <= row[bar] for row in samples]
        found[f"{name}_coverage"] = statistics.mean(inside)
    return found


def sensors(count: int) -> list[dict[str, Any]]:
    """Errors and coverage over the sensors of the catalog and mixtures, by counter and load."""
    rows = []
    for mixture in (False, True):
        for calibrated in (False, True):
            trials = [
                trial(seed, (0.1, 0.3, 1.0)[seed % 3], mixture=mixture, calibrated=calibrated)
                for seed in range(count)
            ]
            groups: dict[tuple[str, str], list[Trial]] = {}
            for one in trials:
                load = "bursts" if one.bursts else "smooth"
                groups.setdefault((one.counter, load), []).append(one)
                groups.setdefault(("any", f"{one.seconds:g} s"), []).append(one)
            for (counter, load), group in sorted(groups.items()):
                rows.append(
                    {
                        "sensors": "mixtures" if mixture else "catalog",
                        "calibrated": calibrated,
                        "counter": counter,
                        "load": load,
                        "n": len(group),
                        "at_once_median": statistics.median(abs(t.at_once.error) for t in group),
                        "settled_median": statistics.median(abs(t.settled.error) for t in group),
                        "bar_median": statistics.median(t.at_once.bar for t in group),
                        "at_once_coverage": statistics.mean(t.at_once.held for t in group),
                        "settled_coverage": statistics.mean(t.settled.held for t in group),
                    }
                )
    return rows


def bars(count: int) -> list[dict[str, Any]]:
    """Interval scores of bars on boards with published gains, by calibration, load and length.

    The best bar is the one relative interval that knows the errors of its row; a fixed one has 5 %.
    """
    rows: dict[tuple[bool, str, float], list[Any]] = {}
    for calibrated in (False, True):
        for load in (*SMOOTH, *BURSTS):
            for seconds in (0.1, 1.0, 10.0):
                options = {"bursts": load in BURSTS, "mixture": False, "calibrated": calibrated}
                kind = "bursts" if load in BURSTS else "smooth"
                rows.setdefault((calibrated, kind, seconds), []).extend(
                    draw(seed, seconds, load=load, **options) for seed in range(count)
                )
    return [
        {
            "calibrated": calibrated,
            "load": kind,
            "seconds": seconds,
            "when": when,
            "n": len(figures),
            "sigma_median": statistics.median(sigma for _, sigma in figures),
            "coverage": coverage(figures),
            "score": score(figures),
            "best_score": best_score(figures),
            "fixed_score": fixed_score(figures),
        }
        for (calibrated, kind, seconds), windows in rows.items()
        for when, figures in (
            ("at once", [window.at_once for window in windows]),
            ("settled", [window.settled for window in windows]),
        )
    ]


def _import_ms(statement: str) -> float | None:
    code = f"import time; t=time.process_time(); {statement}; print(time.process_time()-t)"
    finished = subprocess.run(
        [peer_python(), "-c", code], capture_output=True, text=True, check=False
    )
    return 1e3 * float(finished.stdout) if finished.returncode == 0 else None


def show(found: dict[str, list[dict[str, Any]]]) -> None:
    """Tables for people."""
    rows = [
        [
            str(row["boards"]),
            f"{row['delay_us']} µs",
            f"{row['ours_bare_us']:.1f} µs",
            f"{row['ours_us']:.1f} µs",
            f"{row['zeus_us']:.1f} µs" if "zeus_us" in row else "–",
            f"{row['ours_us'] / row['zeus_us']:.2f}" if "zeus_us" in row else "–",
        ]
        for row in found["overhead"]
    ]
    print("Window begin + end, median; zeus always reads the joules")
    headers = ["boards", "driver +", "joulery", "… and joules", "zeus", "ratio"]
    print(table(headers, rows, "rrrrrr"))
    rows = [
        [
            _counter(row),
            f"{row['seconds']:g} s",
            str(row["n"]),
            _mean_and_max(row, "ours"),
            _mean_and_max(row, "settled"),
            _mean_and_max(row, "zeus"),
            f"{row['ours_mean'] / row['zeus_mean']:.3f}" if "zeus_mean" in row else "–",
            f"{100 * row['ours_coverage']:.0f} / {100 * row['settled_coverage']:.0f} %",
        ]
        for row in found["accuracy"]
    ]
    print("\nEnergy error of a busy window after idle, mean (max); truth within the 95 % bar")
    headers = ["counter", "window", "n", "joulery", "settled", "zeus", "ratio", "within bar"]
    print(table(headers, rows, "lrrrrrrr"))
    print("\nWindows apart, as steps are: begin + end, and with the joules read at once; median")
    rows = [
        [
            str(row["boards"]),
            f"{row['seconds']:g} s",
            f"{row['ours_bare_us']:.0f} µs",
            f"{row['ours_us']:.0f} µs",
            f"{row['zeus_us']:.0f} µs" if "zeus_us" in row else "–",
        ]
        for row in found["apart"]
    ]
    print(table(["boards", "window", "joulery", "… and joules", "zeus"], rows, "rrrrr"))
    print(
        "\nSensors as they are: median error and sigma; truth within the 95 % bar at once / settled"
    )
    rows = [
        [
            row["sensors"] + (", calibrated" if row["calibrated"] else ""),
            row["counter"],
            row["load"],
            str(row["n"]),
            f"{100 * row['at_once_median']:.2f} %",
            f"{100 * row['settled_median']:.2f} %",
            f"{100 * row['bar_median']:.1f} %",
            f"{100 * row['at_once_coverage']:.0f} / {100 * row['settled_coverage']:.0f} %",
        ]
        for row in found["sensors"]
    ]
    headers = [
        "sensors",
        "counter",
        "windows",
        "n",
        "at once",
        "settled",
        "one sigma",
        "within bar",
    ]
    print(table(headers, rows, "lllrrrrr"))
    print("\nBars of boards with published gains and offsets: interval score, less is better")
    rows = [
        [
            ("calibrated, " if row["calibrated"] else "") + row["load"],
            f"{row['seconds']:g} s, {row['when']}",
            str(row["n"]),
            f"{100 * row['sigma_median']:.2f} %",
            f"{100 * row['coverage']:.0f} %",
            f"{row['score']:.1f}",
            f"{row['best_score']:.1f}",
            f"{row['fixed_score']:.1f}",
        ]
        for row in found["bars"]
    ]
    headers = ["loads", "windows", "n", "one sigma", "within bar", "score", "best", "fixed 5 %"]
    print(table(headers, rows, "llrrrrrr"))
    memory, imports = found["memory"][0], found["import"][0]
    sampler = found["sampler"][0]["fraction_of_core"]
    print(f"\nmemory: {memory['growth_kib']} KiB more after {memory['windows']:,} windows")
    print(f"sampler, 8 boards at 10 Hz: {100 * sampler:.2f} % of a core")
    zeus_import = f", zeus {imports['zeus_ms']:.0f} ms" if imports["zeus_ms"] else ""
    print(f"import of the meter, CPU time: joulery {imports['ours_ms']:.0f} ms{zeus_import}")
    for row in found.get("codecarbon", []):
        if row["rows"]:
            print(f"codecarbon: {100 * _codecarbon_error(row):.2f} % mean error at 1 s")


def _mean_and_max(row: dict[str, Any], name: str) -> str:
    if f"{name}_mean" not in row:
        return "–"
    return f"{100 * row[f'{name}_mean']:.2f} ({100 * row[f'{name}_max']:.1f}) %"


def _codecarbon_error(row: dict[str, Any]) -> float:
    return statistics.mean(abs(r["codecarbon"] - r["true"]) / r["true"] for r in row["rows"])


def figures(found: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Everything as named numbers."""
    named: dict[str, float] = {}
    for row in found["overhead"]:
        name = f"{row['boards']}_boards" + (f"_{row['delay_us']}us" if row["delay_us"] else "")
        named[f"window_us_{name}"] = row["ours_us"]
        named[f"window_without_joules_us_{name}"] = row["ours_bare_us"]
        if "zeus_us" in row:
            named[f"zeus_window_us_{name}"] = row["zeus_us"]
            named[f"window_ratio_{name}"] = row["ours_us"] / row["zeus_us"]
    for row in found["accuracy"]:
        kind = _counter(row).replace(" ", "").replace(",", "_")
        for name in ("ours_mean", "settled_mean", "zeus_mean", "ours_coverage"):
            if name in row:
                named[f"error_{kind}_{row['seconds']:g}s_{name}"] = row[name]
    named |= _apart_figures(found["apart"]) | _sensor_figures(found["sensors"])
    named |= _bar_figures(found["bars"])
    windows = sum(row["n"] for row in found["accuracy"])
    inside = sum(row["ours_coverage"] * row["n"] for row in found["accuracy"])
    named["coverage"] = inside / windows
    named["memory_growth_kib"] = found["memory"][0]["growth_kib"]
    named["sampler_fraction_of_core"] = found["sampler"][0]["fraction_of_core"]
    for name, value in found["import"][0].items():
        if value is not None:
            named[f"import_{name}"] = value
    for row in found.get("codecarbon", []):
        if row["rows"]:
            named["codecarbon_1s_mean"] = _codecarbon_error(row)
    return named


def _apart_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    named = {}
    for row in rows:
        named[f"window_apart_us_{row['seconds']:g}s"] = row["ours_us"]
        named[f"window_apart_without_joules_us_{row['seconds']:g}s"] = row["ours_bare_us"]
        if "zeus_us" in row:
            named[f"zeus_window_apart_us_{row['seconds']:g}s"] = row["zeus_us"]
    return named


def _sensor_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    named = {}
    for row in rows:
        kind = f"{row['sensors']}{'_calibrated' if row['calibrated'] else ''}"
        name = f"sensors_{kind}_{row['counter']}_{row['load']}".replace(" ", "")
        named[f"{name}_coverage"] = row["at_once_coverage"]
        named[f"{name}_settled_coverage"] = row["settled_coverage"]
        named[f"{name}_error"] = row["at_once_median"]
    return named


def _bar_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    named = {}
    for row in rows:
        kind = f"{'calibrated_' if row['calibrated'] else ''}{row['load']}_{row['seconds']:g}s"
        name = f"bars_{kind}_{row['when'].replace(' ', '_')}"
        named |= {f"{name}_{figure}": row[figure] for figure in ("score", "best_score", "coverage")}
    return named


def main() -> None:
    """Run, print, write."""
    arguments = benchmark_parser(__doc__, "fewer windows, under 50 s").parse_args()
    found = measure(quick=arguments.quick or arguments.smoke, smoke=arguments.smoke)
    show(found)
    details = [row for rows in found.values() for row in rows]
    write_results(arguments.json, "meter", figures(found), details)


if __name__ == "__main__":
    main()
