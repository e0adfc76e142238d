"""``joulery simulate``: what if, on traces of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.cli import simulate_cluster

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from joulery.objectives import Objective
    from joulery.simulate.log import SimulationLog
    from joulery.simulate.recurring import Options
    from joulery.simulate.summary import PolicySummary
    from joulery.simulate.traces import Traces

_POLICIES = "joulery,zeus,default"
_ORACLE = "oracle"
_MOST_SEEDS = 100_000
_MOST_RECURRENCES = 1_000_000
_MOST_OVERLAP = 1_000
_DRIFT_HELP = (
    "what changes: scale=F@N (from recurrence N on all batch sizes need F times the epochs), "
    "slide=F@N-M (the same, growing), optimum@N (another batch size becomes best), discarded@N "
    "(one that was too dear becomes best), traces=DIR@N (epochs of other traces)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = (
        "example: joulery simulate recurring --traces DIR --policy zeus,joulery --seeds 100\n\n"
        "DIR has summary_train.csv and summary_power_GPU.csv, or the tables runs, power and jobs;\n"
        "see `docs/recurring.md`. Both kinds take --json."
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="WHAT")
    recurring = kinds.add_parser(
        "recurring", help="jobs that are trained again and again, under one policy or several"
    )
    _add_choice_arguments(recurring)
    _add_scene_arguments(recurring)
    recurring.add_argument("--log", metavar="FILE", help="write every single action as CSV")
    recurring.add_argument("--json", action="store_true", help="print one JSON document")
    simulate_cluster.add_arguments(
        kinds.add_parser("cluster", help="a cluster's groups of recurring jobs, overlaps and all")
    )


def _add_choice_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traces", metavar="DIR", required=True, help="folder of traces")
    parser.add_argument(
        "--workloads",
        metavar="FILE",
        help="table of target_metric, default_batch_size and max_epochs per dataset",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME,NAME",
        default=_POLICIES,
        help="joulery, zeus, grid, default, oracle (default: %(default)s)",
    )
    parser.add_argument("--gpu", metavar="NAME,NAME", default="", help="only these GPU types")
    parser.add_argument("--dataset", metavar="NAME,NAME", default="", help="only these datasets")


def _add_scene_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recurrences",
        metavar="N",
        help="of each job (default: twice the number of batch sizes times limits)",
    )
    parser.add_argument("--seeds", metavar="N", default="100", help="jobs (default: %(default)s)")
    parser.add_argument(
        "--eta", metavar="E", default="0.5", help="weight of energy, 0 to 1 (default: %(default)s)"
    )
    parser.add_argument(
        "--objective",
        metavar="WHAT",
        help="minimise and judge by another objective than the cost, such as least-energy:"
        "slowdown=5%%; regret is then its score beyond that of the best setting within its bounds. "
        "Of the policies only joulery and oracle pursue it",
    )
    parser.add_argument(
        "--beta", metavar="B", help="zeus: stop at B times the least cost so far (default: 2)"
    )
    parser.add_argument(
        "--window", metavar="N", help="zeus: only the latest N costs of a batch size count"
    )
    parser.add_argument(
        "--overlap",
        "--concurrency",
        metavar="K",
        default="1",
        help="recurrences of a job under way at once (default: %(default)s)",
    )
    parser.add_argument("--drift", metavar="WHAT@N", help=_DRIFT_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and say how it went."""
    if arguments.kind == "cluster":
        return simulate_cluster.run(arguments)
    import sys
    from pathlib import Path

    from joulery.simulate.summary import summaries
    from joulery.simulate.traces import read_traces

    options = _options(arguments)
    traces = read_traces(
        Path(arguments.traces), Path(arguments.workloads) if arguments.workloads else None
    ).select(_names(arguments.gpu), _names(arguments.dataset))
    logs = _simulated(traces, arguments, options)
    if arguments.log:
        from joulery.simulate.log_file import write_log

        write_log(Path(arguments.log), logs)
    found = [summary for log in logs for summary in summaries(log)]
    found.sort(key=lambda one: (one.gpu, one.dataset, one.network, one.optimizer))
    if arguments.json:
        sys.stdout.write(_json(found, traces))
    else:
        sys.stdout.write(_text(found, traces, bounded=bool(arguments.objective)))
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _options(arguments: argparse.Namespace) -> Options:
    from joulery.cli.checked import whole_number
    from joulery.simulate.drift_text import parse_drift
    from joulery.simulate.recurring import Options

    eta = _number(arguments.eta, "--eta")
    return Options(
        eta=eta,
        objective=_objective(arguments),
        overlap=whole_number(arguments.overlap, "--overlap", 1, _MOST_OVERLAP),
        drift=parse_drift(arguments.drift, eta) if arguments.drift else None,
        keep_deeds=bool(arguments.log),
    )


