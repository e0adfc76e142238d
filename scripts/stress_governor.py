"""Prove the governor's promises at full counts; with --quick at those of the tests."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress_text import experiment_text

from joulery.governor import ConnectionLimits

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.governor.bench import Bench
from support.governor.experiments import crash_everywhere, kill_holders
from support.governor.flood import under_flood
from support.governor.fuzz import fuzz
from support.governor.node import GovernedNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPERATIONS_PER_SEQUENCE = 12


SMOKE_COUNT = 20  # rounds of an experiment that takes seconds


def main() -> int:
    """Run every experiment; 0 when all promises hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="as many as `make test` tries")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    parser.add_argument("--only", choices=EXPERIMENTS, help="one experiment")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for each experiment")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    report: dict[str, Any] = {"seed": arguments.seed}
    names = [arguments.only] if arguments.only else list(EXPERIMENTS)
    names = ["kills", "lines"] if arguments.smoke else names
    for name in names:
        counts, batch, experiment = EXPERIMENTS[name]
        count = counts[arguments.quick or arguments.smoke]
        count = min(count, SMOKE_COUNT) if arguments.smoke else count
        rounds = _Rounds(name, count, min(batch, count), arguments.minutes)
        figures, holds = experiment(rounds, arguments.seed)
        report[name] = {**figures, "holds": holds}
        print(experiment_text(name, figures, holds=holds), flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a name as given
            json.dump(report, file, indent=1)
    return int(any(not entry["holds"] for entry in report.values() if isinstance(entry, dict)))


class _Rounds:
    """Batches of an experiment until its count is reached or its time is up, telling how far it is.

    Iterating gives the size of each batch and how many came before it.
    """

    def __init__(self, name: str, count: int, batch: int, minutes: float) -> None:
        self._name, self._count, self._batch = name, count, batch
        self._ends_at = time.monotonic() + 60 * minutes

    def __iter__(self) -> Iterator[tuple[int, int]]:
        done = 0
        while done < self._count and time.monotonic() < self._ends_at:
            size = min(self._batch, self._count - done)
            yield size, done
            done += size
            sys.stderr.write(f"{self._name} {done}/{self._count}\n")


def kills(rounds: _Rounds, seed: int) -> tuple[dict[str, Any], bool]:
    """Holders killed by every signal at random moments."""
    count = unrestored = 0
    latencies: list[float] = []
    with GovernedNode() as governed:
        for size, done in rounds:
            report = kill_holders(governed, size, seed + done)
            count, unrestored = count + size, unrestored + report.unrestored
            latencies += report.latencies
    centiles = statistics.quantiles(latencies, n=100, method="inclusive")
    figures = {
        "kills": count,
        "caught holding": len(latencies),
        "unrestored": unrestored,
        "p50 ms": _milliseconds(centiles[49]),
        "p99 ms": _milliseconds(centiles[98]),
        "max ms": _milliseconds(max(latencies)),
    }
    return figures, unrestored == 0 and centiles[98] <= 0.05


def crashes(rounds: _Rounds, seed: int) -> tuple[dict[str, Any], bool]:
    """Governors killed at every boundary, over and over."""
    boundaries, off, slowest = 0, 0, 0.0
    with GovernedNode() as governed:
        for _, done in rounds:
            report = crash_everywhere(governed, seed=seed + done)
            boundaries += report.boundaries
            off += len(report.off_baseline)
            slowest = max(slowest, report.slowest_seconds)
    figures = {"crashes": boundaries, "off baseline": off, "slowest restart s": round(slowest, 3)}
    return figures, off == 0 and slowest <= 2.0


def sequences(rounds: _Rounds, seed: int) -> tuple[dict[str, Any], bool]:
    """Random operations against the model; it raises when a promise is broken."""
    count = 0
    for size, done in rounds:
        for number in range(seed + done, seed + done + size):
            chance, bench = random.Random(number), Bench()  # noqa: S311 - no secret
            try:
                for _ in range(OPERATIONS_PER_SEQUENCE):
                    bench.play(chance)
            except AssertionError as broken:
                return {"sequence": number, "broken": str(broken)}, False
        count += size
    return {"sequences": count, "operations": count * OPERATIONS_PER_SEQUENCE}, True


def lines(rounds: _Rounds, seed: int) -> tuple[dict[str, Any], bool]:
    """Lines that no honest caller sends."""
    fuzz(20_000, seed)  # what is learned once, such as compiled patterns, is no leak
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = answered = sessions = 0
    for size, done in rounds:
        more_answered, more_sessions = fuzz(size, seed + done)
        count, answered, sessions = count + size, answered + more_answered, sessions + more_sessions
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    figures = {"lines": count, "answered": answered, "sessions": sessions, "grown KiB": grown}
    return figures, grown < 8 * 1024


def flood(rounds: _Rounds, _: int) -> tuple[dict[str, Any], bool]:
    """An honest holder among nuisances of another user, and on the same machine without them."""
    if os.geteuid() != 0:
        return {"skipped": "needs root to act as another user"}, True
    idle: list[float] = []
    flooded: list[float] = []
    with GovernedNode(requests_per_second=ConnectionLimits().requests_per_second) as governed:
        for size, _ in rounds:
            waits = under_flood(governed, size)
            idle += waits[0]
            flooded += waits[1]
    before, after = (statistics.quantiles(waits, n=100)[98] for waits in (idle, flooded))
    figures = {
        "requests": len(flooded),
        "idle p99 ms": _milliseconds(before),
        "flooded p99 ms": _milliseconds(after),
    }
    return figures, after <= 2 * before


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 2)


# Full and quick counts, and how many at a time. The matrix of users, devices and operations is
# small enough for the tests.
EXPERIMENTS: dict[
    str,
    tuple[tuple[int, int], int, Callable[[_Rounds, int], tuple[dict[str, Any], bool]]],
] = {
    "kills": ((100_000, 200), 1000, kills),
    "crashes": ((10, 1), 1, crashes),
    "sequences": ((1_000_000, 1000), 10_000, sequences),
    "lines": ((1_000_000, 20_000), 20_000, lines),
    "flood": ((4000, 400), 400, flood),
}

if __name__ == "__main__":
    sys.exit(main())
