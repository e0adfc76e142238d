"""Stress the job service: kills, server deaths, dying clients, memory; --quick as tests do."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress_text import experiment_text

from joulery.testing.workloads import made_up_workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.population import HALVES, Setting, compare
from support.postgresql import find_programs
from support.server_memory import memory_growth
from support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATABASES = ("sqlite", "postgresql")
MORE_REGRET = 0.05
FEWEST_LIVES = 10  # that say more than where the average lies roughly
FEWEST_REQUESTS_FOR_SLOPE = 200_000
GROWTH_BYTES_PER_REQUEST = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How much to try.

    Attributes:
        kills: Over all databases.
        soak_seconds: Of trainings whose server dies, on each database.
        seeds: Lives of a population.
        requests: To one server.
        databases: To try.
        minutes: At most, for the kills of each database.
        seed: Of everything random.
    """

    kills: int
    soak_seconds: float
    seeds: int
    requests: int
    databases: tuple[str, ...]
    minutes: float
    seed: int


Figures = dict[str, Any]


def main() -> int:
    """Run every experiment; 0 when all promises hold."""
    arguments = _arguments()
    effort = _effort(arguments)
    print(f"seed {effort.seed}")
    report: Figures = {"seed": effort.seed}
    names = [arguments.only] if arguments.only else list(EXPERIMENTS)
    for name in names[1:2] if arguments.smoke else names:
        for title, figures, holds in EXPERIMENTS[name](effort):
            report[title] = {**figures, "holds": holds}
            print(experiment_text(title, figures, holds=holds), flush=True)
            if arguments.json:  # after each, so that an end before the end leaves what is known
                with open(arguments.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - as given
                    json.dump(report, file, indent=1)
    return int(any(not entry["holds"] for entry in report.values() if isinstance(entry, dict)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about as many as `make test` tries")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    parser.add_argument("--only", choices=EXPERIMENTS, help="one experiment")
    parser.add_argument("--kills", type=int, help="over all databases (10000)")
    parser.add_argument("--requests", type=int, help="to one server (1000000)")
    parser.add_argument("--seeds", type=int, help="lives of each population (20)")
    parser.add_argument("--soak-seconds", type=float, help="on each database (120)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for the kills of each")
    parser.add_argument("--database", choices=DATABASES, help="only this one")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    return parser.parse_args()


def _effort(arguments: argparse.Namespace) -> Effort:
    if arguments.smoke:
        return Effort(4, 1.0, 1, 200, ("sqlite",), arguments.minutes, arguments.seed)
    quick = arguments.quick
    here = [name for name in DATABASES if name == "sqlite" or find_programs() is not None]
    return Effort(
        kills=arguments.kills or (120 if quick else 10_000),
        soak_seconds=arguments.soak_seconds or (8.0 if quick else 120.0),
        seeds=arguments.seeds or (3 if quick else 20),
        requests=arguments.requests or (10_000 if quick else 1_000_000),
        databases=(arguments.database,) if arguments.database else tuple(here),
        minutes=arguments.minutes,
        seed=arguments.seed,
    )


def kills(effort: Effort) -> Iterator[tuple[str, Figures, bool]]:
    """Servers, clients and writers killed at random moments; databases crashed."""
    each = effort.kills / len(effort.databases)
    for database in effort.databases:
        options = ["--kills", max(1, round(each)), "--database", database, "--seed", effort.seed]
        result = _program("driver", [*options, "--seconds", 60 * effort.minutes])
        holds = not result["violations"] and bool(result["counts"].get("reports acknowledged"))
        yield f"kills on {database}", _told(result), holds


def soak(effort: Effort) -> Iterator[tuple[str, Figures, bool]]:
    """Trainings whose server dies and comes back."""
    for database in effort.databases:
        options = ["--seconds", effort.soak_seconds, "--database", database, "--seed", effort.seed]
        toll = _program("soak", options)
        yield f"fail-open, {database}", _told(toll), not toll["violations"]


def population(effort: Effort) -> Iterator[tuple[str, Figures, bool]]:
    """Half of a thousand clients die."""
    setting = Setting(clients=200, at_once=8) if effort.seeds < FEWEST_LIVES else Setting()
    for policy in ("joulery", "zeus"):
        for half in [half for half in HALVES if half != "none"]:
            found = compare(made_up_workload(), policy, range(effort.seeds), half, setting)
            figures = {
                name: round(value, 4) if isinstance(value, float) else value
                for name, value in dataclasses.asdict(found).items()
            }
            # A few lives scatter more than the promise is wide, and count once beyond doubt.
            doubt = 2.0 * found.error if effort.seeds < FEWEST_LIVES else 0.0
            holds = found.more - doubt <= MORE_REGRET
            figures["beyond doubt"] = found.within(MORE_REGRET)
            yield f"half of the clients dead ({half}), {policy}", figures, holds


def memory(effort: Effort) -> Iterator[tuple[str, Figures, bool]]:
    """One server under many requests."""
    began = time.monotonic()

    def tell(done: int, resident: int) -> None:
        seconds = time.monotonic() - began
        sys.stderr.write(
            f"memory {done}/{effort.requests} {resident // 1024} KiB {seconds:.0f} s\n"
        )

    with tempfile.TemporaryDirectory() as folder, ServerProcess(f"{folder}/store.sqlite") as server:
        grown = memory_growth(server, effort.requests, tell=tell)
    figures = dataclasses.asdict(grown)
    # What fills once (caches of statements, pages and reports) would pass for growth in fewer.
    few = effort.requests < FEWEST_REQUESTS_FOR_SLOPE
    holds = grown.refused == 0 and (few or grown.per_request_bytes <= GROWTH_BYTES_PER_REQUEST)
    yield f"memory over {effort.requests} requests", figures, holds


def _told(toll: Figures) -> Figures:
    violations = toll["violations"]
    kinds = Counter(one.partition(":")[0] for one in violations)
    return {
        "kills": toll["kills"],
        **{f"killed {kind}": many for kind, many in toll["killed"].items()},
        **toll["counts"],
        "broken": dict(kinds),
        "first": violations[:1],
        "seconds": toll["seconds"],
    }


def _program(name: str, options: list[Any]) -> Figures:
    """The last line that a program of the test kit prints; progress goes to stderr."""
    command = [sys.executable, "-m", f"support.kill_test.{name}", *map(str, options)]
    path = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, env=environment)
    figures: Figures = json.loads(done.stdout)
    return figures


EXPERIMENTS: dict[str, Callable[[Effort], Iterator[tuple[str, Figures, bool]]]] = {
    "kills": kills,
    "soak": soak,
    "population": population,
    "memory": memory,
}

if __name__ == "__main__":
    sys.exit(main())
