"""Figures of policies at work: Fig. 6/23, 7/19, 8/20/21, 9, 10, 11/22, 12, 13 and 14."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies import ActionKind, RunEnd
from joulery.simulate import (
    discarded_becomes_best,
    optimum_moves,
    scale_epochs,
    summarize_replays,
)
from papers.zeus.tables import Figure, Table, geometric_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from joulery.jobs.policies import Floats
    from joulery.simulate import ReplayLog, SimulationLog, TracedWorkload
    from papers.zeus.tables import Row

LAST = 5
MEAN = "geometric mean"
# Two standard errors of the mean: one simulation in twenty is farther off by chance.
_SIGMAS = 1.96

DRIFT_RECURRENCES = 100
DRIFT_AT = 50
DRIFT_WINDOW = 10  # as the publication sets it for its own drifting data
_GROWTH = 1.9


def _label(load: TracedWorkload) -> Row:
    return {"gpu": load.gpu, "workload": load.dataset}


def _interval(name: str, values: Floats) -> Row:
    """Cells of a mean and its 95 % interval."""
    error = _SIGMAS * float(np.std(values)) / max(1, len(values) - 1) ** 0.5
    mean = float(np.mean(values))
    return {name: mean, f"{name}_low": mean - error, f"{name}_high": mean + error}


def _by_workload(rows: list[Row]) -> tuple[Row, ...]:
    """Rows by GPU and workload as they first appear, policies next to each other."""
    pairs = list(dict.fromkeys((row["gpu"], row["workload"]) for row in rows))
    return tuple(sorted(rows, key=lambda row: pairs.index((row["gpu"], row["workload"]))))


def last_five(logs: Mapping[str, SimulationLog]) -> Figure:
    """ETA and TTA of the last five recurrences relative to the default's, by policy."""
    rows: list[Row] = []
    for policy, log in logs.items():
        for part in log.by_workload():
            load = part.workloads[0]
            seconds, joules, _ = part.last(LAST)
            arm, limit, _ = load.optimum(log.eta)
            best = load.mean_epochs()[arm]
            rows.append(
                _label(load)
                | {"policy": policy, "seeds": len(joules)}
                | _interval("eta_vs_default", joules)
                | _interval("tta_vs_default", seconds)
                | {
                    "optimal_eta_vs_default": float(
                        best * load.epoch_joules[arm, limit] / part.default[1, 0, 0]
                    ),
                    "optimal_tta_vs_default": float(
                        best * load.epoch_seconds[arm, limit] / part.default[0, 0, 0]
                    ),
                }
            )
    return Figure.of(
        "fig06_23_last_five",
        (6, 23),
        "Energy and time of the last five recurrences, relative to Default",
        _by_workload(rows),
        "Bars are means over seeds, whiskers their 95 % interval. The line is the setting of least "
        "expected cost; a bar may lie below it in energy or time, not in cost.",
    )


def cumulative_regret(logs: Mapping[str, SimulationLog]) -> Figure:
    """Regret over recurrences, in units of the optimal cost of one recurrence."""
    rows: list[Row] = []
    totals: list[Row] = []
    for policy, log in logs.items():
        for part in log.by_workload():
            label = _label(part.workloads[0]) | {"policy": policy}
            regret = part.regret()
            low, high = np.percentile(regret, (10, 90), axis=0)
            figures = zip(regret.mean(axis=0).tolist(), low.tolist(), high.tolist(), strict=True)
            rows.extend(
                label | {"recurrence": number, "regret": mean, "regret_p10": p10, "regret_p90": p90}
                for number, (mean, p10, p90) in enumerate(figures, start=1)
            )
            default = (part.default[2] / part.optimal)[0].sum()
            total = (part.cost / part.optimal).sum(axis=1).mean()
            totals.append(
                label
                | {"recurrences": part.cost.shape[1]}
                | _interval("regret", regret[:, -1])
                | {"total_cost_vs_default": float(total / default)}
            )
    return Figure(
        "fig07_19_cumulative_regret",
        (7, 19),
        "Cumulative regret over recurrences, in units of the optimal cost",
        (
            Table("fig07_19_cumulative_regret", _by_workload(rows)),
            Table("fig07_19_regret_at_the_end", _by_workload(totals)),
        ),
        "Mean over seeds; the band holds 80 % of them. 2·|B|·|P| recurrences of every workload.",
    )


def mean_by_gpu(last: Figure) -> Figure:
    """Geometric mean over workloads of the figures of :func:`last_five`, per GPU and policy."""
    rows: list[Row] = []
    for gpu in last.main.distinct("gpu"):
        for policy in last.main.distinct("policy"):
            part = last.main.where(gpu=gpu, policy=policy)
            means: Row = {
                name: geometric_mean(part.numbers(name))
                for name in ("eta_vs_default", "tta_vs_default")
            }
            label: Row = {"gpu": gpu, "policy": policy, "workloads": len(part)}
            rows.append(label | means)
    return Figure.of(
        "fig14_mean_by_gpu",
        (14,),
        "Energy of the last five recurrences relative to Default, geometric mean over workloads",
        rows,
    )


