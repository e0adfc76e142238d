"""Measure what the report filter, false reports, dying clients and long histories cost."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.jobs import _report_filter
from joulery.simulate import discarded_becomes_best, optimum_moves, read_traces, scale_epochs
from joulery.storage import Store
from joulery.testing.workloads import made_up_workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support import filled_store
from support.adversarial_clients import FALSE_REPORTS, Scenario, reports_nothing, simulate
from support.postgresql import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.simulate import TracedWorkload

DRIFTS: dict[str, Callable[[int], Callable[[TracedWorkload], TracedWorkload]]] = {
    "no change": lambda _: lambda load: load,
    "twice the epochs": lambda at: lambda load: scale_epochs(load, at, 2.0),
    "the optimum moves": lambda at: lambda load: optimum_moves(load, at),
    "a discarded size is best": lambda at: lambda load: discarded_becomes_best(load, at),
}


# Which half of the clients dies, by the order in which they come; None for any, by chance.
HALVES: dict[str, Callable[[int], bool] | None] = {
    "by chance": None,
    "every second, with the first": lambda number: number % 2 == 0,
    "every second, without the first": lambda number: number % 2 == 1,
    "every second pair, with the first": lambda number: number // 2 % 2 == 0,
    "every second pair, without the first": lambda number: number // 2 % 2 == 1,
}


def _loads(arguments: argparse.Namespace) -> dict[str, TracedWorkload]:
    """Of the traces in a folder; without one, made-up ones."""
    if arguments.data:
        wanted = [name for name in arguments.datasets.split(",") if name]
        loads = read_traces(Path(arguments.data)).workloads
        return {str(load): load for load in loads if not wanted or load.dataset in wanted}
    return {
        "default far from the best": made_up_workload(),
        "default the best": made_up_workload(best=256, default=256),
    }


def _seeds(arguments: argparse.Namespace) -> range:
    return range(arguments.first_seed, arguments.first_seed + arguments.seeds)


def honest(arguments: argparse.Namespace) -> dict[str, Any]:
    """Regret with the report filter where all reports are true, against that without it."""
    found: dict[str, Any] = {}
    for policy in arguments.policies.split(","):
        for scene, change in DRIFTS.items():
            drifting = change(arguments.recurrences // 2)
            filtered = Scenario(arguments.recurrences, drift=drifting)
            unfiltered = dataclasses.replace(filtered, defended=False)
            ratios = []
            for name, load in _loads(arguments).items():
                plain = simulate(load, policy, _seeds(arguments), unfiltered)
                mine = simulate(load, policy, _seeds(arguments), filtered)
                ratios.append(mine.mean / plain.mean)
                found[f"{policy}, {scene}, {name}"] = {
                    "regret": plain.mean,
                    "ratio": ratios[-1],
                    "quarantined": mine.doubted,
                }
                print(
                    f"  {name}: {plain.mean:.2f} ± {plain.error:.2f} recurrences of regret, "
                    f"filtered {ratios[-1]:.3f} times that; {mine.doubted:.2%} quarantined"
                )
            mean = sum(ratios) / len(ratios)
            print(f"{policy}, {scene}: {mean:.3f} times the regret, at most {max(ratios):.3f}")
    return found


def adversaries(arguments: argparse.Namespace) -> dict[str, Any]:
    """Regret with a tenth of the clients reporting falsely, against the same ones silent.

    To the others, a client that reports nothing is as if it had never come; yet they meet the same
    luck as beside false reports, so that few histories show what those cost.
    """
    base = Scenario(arguments.recurrences, adversarial_share=0.1, false_report=reports_nothing)
    cases = {}
    for kind in arguments.false_reports.split(","):
        cases[kind] = dataclasses.replace(base, false_report=FALSE_REPORTS[kind])
        if not arguments.filtered_only:
            cases[f"{kind}, unfiltered"] = dataclasses.replace(cases[kind], defended=False)
    return _against(arguments, base, cases)


def deaths(arguments: argparse.Namespace) -> dict[str, Any]:
    """Regret of as many completed recurrences where half of the clients die, or never come.

    Against all of them alive it is not the same: of twice as many that begin at once, the first to
    complete are luckier ones, and more begin before anything is known.
    """
    base = Scenario(arguments.recurrences, clients=arguments.clients // 2)
    cases = {"all live": dataclasses.replace(base, clients=arguments.clients)}
    for which, doomed in HALVES.items():
        cases[f"half die, {which}"] = dataclasses.replace(
            cases["all live"], killed=0.5, doomed=doomed
        )
    return _against(arguments, base, cases)


def _against(
    arguments: argparse.Namespace, base: Scenario, cases: dict[str, Scenario]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for policy in arguments.policies.split(","):
        more: dict[str, list[float]] = {case: [] for case in cases}
        for name, load in _loads(arguments).items():
            plain = simulate(load, policy, _seeds(arguments), base)
            print(f"{policy}, {name}: {plain.mean:.2f} ± {plain.error:.2f} recurrences of regret")
            for case, scenario in cases.items():
                one = simulate(load, policy, _seeds(arguments), scenario)
                ratio, error = one.over(plain)
                more[case].append(ratio - 1.0)
                found[f"{policy}, {name}, {case}"] = {"more": ratio - 1.0, "error": error}
                print(
                    f"  {case}: {one.mean:.2f}, {ratio - 1.0:+.1%} ± {error:.1%}; "
                    f"{one.regrets.max():.1f} in the worst history; {one.failed} without an end"
                )
        for case, each in more.items():
            print(f"{policy}, {case}: {np.median(each):+.1%} in the median, {max(each):+.1%} most")
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


EXPERIMENTS = {"honest": honest, "adversaries": adversaries, "deaths": deaths, "scale": scale}


def main() -> int:
    """Run one experiment and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS, nargs="?", default="honest")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    parser.add_argument("--policies", default="joulery,zeus")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--data", metavar="DIR", help="of traces to replay, else made-up workloads")
    parser.add_argument("--datasets", default="", help="of the traces, several with commas")
    parser.add_argument("--recurrences", type=int, default=200)
    parser.add_argument("--clients", type=int, default=1000, help="at work at once, for deaths")
    parser.add_argument("--false-reports", default=",".join(FALSE_REPORTS))
    parser.add_argument("--filtered-only", action="store_true", help="not without the filter")
    parser.add_argument("--other-sizes", type=int, help="votes of other batch sizes, at most")
    parser.add_argument("--sizes", default="1x10,1x1000,1x10000,10000x100", help="JOBSxRECURRENCES")
    parser.add_argument("--postgresql", action="store_true", help="instead of SQLite, for scale")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.seeds, arguments.recurrences, arguments.sizes = 2, 5, "1x10"
        arguments.clients, arguments.policies = 4, "joulery"
        arguments.false_reports = next(iter(FALSE_REPORTS))
    if arguments.other_sizes is not None:
        _report_filter.OTHERS = arguments.other_sizes
    found = EXPERIMENTS[arguments.experiment](arguments)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
