"""Prove the governor's promises at full counts; with --quick at those of the tests."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

from joulery.testing.governor.bench import Bench
from joulery.testing.governor.experiments import crash_everywhere, kill_holders
from joulery.testing.governor.flood import under_flood
from joulery.testing.governor.fuzz import fuzz
from joulery.testing.governor.node import GovernedNode

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATIONS_PER_SEQUENCE = 12


def main() -> int:
    """Run every experiment; 0 when all promises hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="as many as `make test` tries")
    parser.add_argument("--only", choices=EXPERIMENTS, help="one experiment")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    report: dict[str, Any] = {"seed": arguments.seed}
    names = [arguments.only] if arguments.only else list(EXPERIMENTS)
    for name in names:
        counts, experiment = EXPERIMENTS[name]
        figures, holds = experiment(counts[arguments.quick], arguments.seed)
        report[name] = {**figures, "holds": holds}
        told = ", ".join(f"{key} {value}" for key, value in figures.items())
        print(f"{'holds' if holds else 'BROKEN':<7} {name}: {told}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a name as given
            json.dump(report, file, indent=1)
    return int(any(not entry["holds"] for entry in report.values() if isinstance(entry, dict)))


def kills(count: int, seed: int) -> tuple[dict[str, Any], bool]:
    """Holders killed by every signal at random moments."""
    with GovernedNode() as governed:
        report = kill_holders(governed, count, seed, _progress("kills", count))
    figures = {
        "kills": report.kills,
        "caught holding": report.caught_holding,
        "unrestored": report.unrestored,
        "p50 ms": _milliseconds(report.percentile(50)),
        "p99 ms": _milliseconds(report.percentile(99)),
        "max ms": _milliseconds(max(report.latencies)),
    }
    return figures, report.unrestored == 0 and report.percentile(99) <= 0.05


def crashes(count: int, seed: int) -> tuple[dict[str, Any], bool]:
    """Governors killed at every boundary, ``count`` times over."""
    boundaries, off, slowest = 0, 0, 0.0
    with GovernedNode() as governed:
        for repetition in range(count):
            report = crash_everywhere(governed, seed=seed + repetition)
            boundaries += report.boundaries
            off += len(report.off_baseline)
            slowest = max(slowest, report.slowest_seconds)
    figures = {"crashes": boundaries, "off baseline": off, "slowest restart s": round(slowest, 3)}
    return figures, off == 0 and slowest <= 2.0


def sequences(count: int, seed: int) -> tuple[dict[str, Any], bool]:
    """Random operations against the model; it raises when a promise is broken."""
    progress = _progress("sequences", count)
    for number in range(count):
        chance, bench = random.Random(seed + number), Bench()  # noqa: S311 - no secret
        try:
            for _ in range(OPERATIONS_PER_SEQUENCE):
                bench.play(chance)
        except AssertionError as broken:
            return {"sequence": seed + number, "broken": str(broken)}, False
        progress(number)
    return {"sequences": count, "operations": count * OPERATIONS_PER_SEQUENCE}, True


def frames(count: int, seed: int) -> tuple[dict[str, Any], bool]:
    """Frames that no honest caller sends."""
    fuzz(min(count, 20_000), seed)  # what is learned once, such as compiled patterns, is no leak
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answered, sessions = fuzz(count, seed, _progress("frames", count))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    figures = {"frames": count, "answered": answered, "sessions": sessions, "grown KiB": grown}
    return figures, grown < 8 * 1024


def flood(count: int, _: int) -> tuple[dict[str, Any], bool]:
    """An honest holder among nuisances of another user."""
    if os.geteuid() != 0:
        return {"skipped": "needs root to act as another user"}, True
    with GovernedNode(requests_per_second=100.0) as governed:
        quiet, crowded = under_flood(governed, count)
    figures = {"quiet p99 ms": _milliseconds(quiet), "crowded p99 ms": _milliseconds(crowded)}
    return figures, crowded <= 2 * quiet


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 2)


def _progress(what: str, count: int) -> Callable[[int], None]:
    def tell(number: int) -> None:
        if sys.stderr.isatty() and number % max(1, count // 200) == 0:
            sys.stderr.write(f"\r{what} {number}/{count}   ")

    return tell


# Full and quick counts. The matrix of users, devices and operations is small enough for the tests.
EXPERIMENTS: dict[
    str, tuple[tuple[int, int], Callable[[int, int], tuple[dict[str, Any], bool]]]
] = {
    "kills": ((100_000, 200), kills),
    "crashes": ((10, 1), crashes),
    "sequences": ((1_000_000, 1000), sequences),
    "frames": ((1_000_000, 20_000), frames),
    "flood": ((4000, 200), flood),
}

if __name__ == "__main__":
    sys.exit(main())
