"""Prove the desk's promises about liars, deaths and long histories; counts are arguments."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from joulery.store.store import Store
from joulery.testing import filled_store
from joulery.testing.crowd import LIES, Circumstances, mean_regret
from joulery.testing.postgresql import Cluster
from joulery.testing.workloads import made_up_workload

LOADS = {
    "default far from the best": made_up_workload(),
    "default the best": made_up_workload(best=256, default=256),
}


def liars(arguments: argparse.Namespace) -> dict[str, Any]:
    """Regret with a tenth of the clients lying, against none."""
    base = Circumstances(arguments.recurrences)
    cases = {
        lie: dataclasses.replace(base, liars=0.1, lie=LIES[lie])
        for lie in arguments.lies.split(",")
    }
    return _against(arguments, base, cases)


def deaths(arguments: argparse.Namespace) -> dict[str, Any]:
    """Regret per completed recurrence with half of the clients dying, against none."""
    base = Circumstances(arguments.recurrences, clients=arguments.clients)
    return _against(arguments, base, {"half die": dataclasses.replace(base, killed=0.5)})


def _against(
    arguments: argparse.Namespace, base: Circumstances, cases: dict[str, Circumstances]
) -> dict[str, Any]:
    found = {}
    seeds = range(arguments.seeds)
    for policy in arguments.policies.split(","):
        for name, load in LOADS.items():
            plain, plain_error, _ = mean_regret(load, policy, seeds, base)
            print(f"{policy}, {name}: {plain:.2f} ± {plain_error:.2f} recurrences of regret")
            for case, about in cases.items():
                mean, error, failed = mean_regret(load, policy, seeds, about)
                more = mean / plain - 1.0
                found[f"{policy}, {name}, {case}"] = more
                print(f"  {case}: {mean:.2f} ± {error:.2f}, {more:+.1%}; {failed} without an end")
    return found


def scale(arguments: argparse.Namespace) -> dict[str, Any]:
    """CPU time of operations on stores of several sizes."""
    found = {}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster()) if arguments.postgresql else None
        for size in arguments.sizes.split(","):
            jobs, recurrences = map(int, size.split("x"))
            if cluster is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                location = str(Path(folder) / "store.sqlite")
            else:
                location = cluster.new_database()
            with Store.open(location) as store:
                policy = arguments.policies.split(",")[0]
                numbers = filled_store.fill(store, policy, jobs, recurrences)
                costs = filled_store.measure(store, numbers, policy)
            found[size] = dataclasses.asdict(costs)
            figures = ", ".join(f"{name} {1e3 * cost:.2f} ms" for name, cost in found[size].items())
            print(f"{jobs} jobs of {recurrences} recurrences: {figures}")
    return found


EXPERIMENTS = {"liars": liars, "deaths": deaths, "scale": scale}


def main() -> int:
    """Run one experiment and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--policies", default="joulery,zeus")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--recurrences", type=int, default=200)
    parser.add_argument("--clients", type=int, default=1000, help="at work at once, for deaths")
    parser.add_argument("--lies", default=",".join(LIES))
    parser.add_argument("--sizes", default="1x10,1x1000,1x10000,10000x100", help="JOBSxRECURRENCES")
    parser.add_argument("--postgresql", action="store_true", help="instead of SQLite, for scale")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    arguments = parser.parse_args()
    found = EXPERIMENTS[arguments.experiment](arguments)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
