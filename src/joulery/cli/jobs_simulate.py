"""``joulery jobs simulate`` and ``joulery jobs replay``: policies on traces of trainings."""

from __future__ import annotations

from dataclasses import asdict, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from joulery import simulate
from joulery.cli.dispatch import Output
from joulery.cli.options import Action, Option, file, names, number, option, whole, written
from joulery.cli.progress import Progress
from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError
from joulery.frontier import Origin
from joulery.jobs.policies import make_policy, policy_names
from joulery.objectives import parse_objective
from joulery.reports import table_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_ORACLE, _DEFAULT = "oracle", "default"


def _simulate(arguments: argparse.Namespace) -> Output:
    options = simulate.SimulationConfig(
        eta=arguments.eta,
        objective=parse_objective(arguments.objective) if arguments.objective else None,
        overlap=arguments.overlap,
        keep_actions=bool(arguments.log),
    )
    traces = simulate.read_traces(arguments.trace)
    traces = traces.select(arguments.device, arguments.dataset)
    logs = _logs(traces, arguments, options)
    if arguments.log:
        simulate.write_actions(arguments.log, logs)
    results = [summary for log in logs for summary in simulate.summaries(log)]
    results.sort(key=attrgetter("gpu", "dataset", "network", "optimizer"))
    rows = [asdict(summary) for summary in results]
    document = {
        "provenance": Origin.SIMULATED.value,
        "results": rows,
        "remarks": list(traces.remarks),
    }
    bounded = bool(arguments.objective)
    return Output(document, lambda: _simulate_text(results, traces.remarks, bounded=bounded))


def _logs(
    traces: simulate.Traces, arguments: argparse.Namespace, options: simulate.SimulationConfig
) -> list[simulate.SimulationLog]:
    if not arguments.policy:
        raise InvalidValueError("no policy given", remedy="give --policy zeus,joulery")
    tuned = {"beta": arguments.beta, "window": arguments.window, "objective": options.objective}
    seeds, workloads = range(arguments.seeds), traces.workloads
    policies: dict[str, Any] = {
        name: simulate.make_oracle(workloads, seeds, options.eta, options.objective)
        if name == _ORACLE
        else make_policy(name, **tuned)
        for name in arguments.policy
    }
    if arguments.drift:
        workloads = tuple(map(simulate.parse_drift(arguments.drift, options.eta), workloads))
    progress = Progress()
    logs = []
    for name, policy in policies.items():
        observed = replace(options, on_progress=_shares(progress, name))
        logs.append(simulate.simulate(workloads, policy, arguments.recurrences, seeds, observed))
    progress.done()
    return logs


def _shares(progress: Progress, name: str, of: str = "") -> Callable[[float], None]:
    """Function that shows the share of the work that is done."""
    return lambda share: progress.show(f"joulery: {name}: {100 * share:.0f} %{of}")


_SIMULATE_COLUMNS: dict[str, Callable[[simulate.PolicySummary], str]] = {
    "GPU, dataset, policy": lambda summary: f"{summary.gpu} {summary.dataset} {summary.policy}",
    ">runs": lambda summary: str(summary.recurrences),
    ">regret": lambda summary: f"{summary.regret_mean:.2f}",
    ">±": lambda summary: f"{summary.regret_sd:.2f}",
    ">energy": lambda summary: f"{summary.eta_last5_vs_default:.3f}",
    ">time": lambda summary: f"{summary.tta_last5_vs_default:.3f}",
    ">cost, all": lambda summary: f"{summary.cost_total_vs_default:.3f}",
    ">within": lambda summary: f"{100 * summary.within_last5:.0f} %",
    ">tries": lambda summary: f"{summary.attempts_mean:.2f}",
    ">failed": lambda summary: f"{100 * summary.failed:.1f} %",
}
_SIMULATE_NOTES = """
Means over {seeds} seeds. Regret: cost beyond the best fixed setting, in units of its cost; ± over \
seeds.
Runs: recurrences of the job. Energy and time: the last five against the default setting; cost, \
all: every one against it."""
_WITHIN_NOTE = (
    "Within: settings of the last five recurrences that are expected to keep the objective's "
    "bounds, within 1 %."
)


def _simulate_text(
    results: list[simulate.PolicySummary], remarks: tuple[str, ...], *, bounded: bool
) -> str:
    columns = {
        title: cell for title, cell in _SIMULATE_COLUMNS.items() if bounded or title != ">within"
    }
    notes = [_SIMULATE_NOTES.format(seeds=results[0].seeds), *[_WITHIN_NOTE] * bounded]
    return "\n".join([table_of(results, columns), *notes, *remarks])


def _replay(arguments: argparse.Namespace) -> Output:
    policies = {name: make_policy(name) for name in (_DEFAULT, *arguments.policy)}
    traces = simulate.read_traces(arguments.trace)
    traces = traces.select([arguments.device or traces.workloads[0].gpu])
    if arguments.generate is None:
        groups = simulate.read_groups(arguments.groups)
    else:
        groups = simulate.generate_groups(arguments.groups, arguments.generate)
    logs, seconds = _replay_all(groups, traces, policies, arguments)
    results = simulate.summarize_replays(logs, traces.workloads)
    document = {
        "provenance": Origin.SIMULATED.value,
        "groups": len(groups),
        "jobs": groups.jobs,
        "source": groups.remark,
        "results": [asdict(summary) for summary in results],
        "replay_seconds": seconds,
        "remarks": list(traces.remarks),
    }
    return Output(document, lambda: _replay_text(document, results))


