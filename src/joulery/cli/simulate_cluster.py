"""``joulery simulate cluster``: a cluster's recurring jobs under one policy or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from joulery.simulate.cluster_groups import Groups
    from joulery.simulate.cluster_replay import ReplayLog
    from joulery.simulate.workload import TracedWorkload

_POLICIES = "default,grid,zeus,joulery"
_BASE = "default"
_MOST_JOBS = 100_000_000
_JOBS = 50_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.add_argument("--traces", metavar="DIR", required=True, help="folder of traces")
    parser.add_argument(
        "--groups",
        metavar="FILE",
        required=True,
        help="CSV with the columns group, submit_seconds and duration_seconds; with --generate, a "
        "list of jobs (Philly or Alibaba PAI) to make groups from",
    )
    parser.add_argument(
        "--generate",
        metavar="N",
        nargs="?",
        const=str(_JOBS),
        help="make synthetic groups of N jobs in all from the jobs of FILE (default: %(const)s)",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME,NAME",
        default=_POLICIES,
        help="default is added where it is missing (default: %(default)s)",
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="GPU type of the cluster (default: the first in the traces)"
    )
    parser.add_argument(
        "--eta", metavar="E", default="0.5", help="weight of energy, 0 to 1 (default: %(default)s)"
    )
    parser.add_argument("--seed", metavar="N", default="0", help="decides all luck (default: 0)")
    parser.add_argument(
        "--sizes-unknown",
        action="store_true",
        help="judge jobs by plain cost, as if nobody knew that some have more data than others",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Replay, and say what each policy used."""
    import sys
    from pathlib import Path

    from joulery.simulate.reproduce_cluster import COLUMNS, replay_rows
    from joulery.simulate.reproduce_order import in_their_order
    from joulery.simulate.traces import read_traces

    policies = _policy_names(arguments.policy)
    traces = read_traces(Path(arguments.traces))
    gpu = arguments.gpu or in_their_order(traces.workloads)[0].gpu
    workloads = in_their_order(traces.select([gpu]).workloads)
    groups = _groups(arguments)
    logs, seconds = _replayed(groups, workloads, policies, arguments)
    rows = replay_rows(logs, workloads)
    document = {
        "groups": len(groups),
        "jobs": groups.jobs,
        "source": groups.remark,
        "results": [dict(zip(COLUMNS, row, strict=True)) for row in rows],
        "replay_seconds": seconds,
        "remarks": list(traces.remarks),
    }
    sys.stdout.write(_json(document) if arguments.json else _text(document))
    return 0


def _policy_names(text: str) -> list[str]:
    from joulery.errors import InvalidValueError
    from joulery.jobs.policies.registry import policy_names

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in policy_names():
            raise InvalidValueError(
                f"no policy {name!r}", remedy=f"choose from {', '.join(policy_names())}"
            )
    return [_BASE, *(name for name in dict.fromkeys(names) if name != _BASE)]


def _groups(arguments: argparse.Namespace) -> Groups:
    from pathlib import Path

    from joulery.cli.checked import whole_number
    from joulery.simulate.cluster_generate import generated
    from joulery.simulate.cluster_groups import read_groups

    path = Path(arguments.groups)
    if arguments.generate is None:
        return read_groups(path)
    return generated(path, whole_number(arguments.generate, "--generate", 1, _MOST_JOBS))


def _replayed(
    groups: Groups,
    workloads: Sequence[TracedWorkload],
    policies: Sequence[str],
    arguments: argparse.Namespace,
) -> tuple[dict[str, ReplayLog], dict[str, float]]:
    from joulery.cli.checked import whole_number
    from joulery.cli.progress import Progress
    from joulery.clock import REAL_CLOCK
    from joulery.jobs.policies.registry import make_policy
    from joulery.simulate.cluster_replay import ReplayOptions, replay

    eta = _share(arguments.eta)
    seed = whole_number(arguments.seed, "--seed", 0, 2**31 - 1)
    progress = Progress()
    logs, seconds = {}, {}
    for name in policies:

        def show(share: float, name: str = name) -> None:
            progress.show(f"joulery: {name}: {100 * share:.0f} % of {groups.jobs} jobs")

        options = ReplayOptions(eta, seed, not arguments.sizes_unknown, show)
        started = REAL_CLOCK.now()
        logs[name] = replay(groups, workloads, make_policy(name), options)
        seconds[name] = REAL_CLOCK.now() - started
    progress.done()
    return logs, seconds


def _share(text: str) -> float:
    from joulery.errors import InvalidValueError

    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InvalidValueError(f"--eta {text!r} is no share", remedy="give a number from 0 to 1")
    return value


def _json(document: dict[str, Any]) -> str:
    import json

    return json.dumps(document, allow_nan=False) + "\n"


def _text(document: dict[str, Any]) -> str:
    from joulery.cli.table import table

    headers = ("GPU", "workload", "policy", "jobs", "energy", "time", "regret", "overlapping")
    rows = [
        (
            row["gpu"],
            row["workload"],
            row["policy"],
            str(row["jobs"]),
            f"{row['eta_vs_default']:.3f}",
            f"{row['tta_vs_default']:.3f}",
            f"{row['regret_vs_optimum']:.3f}",
            f"{100 * row['jobs_while_others_run']:.0f} %",
        )
        for row in document["results"]
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
    return "\n".join([table(headers, rows, "lllrrrrr"), *notes]) + "\n"
