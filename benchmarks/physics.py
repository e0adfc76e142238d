"""Error of the board model against measured power-limit sweeps.

For every sweep (GPU, workload, batch size) under the data folder, fits the four numbers of the
workload with the board's catalog constants fixed, and compares time and power at every limit.
Then again with each fitted board replaced by what its specification alone would give, derived
from the other fitted boards: the error to expect on unmeasured boards. Last, fits to every
other limit against the limits between: the error to expect at unmeasured limits.
"""

from __future__ import annotations

import csv
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from peers import benchmark_parser, write_results
from physics_fit import SweepPoint, WorkloadFit, compared, fit_workloads

from joulery.errors import UnknownDeviceError
from joulery.hardware import catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from joulery.hardware import Board

TARGET = 0.05
# Half of fewer limits than this would not determine four numbers.
HELD_OUT_FROM = 6
PATTERNS = ("summary_power_*.csv", "*dvfs_sweep.csv")


@dataclass(frozen=True)
class Sweep:
    """Measurements of one workload at one batch size on one type of board."""

    board: Board
    workload: str
    label: str
    measurements: tuple[SweepPoint, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; see the module's docstring."""
    options = benchmark_parser(__doc__, "every other batch size only").parse_args(arguments)
    started = time.monotonic()
    sweeps = list(discovered(options.data))
    if options.quick or options.smoke:
        sweeps = thinned(sweeps)
    if options.smoke:
        sweeps = sweeps[:2]
    if not sweeps:
        print(f"skipped: no power-limit sweeps under {options.data}", file=sys.stderr)
        return 0
    rows = table_rows(sweeps, "catalog", lambda board: board)
    rows += table_rows([s for s in sweeps if s.board.fitted], "derived", without_own_fit)
    long = [sweep for sweep in sweeps if len(sweep.measurements) >= HELD_OUT_FROM]
    rows += [held_out_row(board, long) for board in boards_of(long)]
    show(rows)
    print(f"{len(sweeps)} sweeps in {time.monotonic() - started:.1f} s", file=sys.stderr)
    write_results(options.json, "physics", figures(rows), rows)
    return 0


def discovered(folder: Path) -> Iterator[Sweep]:
    """Every sweep under ``folder`` whose file name holds a board that the catalog knows."""
    files = sorted({path for pattern in PATTERNS for path in folder.rglob(pattern)})
    for path in files:
        board = board_in(path.stem)
        if board is None:
            print(f"skipped {path.name}: no board of the catalog in its name", file=sys.stderr)
            continue
        points: dict[tuple[str, str], list[SweepPoint]] = defaultdict(list)
        with path.open(newline="", encoding="utf-8") as lines:
            for number, row in enumerate(csv.DictReader(lines), start=2):
                try:
                    key, measurement = parsed_row(row)
                except (KeyError, ValueError, ZeroDivisionError) as unusable:
                    print(f"skipped {path.name}:{number}: {unusable!r}", file=sys.stderr)
                    continue
                points[key].append(measurement)
        for (workload, label), found in sorted(points.items()):
            if len({m.limit_watts for m in found}) >= 4:
                in_order = sorted(found, key=lambda m: m.limit_watts)
                # Two files may speak of the same board and workload.
                yield Sweep(board, workload, f"{path.stem}: {label}", tuple(in_order))


def board_in(stem: str) -> Board | None:
    """The board that a file name such as ``summary_power_v100`` speaks of."""
    words = re.split(r"[_.]", stem)
    # Longest runs of words first, so that "rtx_6000" is not cut into pieces.
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            try:
                return catalog.board("_".join(words[start : start + length]))
            except UnknownDeviceError:
                continue
    return None


def parsed_row(row: dict[str, str]) -> tuple[tuple[str, str], SweepPoint]:
    """One line of either layout: by epoch and batch size, or by throughput."""
    if "throughput" in row:
        key = (row["Workload"], row["Workload"])
        seconds, watts = 1.0 / float(row["throughput"]), float(row["power per GPU"])
        return key, SweepPoint(float(row["GPU power cap"]), seconds, watts)
    label = f"{row['dataset']}/{row['network']}/{row['optimizer']} batch {row['batch_size']}"
    seconds, watts = float(row["time_per_epoch"]), float(row["average_power"])
    return (row["dataset"], label), SweepPoint(float(row["power_limit"]), seconds, watts)


def thinned(sweeps: list[Sweep]) -> list[Sweep]:
    """Every other sweep of each workload, at least one."""
    grouped: dict[tuple[str, str], list[Sweep]] = defaultdict(list)
    for sweep in sweeps:
        grouped[sweep.board.name, sweep.workload].append(sweep)
    return [sweep for group in grouped.values() for sweep in group[::2]]


def without_own_fit(board: Board) -> Board:
    """Constants of a fitted board as if it had not been measured."""
    others = [other for other in catalog.fitted_boards() if other.name != board.name]
    # Unmeasured boards have no idle power in the catalog either.
    stated = replace(catalog.specs(board.name), idle_watts=None)
    return catalog.derived(stated, others)


def table_rows(
    sweeps: Sequence[Sweep], constants: str, board_for: Callable[[Board], Board]
) -> list[dict[str, Any]]:
    """Errors by board and workload, and by board over all its workloads."""
    rows = []
    for own in boards_of(sweeps):
        mine = [sweep for sweep in sweeps if sweep.board == own]
        board = board_for(own)
        fits = fitted(board, mine, f"{own.name} ({constants})")
        for workload in dict.fromkeys(sweep.workload for sweep in mine):
            chosen = [fits[sweep.label] for sweep in mine if sweep.workload == workload]
            rows.append(row_of(board, workload, constants, chosen))
        rows.append(row_of(board, "all", constants, list(fits.values())))
    return rows


def boards_of(sweeps: Sequence[Sweep]) -> list[Board]:
    """Each board once, in order of appearance."""
    return list(dict.fromkeys(sweep.board for sweep in sweeps))


def held_out_row(board: Board, sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Errors at limits that the fit did not see: odd ones from even ones, and the reverse."""
    found = []
    for first in (0, 1):
        mine = [
            replace(sweep, measurements=sweep.measurements[first::2])
            for sweep in sweeps
            if sweep.board == board
        ]
        fits = fitted(board, mine, f"{board.name} (held out)")
        for sweep in sweeps:
            if sweep.label in fits and sweep.board == board:
                unseen = sweep.measurements[1 - first :: 2]
                found.append(compared(board, fits[sweep.label].workload, unseen))
    return row_of(board, "all", "held out", found)


def fitted(board: Board, sweeps: Sequence[Sweep], title: str) -> dict[str, WorkloadFit]:
    """Fit every sweep of one board, with progress on stderr."""
    done = 0

    def progress(_: str) -> None:
        nonlocal done
        done += 1
        if done % 20 == 0 or done == len(sweeps):
            print(f"{title}: {done}/{len(sweeps)}", file=sys.stderr, flush=True)

    return fit_workloads(board, {s.label: s.measurements for s in sweeps}, progress)


def row_of(
    board: Board, workload: str, constants: str, fits: Sequence[WorkloadFit]
) -> dict[str, Any]:
    """Median and largest absolute relative errors over every limit of every fit."""
    seconds = [abs(error) for fit in fits for error in fit.seconds_errors]
    watts = [abs(error) for fit in fits for error in fit.watts_errors]
    return {
        "gpu": board.name,
        "workload": workload,
        "constants": constants if constants != "catalog" or board.fitted else "from specs",
        "sweeps": len(fits),
        "points": len(seconds),
        "seconds_error_median": median(seconds),
        "seconds_error_max": max(seconds),
        "watts_error_median": median(watts),
        "watts_error_max": max(watts),
    }


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The headline numbers, one per line of the report."""
    found: dict[str, float] = {}
    for row in rows:
        if row["workload"] != "all":
            continue
        suffix = {"derived": "_derived", "held out": "_held_out"}.get(row["constants"], "")
        for name in ("seconds_error_median", "watts_error_median"):
            found[f"{row['gpu'].lower()}{suffix}_{name}"] = row[name]
    for suffix, derived in (("", False), ("_derived", True)):
        mine = [
            max(row["seconds_error_median"], row["watts_error_median"])
            for row in rows
            if row["workload"] != "all" and (row["constants"] == "derived") == derived
        ]
        if mine:
            found[f"workloads{suffix}"] = len(mine)
            found[f"workloads{suffix}_within_target"] = sum(error <= TARGET for error in mine)
            found[f"worst_workload_error_median{suffix}"] = max(mine)
    return found


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table on stdout; errors in percent as median / largest."""
    print(
        f"{'gpu':8} {'workload':20} {'constants':11} {'sweeps':>6} {'time %':>13} {'power %':>13}"
    )
    for row in rows:
        errors = " ".join(
            f"{100 * row[f'{name}_median']:6.2f} /{100 * row[f'{name}_max']:5.1f}"
            for name in ("seconds_error", "watts_error")
        )
        print(
            f"{row['gpu']:8} {row['workload']:20} {row['constants']:11} {row['sweeps']:6d} {errors}"
        )


if __name__ == "__main__":
    sys.exit(main())
