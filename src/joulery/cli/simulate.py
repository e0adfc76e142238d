"""``joulery simulate``: recurring jobs and clusters of them, replayed from traces of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from joulery.objectives import Objective
    from joulery.simulate import (
        JobGroups,
        PolicySummary,
        ReplaySummary,
        SimulationLog,
        SimulationOptions,
        Traces,
    )

_ORACLE, _DEFAULT = "oracle", "default"
_DRIFT_HELP = (
    "what changes: scale=F@N (from recurrence N on all batch sizes need F times the epochs), "
    "slide=F@N-M (the same, growing), optimum@N (another batch size becomes best), discarded@N "
    "(one that cost twice as much becomes best), traces=DIR@N (epochs of other traces)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = (
        "example: joulery simulate recurring --traces DIR --policy zeus,joulery --seeds 100\n\n"
        "DIR has summary_train.csv and summary_power_GPU.csv, or the tables runs, power and jobs;\n"
        "see `docs/recurring.md`. Both kinds take --json."
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="WHAT")
    _add_recurring_arguments(
        kinds.add_parser(
            "recurring", help="jobs that are trained again and again, under one policy or several"
        )
    )
    _add_cluster_arguments(
        kinds.add_parser("cluster", help="a cluster's groups of recurring jobs, overlaps included")
    )


def _add_common_arguments(parser: argparse.ArgumentParser, policies: str, more: str) -> None:
    from pathlib import Path

    add = parser.add_argument
    add("--traces", metavar="DIR", type=Path, required=True, help="folder of traces")
    add("--policy", metavar="NAME,NAME", type=_names, default=policies, help=more)
    add("--eta", metavar="E", type=_share, default=0.5, help="weight of energy, 0 to 1 (0.5)")
    add("--json", action="store_true", help="print one JSON document")


def _add_recurring_arguments(parser: argparse.ArgumentParser) -> None:
    from pathlib import Path

    names = "joulery, zeus, grid, default, oracle (default: %(default)s)"
    _add_common_arguments(parser, "joulery,zeus,default", names)
    add = parser.add_argument
    add(
        "--workloads",
        metavar="FILE",
        type=Path,
        help="table of target_metric, default_batch_size and max_epochs per dataset",
    )
    add("--gpu", metavar="NAME,NAME", type=_names, default=(), help="only these GPU types")
    add("--dataset", metavar="NAME,NAME", type=_names, default=(), help="only these datasets")
    add(
        "--recurrences",
        metavar="N",
        type=_whole(1, 1_000_000),
        help="recurrences of each job (default: twice the number of batch sizes times limits)",
    )
    add("--seeds", metavar="N", type=_whole(1, 100_000), default=100, help="number of jobs (100)")
    add(
        "--objective",
        metavar="WHAT",
        help="minimise and judge by another objective than the cost, such as least-energy:"
        "slowdown=5%%; regret is then its value beyond that of the best setting within its bounds. "
        "Of the policies only joulery and oracle pursue it",
    )
    add("--beta", metavar="B", type=float, help="zeus: stop at B times the least cost so far (2)")
    add(
        "--window",
        metavar="N",
        type=_whole(0, 10_000),
        help="zeus: only the latest N costs of a batch size count",
    )
    add(
        "--overlap",
        "--concurrency",
        metavar="K",
        type=_whole(1, 1_000),
        default=1,
        help="recurrences of a job under way at once (1)",
    )
    add("--drift", metavar="WHAT@N", help=_DRIFT_HELP)
    add("--log", metavar="FILE", type=Path, help="write every single action as CSV")


def _add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    from pathlib import Path

    _add_common_arguments(
        parser, "default,grid,zeus,joulery", "default is added where missing (%(default)s)"
    )
    add = parser.add_argument
    add(
        "--groups",
        metavar="FILE",
        type=Path,
        required=True,
        help="CSV with the columns group, submit_seconds and duration_seconds; with --generate, a "
        "list of jobs (Philly or Alibaba PAI) to make groups from",
    )
    add(
        "--generate",
        metavar="N",
        type=_whole(1, 100_000_000),
        nargs="?",
        const=50_000,
        help="make synthetic groups of N jobs in all from the jobs of FILE (default: %(const)s)",
    )
    add("--gpu", metavar="NAME", help="GPU type of the cluster (the first in the traces)")
    add("--seed", metavar="N", type=_whole(0, 2**31 - 1), default=0, help="seed of all chance (0)")
    add(
        "--sizes-unknown",
        action="store_true",
        help="judge jobs by plain cost, as if it were unknown that some have more data than others",
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and print the figures."""
    return _cluster(arguments) if arguments.kind == "cluster" else _recurring(arguments)