def search_paths(logs: Mapping[str, SimulationLog]) -> Figure:
    """Every training of one seed, and the regret of every setting.

    Args:
        logs: Logs by policy, with one job per workload and all single actions kept.
    """
    rows = [row for policy, log in logs.items() for row in _path(policy, log)]
    some = next(iter(logs.values()))
    background = [row for load in some.workloads for row in _regret_map(load, some.eta)]
    return Figure(
        "fig08_20_21_search_paths",
        (8, 20, 21),
        "Search paths over the regret of every setting",
        (
            Table("fig08_20_21_search_paths", tuple(rows)),
            Table("fig08_20_21_regret_map", tuple(background)),
        ),
        "One seed. Darker settings have less regret; paths start light and end dark; blank "
        "settings never reach the target or were not traced.",
    )


def _path(policy: str, log: SimulationLog) -> Iterator[Row]:
    if (actions := log.actions) is None:
        return
    steps = dict.fromkeys(range(len(log.workloads)), 0)
    for at in np.flatnonzero(actions.kind == ActionKind.TRAIN).tolist():
        job = int(actions.job[at])
        load = log.workloads[log.workload_of[job]]
        steps[job] += 1
        yield _label(load) | {
            "policy": policy,
            "training": steps[job],
            "recurrence": int(actions.recurrence[at]) + 1,
            "batch_size": load.batch_sizes[actions.arm[at]],
            "limit_watts": float(load.limits_watts[actions.limit[at]]),
            "reached": bool(actions.end[at] == RunEnd.REACHED),
            "cost_over_optimum": float(actions.cost[at] / log.optimal[job, 0]),
        }


def _regret_map(load: TracedWorkload, eta: float) -> Iterator[Row]:
    cost = load.expected_cost(eta)
    least = np.nanmin(cost)
    for (arm, limit), value in np.ndenumerate(cost):
        yield _label(load) | {
            "batch_size": load.batch_sizes[arm],
            "limit_watts": float(load.limits_watts[limit]),
            "regret": float(value / least - 1) if np.isfinite(value) else None,
        }


def eta_sweep(logs: Mapping[tuple[str, float], SimulationLog]) -> Figure:
    """Energy and time that each policy comes to for each weight of energy.

    Args:
        logs: Logs by policy and eta.
    """
    rows: list[Row] = []
    for (policy, eta), log in logs.items():
        for part in log.by_workload():
            seconds, joules, _ = (float(ratio.mean()) for ratio in part.last(LAST))
            rows.append(
                _label(part.workloads[0])
                | {
                    "policy": policy,
                    "eta": eta,
                    "eta_vs_default": joules,
                    "tta_vs_default": seconds,
                    "eta_joules": joules * float(part.default[1, 0, 0]),
                    "tta_seconds": seconds * float(part.default[0, 0, 0]),
                }
            )
    return Figure.of(
        "fig11_22_eta_sweep",
        (11, 22),
        "Energy and time of the last five recurrences by the weight of energy, eta",
        rows,
    )


def beta_sweep(logs: Mapping[float, SimulationLog], usual: float) -> Figure:
    """Energy over all recurrences by Zeus's early-stopping threshold, relative to the usual."""
    energy = {beta: _total(log.joules, log) for beta, log in logs.items()}
    rows: list[Row] = []
    for beta, log in logs.items():
        ratios = (energy[beta] / energy[usual]).tolist()
        for load, figures in _with_means(log, {"total_eta_vs_usual": ratios}):
            rows.append(load | {"beta": beta} | figures)
    return Figure.of(
        "fig12_beta_sweep",
        (12,),
        f"Energy over all recurrences by early-stopping threshold, relative to beta = {usual:g}",
        rows,
        "Policy zeus. Early-stopped attempts and retries count.",
    )


def ablation(logs: Mapping[str, SimulationLog]) -> Figure:
    """Energy and time over all recurrences without one part, relative to the whole (the first)."""
    whole = next(iter(logs.values()))
    rows: list[Row] = []
    for variant, log in logs.items():
        ratios = {
            "total_eta_vs_whole": _total(log.joules, log) / _total(whole.joules, whole),
            "total_tta_vs_whole": _total(log.seconds, log) / _total(whole.seconds, whole),
        }
        for load, figures in _with_means(log, {k: v.tolist() for k, v in ratios.items()}):
            rows.append(load | {"variant": variant} | figures)
    return Figure.of(
        "fig13_ablation",
        (13,),
        "Energy over all recurrences without one part of Zeus, relative to Zeus",
        rows,
        "No early stopping: runs go on to the largest number of epochs. No pruning: batch sizes "
        "that failed stay. No profiling just in time: every limit takes a training of its own.",
    )


