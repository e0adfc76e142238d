"""Choose each constant of the power tuner on all boards but one, and score it on the one left out.

Every constant is tried at a few values, the others as they are; one of the values switches its idea
off where that can be. Jobs are the measured sweeps, and boards drawn and bent at random from seeds
that ``power.py`` does not use. The loss of a board is the mean over objectives of (share of choices
that are late or above the best by 0.5 %) / 5 % + (regret / that of measuring every limit) / 0.4:
2 is the goal just missed, 0 perfection.

usage: python benchmarks/power_constants.py [--every N] [--count N] [--json FILE] [--data DIR]
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import statistics
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import power_draws
from peers import say, write_results
from power import TABLE_OBJECTIVES, is_good, is_late, regret_ratio
from power_tables import Job, made_up, regret_of, tables

from joulery.reports import table_text as table

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_SEED = 990_000
# Module and name of each constant, and the values to try; the first is the one in force.
CONSTANTS: dict[str, tuple[float, ...]] = {
    "_model.RISK": (0.0065, 0.025),
    "_model._LEAST_GAIN": (0.01, 0.0, 0.06),
    "_model._SURPRISE": (0.2, 0.0, 0.4),
    "_state_machine._CLOSE": (0.015, 0.0),
    "_state_machine._CHECK_STEPS": (12, 6),
}

Setting = tuple[str, float]


def tried(task: tuple[Setting, Job, str]) -> dict[str, Any]:
    """Regret of one job with one constant changed."""
    (name, value), job, objective = task
    module_name, _, attribute = name.partition(".")
    module = importlib.import_module(f"joulery.power.{module_name}")
    before = getattr(module, attribute)
    setattr(module, attribute, value)
    try:
        seed = zlib.crc32(f"{job.name} {objective}".encode())
        return {"board": job.board, "objective": objective, **regret_of(job, objective, seed)}
    finally:
        setattr(module, attribute, before)


def loss(rows: Sequence[dict[str, Any]]) -> float:
    """Loss of a setting on some rows of one board."""
    parts = []
    for objective in TABLE_OBJECTIVES:
        mine = [row for row in rows if row["objective"] == objective]
        bad = 1 - statistics.mean(map(is_good, mine))
        parts.append(bad / 0.05 + regret_ratio(mine) / 0.4)
    return statistics.mean(parts)


def main() -> None:
    """Try everything, and leave out one board after the other."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JOULERY_DATA", beside)))
    parser.add_argument("--every", type=int, default=3, help="take every Nth sweep")
    parser.add_argument("--count", type=int, default=20, help="boards to draw")
    parser.add_argument("--json", metavar="FILE", help="also write figures here")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    options = parser.parse_args()
    power_draws.FIRST_SEED = FIRST_SEED
    if options.smoke:
        jobs = list(made_up(1))[:1]
    else:
        jobs = [*list(tables(options.data))[:: options.every], *made_up(options.count)]
    boards = sorted({job.board for job in jobs})
    present = next(iter(CONSTANTS.items()))
    settings = [(present[0], present[1][0])]
    settings += [(name, value) for name, values in CONSTANTS.items() for value in values[1:]]
    settings = settings[:2] if options.smoke else settings
    losses: dict[Setting, dict[str, float]] = {}
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for setting in settings:
            tasks = list(itertools.product([setting], jobs, TABLE_OBJECTIVES))
            found = list(pool.map(tried, tasks, chunksize=8))
            losses[setting] = {
                board: loss([row for row in found if row["board"] == board]) for board in boards
            }
            late = sum(map(is_late, found))
            good = statistics.mean(map(is_good, found))
            rows.append(
                {"constant": setting[0], "value": setting[1], "good": good, "late": late}
                | losses[setting]
            )
            say(f"{setting[0]} = {setting[1]:g}: {good:.1%} good, {late} late")
    for name, values in CONSTANTS.items():
        losses[name, values[0]] = losses[settings[0]]
    if options.smoke:  # one board cannot be left out
        return
    chosen = _left_out(losses, boards)
    print("\nLoss of each setting by board; the first is the one in force")
    heads = ["constant", "value", "good", "late", *boards]
    print(table(heads, [_row(row, boards) for row in rows]))
    print("\nValue chosen on all boards but the one named, and its loss there / that in force")
    print(table(["constant", *boards], chosen))
    write_results(options.json, "power_constants", {"losses": len(losses)}, rows)


def _row(row: dict[str, Any], boards: Sequence[str]) -> list[str]:
    first = [row["constant"].partition("._")[2], f"{row['value']:g}"]
    return [*first, f"{row['good']:.1%}", str(row["late"]), *(f"{row[b]:.2f}" for b in boards)]


def _left_out(losses: dict[Setting, dict[str, float]], boards: Sequence[str]) -> list[list[str]]:
    """For each constant, the value that the other boards choose, and what it does here."""
    lines = []
    for name, values in CONSTANTS.items():
        cells = [name.partition("._")[2]]
        for left_out in boards:
            others = [board for board in boards if board != left_out]
            mean = {v: statistics.mean(losses[name, v][b] for b in others) for v in values}
            best = min(values, key=mean.__getitem__)
            here, now = losses[name, best][left_out], losses[name, values[0]][left_out]
            cells.append(f"{best:g}: {here:.2f} / {now:.2f}")
        lines.append(cells)
    return lines


if __name__ == "__main__":
    main()