def _replay_all(
    groups: simulate.JobGroups,
    traces: simulate.Traces,
    policies: dict[str, Any],
    arguments: argparse.Namespace,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Logs, and seconds that the replay took, by policy."""
    progress = Progress()
    logs, seconds = {}, {}
    for name, policy in policies.items():
        show = _shares(progress, name, f" of {groups.jobs} jobs")
        started = REAL_CLOCK.now()
        logs[name] = simulate.replay(
            groups,
            traces.workloads,
            policy,
            eta=arguments.eta,
            seed=arguments.seed,
            on_progress=show,
        )
        seconds[name] = REAL_CLOCK.now() - started
    progress.done()
    return logs, seconds


_REPLAY_COLUMNS: dict[str, Callable[[simulate.ReplaySummary], str]] = {
    "GPU, workload, policy": lambda summary: f"{summary.gpu} {summary.workload} {summary.policy}",
    ">jobs": lambda summary: str(summary.jobs),
    ">energy": lambda summary: f"{summary.eta_vs_default:.3f}",
    ">time": lambda summary: f"{summary.tta_vs_default:.3f}",
    ">regret": lambda summary: f"{summary.regret_vs_optimum:.3f}",
    ">overlapping": lambda summary: f"{100 * summary.jobs_while_others_run:.0f} %",
}
_REPLAY_NOTES = """
Energy and time over all jobs, relative to default.
Regret: cost beyond the best fixed settings, as a share of theirs.
Overlapping: jobs that decided while an earlier one of their group was under way.
{jobs} jobs in {groups} groups; {source}.
Replayed in: {took}."""


def _replay_text(document: dict[str, Any], results: list[simulate.ReplaySummary]) -> str:
    took = ", ".join(f"{name} {s:.1f} s" for name, s in document["replay_seconds"].items())
    notes = _REPLAY_NOTES.format(**document, took=took)
    return f"{table_of(results, _REPLAY_COLUMNS)}\n{notes}"


def _common(policies: str, text: str) -> tuple[Option, ...]:
    return (
        file("--trace", "folder of traces", "DIR", required=True),
        option("--policy", text, "NAME,NAME", names, default=policies),
        option("--eta", "weight of energy, 0 to 1 (0.5)", "E", number(0, 1), default=0.5),
    )


_SIMULATE = (
    *_common(
        "joulery,zeus,default", f"{', '.join((*policy_names(), _ORACLE))} (default: %(default)s)"
    ),
    option("--device", "only these GPU types", "NAME,NAME", names, default=()),
    option("--dataset", "only these datasets", "NAME,NAME", names, default=()),
    option(
        "--recurrences",
        "recurrences of each job (default: twice the number of batch sizes times limits)",
        "N",
        whole(1, 1_000_000),
    ),
    option("--seeds", "number of jobs (100)", "N", whole(1, 100_000), default=100),
    option(
        "--objective",
        "minimise and judge by another objective than the cost, such as least-energy:"
        "slowdown=5%%; regret is then its value beyond that of the best setting within its bounds. "
        "Of the policies only joulery and oracle pursue it",
        "WHAT",
    ),
    option("--beta", "zeus: stop at B times the least cost so far (2)", "B", float),
    option("--window", "zeus: only the latest N costs of a size count", "N", whole(0, 1000)),
    option(
        "--overlap --concurrency",
        "recurrences of a job under way at once (1)",
        "K",
        whole(1, 1_000),
        default=1,
    ),
    option(
        "--drift",
        "what changes: scale=F@N (from recurrence N on all batch sizes need F times the epochs), "
        "slide=F@N-M (the same, growing), optimum@N (another batch size becomes best), discarded@N "
        "(one that cost twice as much becomes best)",
        "WHAT@N",
    ),
    written("--log", "write every single action as CSV", ".csv"),
)
_REPLAY = (
    *_common("default,grid,zeus,joulery", "default is added where missing (%(default)s)"),
    file(
        "--groups",
        "CSV with the columns group, submit_seconds and duration_seconds; with --generate, a "
        "list of jobs (Philly or Alibaba PAI) to make groups from",
        required=True,
    ),
    option(
        "--generate",
        "make synthetic groups of N jobs in all from the jobs of FILE (default: %(const)s)",
        "N",
        whole(1, 100_000_000),
        nargs="?",
        const=50_000,
    ),
    option("--device", "GPU type of the cluster (the first in the traces)", "NAME"),
    option("--seed", "seed of all chance (0)", "N", whole(0, 2**31 - 1), default=0),
)
_EPILOG = """\
DIR has summary_train.csv and summary_power_GPU.csv, or the tables runs, power and jobs; see
`docs/explanation/policy.md`."""
SIMULATE = Action(
    _simulate,
    _SIMULATE,
    "what policies would have saved on traces of trainings",
    epilog="example: joulery jobs simulate --trace DIR --policy zeus,joulery --seeds 100\n\n"
    + _EPILOG,
)
REPLAY = Action(
    _replay,
    _REPLAY,
    "what policies would have saved on groups of jobs of a cluster, overlaps included",
    epilog=_EPILOG,
)