def _total(spent: Floats, log: SimulationLog) -> Floats:
    """(workloads,), sum over recurrences and seeds."""
    per_job = np.nansum(spent, axis=1)
    return np.asarray(np.bincount(log.workload_of, per_job), dtype=np.float64)


def _with_means(
    log: SimulationLog, figures: Mapping[str, Sequence[float]]
) -> Iterator[tuple[Row, Row]]:
    """Cells of each workload, then of the geometric means per GPU."""
    for index, load in enumerate(log.workloads):
        yield _label(load), {name: values[index] for name, values in figures.items()}
    for gpu in dict.fromkeys(load.gpu for load in log.workloads):
        own = [index for index, load in enumerate(log.workloads) if load.gpu == gpu]
        yield (
            {"gpu": gpu, "workload": MEAN},
            {name: geometric_mean(values[i] for i in own) for name, values in figures.items()},
        )


def _all_grow(load: TracedWorkload) -> TracedWorkload:
    """Every batch size needs more epochs, but the best still reaches its target in time."""
    longest = np.nanmax(load.epochs[load.optimum()[0]])
    return scale_epochs(load, DRIFT_AT, min(_GROWTH, load.max_epochs / longest))


DRIFTS: dict[str, Callable[[TracedWorkload], TracedWorkload]] = {
    "all need up to 1.9× the epochs": _all_grow,
    "the optimum moves": lambda load: optimum_moves(load, DRIFT_AT),
    "a discarded size is best": lambda load: discarded_becomes_best(load, DRIFT_AT),
}


def drifting(logs: Mapping[tuple[str, str], SimulationLog]) -> Figure:
    """Energy, time and batch size over recurrences; ``logs`` by (kind of drift, policy)."""
    rows: list[Row] = []
    totals: list[Row] = []
    for (kind, policy), log in logs.items():
        for part in log.by_workload():
            label = _label(part.workloads[0]) | {"drift": kind, "policy": policy}
            rows.extend(label | row for row in _course(part))
            late = part.cost[:, DRIFT_AT:] / part.optimal[:, DRIFT_AT:]
            failed = (~part.reached[:, DRIFT_AT:]).any(axis=1)
            totals.append(
                label
                | {
                    "regret_after_drift": float((late - 1).sum(axis=1).mean()),
                    "share_of_seeds_that_fail": float(failed.mean()),
                    "recurrences_to_recover": recovered(late),
                }
            )
    return Figure(
        "fig10_drift",
        (10,),
        "A job that changes after recurrence 50: energy, and the batch sizes chosen",
        (Table("fig10_drift", tuple(rows)), Table("fig10_drift_recovery", tuple(totals))),
        "The publication's Capriccio traces are not public in this form, so this is no "
        "reproduction of its Fig. 10: the drift is synthetic, made from the traces at hand by "
        f"changing epochs to the target. Zeus remembers {DRIFT_WINDOW} recurrences, as published.",
    )


def _course(part: SimulationLog) -> Iterator[Row]:
    load = part.workloads[0]
    before, after = (stage.optimum(part.eta)[0] for _, stage in load.stages)
    energy, time = part.joules.mean(axis=0), part.seconds.mean(axis=0)
    above = (part.cost / part.optimal).mean(axis=0)
    for number in range(part.cost.shape[1]):
        yield {
            "recurrence": number + 1,
            "eta_joules": float(energy[number]),
            "tta_seconds": float(time[number]),
            "cost_over_optimum": float(above[number]),
            "batch_size_first_seed": load.batch_sizes[part.arm[0, number]],
            "optimal_batch_size": load.batch_sizes[before if number < DRIFT_AT else after],
        }


def recovered(late: Floats) -> float | None:
    """Recurrences after the drift until ten in a row are within 10 % of the optimum on average."""
    smooth = np.convolve(late.mean(axis=0), np.full(10, 0.1), mode="valid")
    good = np.flatnonzero(smooth <= 1.1)
    return float(good[0]) if good.size else None


def cluster(
    replays: Sequence[tuple[Mapping[str, ReplayLog], Sequence[TracedWorkload]]], remark: str
) -> Figure:
    """Energy and time of a cluster; one entry of ``replays`` per GPU, ``remark`` on the jobs."""
    return Figure.of(
        "fig09_cluster",
        (9,),
        "Energy and time of a cluster's recurring jobs, overlaps included, relative to Default",
        [asdict(summary) for pair in replays for summary in summarize_replays(*pair)],
        f"Jobs: {remark}. The Alibaba group trace of the publication is not here, so the figures "
        "can be compared in kind only.",
    )