def _names(text: str) -> list[str]:
    """Type of an option with names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _whole(least: int, most: int) -> Callable[[str], int]:
    """Type of an option with a whole number in a range."""

    def whole(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise _wrong(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return whole


def _share(text: str) -> float:
    """Type of an option with a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise _wrong(f"{text!r} is no number from 0 to 1")
    return value


def _wrong(message: str) -> Exception:
    from argparse import ArgumentTypeError

    return ArgumentTypeError(message)


def _print(document: dict[str, Any], text: Callable[[], str], *, as_json: bool) -> None:
    import json
    import sys

    sys.stdout.write((json.dumps(document, allow_nan=False) if as_json else text()) + "\n")


def _recurring(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from joulery.simulate import read_traces, summaries, write_actions

    options = _options(arguments)
    traces = read_traces(arguments.traces, arguments.workloads)
    traces = traces.select(arguments.gpu, arguments.dataset)
    logs = _simulated(traces, arguments, options)
    if arguments.log:
        write_actions(arguments.log, logs)
    found = [summary for log in logs for summary in summaries(log)]
    found.sort(key=lambda one: (one.gpu, one.dataset, one.network, one.optimizer))
    document = {"results": [asdict(one) for one in found], "remarks": list(traces.remarks)}
    bounded = bool(arguments.objective)
    _print(document, lambda: _recurring_text(found, traces, bounded), as_json=arguments.json)
    return 0


def _options(arguments: argparse.Namespace) -> SimulationOptions:
    from joulery.simulate import SimulationOptions, parse_drift

    return SimulationOptions(
        eta=arguments.eta,
        objective=_objective(arguments),
        overlap=arguments.overlap,
        drift=parse_drift(arguments.drift, arguments.eta) if arguments.drift else None,
        keep_actions=bool(arguments.log),
    )


def _objective(arguments: argparse.Namespace) -> Objective | None:
    from joulery.objectives import parse_objective

    return parse_objective(arguments.objective) if arguments.objective else None


def _simulated(
    traces: Traces, arguments: argparse.Namespace, options: SimulationOptions
) -> list[SimulationLog]:
    from dataclasses import replace

    from joulery.cli.progress import Progress
    from joulery.simulate import make_oracle, simulate

    policies, seeds = _policies(arguments), range(arguments.seeds)
    progress = Progress()
    logs = []
    for name, known in policies:
        policy = known or make_oracle(traces.workloads, seeds, options.eta, options.objective)

        def show(share: float, name: str = name) -> None:
            progress.show(f"joulery: {name}: {100 * share:.0f} %")

        shown = replace(options, on_progress=show)
        logs.append(simulate(traces.workloads, policy, arguments.recurrences, seeds, shown))
    progress.done()
    return logs


def _policies(arguments: argparse.Namespace) -> list[tuple[str, Any]]:
    """Names and policies; the oracle, which depends on the workloads, as None."""
    from joulery.errors import InvalidValueError
    from joulery.jobs.policies import make_policy

    if not arguments.policy:
        raise InvalidValueError("no policy given", remedy="give --policy zeus,joulery")
    options = {
        "beta": arguments.beta,
        "window": arguments.window,
        "objective": _objective(arguments),
    }
    return [
        (name, None if name == _ORACLE else make_policy(name, **options))
        for name in arguments.policy
    ]


_RECURRING_COLUMNS: dict[str, Callable[[PolicySummary], str]] = {
    "GPU": lambda one: one.gpu,
    "dataset": lambda one: one.dataset,
    "policy": lambda one: one.policy,
    "recurrences": lambda one: str(one.recurrences),
    "regret": lambda one: f"{one.regret_mean:.2f}",
    "±": lambda one: f"{one.regret_sd:.2f}",
    "energy": lambda one: f"{one.eta_last5_vs_default:.3f}",
    "time": lambda one: f"{one.tta_last5_vs_default:.3f}",
    "cost, all": lambda one: f"{one.cost_total_vs_default:.3f}",
    "within": lambda one: f"{100 * one.within_last5:.0f} %",
    "tries": lambda one: f"{one.attempts_mean:.2f}",
    "failed": lambda one: f"{100 * one.failed:.1f} %",
}


def _recurring_text(found: list[PolicySummary], traces: Traces, bounded: bool) -> str:  # noqa: FBT001
    from joulery.reports import table_text as table

    shown = [name for name in _RECURRING_COLUMNS if bounded or name != "within"]
    rows = [[_RECURRING_COLUMNS[name](one) for name in shown] for one in found]
    notes = [
        (
            f"Means over {found[0].seeds} seeds. Regret: cost beyond the best fixed setting, in "
            "units of its cost; ± over seeds."
        ),
        (
            "Energy and time: last five recurrences against the default setting; cost, all: every "
            "recurrence against it."
        ),
    ]
    if bounded:
        notes.append(
            "Within: settings of the last five recurrences that are expected to keep the "
            "objective's bounds, within 1 %."
        )
    return "\n".join([table(shown, rows, "lll" + "r" * len(shown)), "", *notes, *traces.remarks])


def _cluster(arguments: argparse.Namespace) -> int:
    from joulery.simulate import read_traces, summarize_replays

    policies = _cluster_policies(arguments.policy)
    traces = read_traces(arguments.traces)
    traces = traces.select([arguments.gpu or traces.workloads[0].gpu])
    groups = _groups(arguments)
    logs, seconds = _replayed(groups, traces, policies, arguments)
    found = summarize_replays(logs, traces.workloads)
    document = {
        "groups": len(groups),
        "jobs": groups.jobs,
        "source": groups.remark,
        "results": [one.to_dict() for one in found],
        "replay_seconds": seconds,
        "remarks": list(traces.remarks),
    }
    _print(document, lambda: _cluster_text(document, found), as_json=arguments.json)
    return 0


def _cluster_policies(names: list[str]) -> list[str]:
    from joulery.errors import InvalidValueError
    from joulery.jobs.policies import policy_names

    for name in names:
        if name not in policy_names():
            raise InvalidValueError(
                f"no policy {name!r}", remedy=f"choose from {', '.join(policy_names())}"
            )
    return list(dict.fromkeys([_DEFAULT, *names]))


def _groups(arguments: argparse.Namespace) -> JobGroups:
    from joulery.simulate import generate_groups, read_groups

    if arguments.generate is None:
        return read_groups(arguments.groups)
    return generate_groups(arguments.groups, arguments.generate)


def _replayed(
    groups: JobGroups, traces: Traces, policies: list[str], arguments: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, float]]:
    """Logs, and seconds that the replay took, by policy."""
    from joulery.cli.progress import Progress
    from joulery.clock import REAL_CLOCK
    from joulery.jobs.policies import make_policy
    from joulery.simulate import ReplayOptions, replay

    progress = Progress()
    logs, seconds = {}, {}
    for name in policies:

        def show(share: float, name: str = name) -> None:
            progress.show(f"joulery: {name}: {100 * share:.0f} % of {groups.jobs} jobs")

        options = ReplayOptions(arguments.eta, arguments.seed, not arguments.sizes_unknown, show)
        started = REAL_CLOCK.now()
        logs[name] = replay(groups, traces.workloads, make_policy(name), options)
        seconds[name] = REAL_CLOCK.now() - started
    progress.done()
    return logs, seconds


def _cluster_text(document: dict[str, Any], found: list[ReplaySummary]) -> str:
    from joulery.reports import table_text as table

    headers = ("GPU", "workload", "policy", "jobs", "energy", "time", "regret", "overlapping")
    rows = [
        (
            one.gpu,
            one.workload,
            one.policy,
            str(one.jobs),
            f"{one.eta_vs_default:.3f}",
            f"{one.tta_vs_default:.3f}",
            f"{one.regret_vs_optimum:.3f}",
            f"{100 * one.jobs_while_others_run:.0f} %",
        )
        for one in found
    ]
    took = ", ".join(f"{name} {s:.1f} s" for name, s in document["replay_seconds"].items())
    notes = [
        "",
        "Energy and time over all jobs, relative to default.",
        "Regret: cost beyond the best fixed settings, as a share of theirs.",
        "Overlapping: jobs that decided while an earlier one of their group was under way.",
        f"{document['jobs']} jobs in {document['groups']} groups; {document['source']}.",
        f"Replayed in: {took}.",
    ]
    return "\n".join([table(headers, rows, "lllrrrrr"), *notes])