def _objective(arguments: argparse.Namespace) -> Objective | None:
    from joulery.objectives import parse_objective

    return parse_objective(arguments.objective) if arguments.objective else None


def _number(text: str, option: str) -> float:
    from joulery.errors import InvalidValueError

    try:
        return float(text)
    except ValueError:
        raise InvalidValueError(
            f"{option} {text!r} is no number", remedy="give a plain number"
        ) from None


def _whole(text: str | None, option: str, least: int) -> int | None:
    from joulery.cli.checked import whole_number

    return None if text is None else whole_number(text, option, least, _MOST_RECURRENCES)


def _policies(arguments: argparse.Namespace) -> list[tuple[str, Any]]:
    """Names and policies; the oracle, which must know the lanes, as None."""
    from joulery.errors import InvalidValueError
    from joulery.jobs.policies.registry import make_policy

    names = _names(arguments.policy)
    if not names:
        raise InvalidValueError("no policy given", remedy="give --policy zeus,joulery")
    options = {
        "beta": None if arguments.beta is None else _number(arguments.beta, "--beta"),
        "window": _whole(arguments.window, "--window", 0),
        "objective": _objective(arguments),
    }
    return [(name, None if name == _ORACLE else make_policy(name, **options)) for name in names]


def _simulated(
    traces: Traces, arguments: argparse.Namespace, options: Options
) -> list[SimulationLog]:
    from dataclasses import replace

    from joulery.cli.checked import whole_number
    from joulery.cli.progress import Progress
    from joulery.simulate.recurring import oracle_of, simulate

    policies = _policies(arguments)
    seeds = range(whole_number(arguments.seeds, "--seeds", 1, _MOST_SEEDS))
    count = _whole(arguments.recurrences, "--recurrences", 1)
    progress = Progress()
    logs = []
    for name, known in policies:
        policy = known or oracle_of(traces.workloads, seeds, options.eta, options.objective)

        def show(share: float, name: str = name) -> None:
            progress.show(f"joulery: {name}: {100 * share:.0f} %")

        told = replace(options, on_progress=show)
        logs.append(simulate(traces.workloads, policy, count, seeds, told))
    progress.done()
    return logs


def _json(found: list[PolicySummary], traces: Traces) -> str:
    import json
    from dataclasses import asdict

    document = {"results": [asdict(one) for one in found], "remarks": list(traces.remarks)}
    return json.dumps(document, allow_nan=False) + "\n"


_COLUMNS: dict[str, Callable[[PolicySummary], str]] = {
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


def _text(found: list[PolicySummary], traces: Traces, *, bounded: bool) -> str:
    from joulery.cli.table import table

    shown = [name for name in _COLUMNS if bounded or name != "within"]
    rows = [[_COLUMNS[name](one) for name in shown] for one in found]
    meaning = [
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
        meaning.append(
            "Within: settings of the last five recurrences that are expected to keep the "
            "objective's bounds, within 1 %."
        )
    lines = [table(shown, rows, "lll" + "r" * len(shown)), "", *meaning, *traces.remarks]
    return "\n".join(lines) + "\n"
