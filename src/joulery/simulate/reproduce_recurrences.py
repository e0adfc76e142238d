"""What policies come to: Fig. 6/23 (last recurrences), 7/19 (regret) and 14 (mean per GPU)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.simulate.reproduce_rows import FigureData, Rows, geometric_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.log import SimulationLog
    from joulery.simulate.reproduce_rows import Cell

LAST = 5
# Two standard errors of the mean: one simulation in twenty is farther off by chance.
_SIGMAS = 1.96


def last_five(logs: Mapping[str, SimulationLog]) -> FigureData:
    """ETA and TTA of the last five recurrences relative to Default's, by policy."""
    cells: list[tuple[Cell, ...]] = []
    for policy, log in logs.items():
        for one in log.by_workload():
            load = one.workloads[0]
            seconds, joules, _ = one.last(LAST)
            arm, limit, _ = load.optimum(log.eta)
            best = load.mean_epochs()[arm]
            cells.append(
                (
                    load.gpu,
                    load.dataset,
                    policy,
                    len(joules),
                    *_with_interval(joules),
                    *_with_interval(seconds),
                    float(best * load.epoch_joules[arm, limit] / one.default[1, 0, 0]),
                    float(best * load.epoch_seconds[arm, limit] / one.default[0, 0, 0]),
                )
            )
    columns = (
        "gpu",
        "workload",
        "policy",
        "seeds",
        "eta_vs_default",
        "eta_low",
        "eta_high",
        "tta_vs_default",
        "tta_low",
        "tta_high",
        "optimal_eta_vs_default",
        "optimal_tta_vs_default",
    )
    return FigureData(
        "fig06_23_last_five",
        (6, 23),
        "Energy and time of the last five recurrences, relative to Default",
        (Rows("fig06_23_last_five", columns, _ordered(cells)),),
        "Bars are means over seeds, whiskers their 95 % interval. The line is the setting of least "
        "expected cost; a bar may lie below it in energy or time, not in cost.",
    )


def _with_interval(values: Floats) -> tuple[float, float, float]:
    error = _SIGMAS * float(np.std(values)) / max(1, len(values) - 1) ** 0.5
    mean = float(np.mean(values))
    return mean, mean - error, mean + error


def _ordered(cells: list[tuple[Cell, ...]]) -> tuple[tuple[Cell, ...], ...]:
    """By GPU and workload as they first appear, policies side by side."""
    pairs = list(dict.fromkeys((row[0], row[1]) for row in cells))
    return tuple(sorted(cells, key=lambda row: pairs.index((row[0], row[1]))))


def cumulative_regret(logs: Mapping[str, SimulationLog]) -> FigureData:
    """Regret over recurrences, in units of the optimal cost of one recurrence."""
    cells: list[tuple[Cell, ...]] = []
    totals: list[tuple[Cell, ...]] = []
    for policy, log in logs.items():
        for one in log.by_workload():
            load = one.workloads[0]
            regret = one.regret()
            low, high = np.percentile(regret, (10, 90), axis=0)
            mean = regret.mean(axis=0)
            cells.extend(
                (load.gpu, load.dataset, policy, number + 1, *figures)
                for number, figures in enumerate(
                    zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
                )
            )
            default = one.default[2] / one.optimal
            totals.append(
                (
                    load.gpu,
                    load.dataset,
                    policy,
                    one.cost.shape[1],
                    *_with_interval(regret[:, -1]),
                    float((one.cost / one.optimal).sum(axis=1).mean() / default[0].sum()),
                )
            )
    columns = ("gpu", "workload", "policy", "recurrence", "regret", "regret_p10", "regret_p90")
    total_columns = (
        "gpu",
        "workload",
        "policy",
        "recurrences",
        "regret",
        "regret_low",
        "regret_high",
        "total_cost_vs_default",
    )
    return FigureData(
        "fig07_19_cumulative_regret",
        (7, 19),
        "Cumulative regret over recurrences, in units of the optimal cost",
        (
            Rows("fig07_19_cumulative_regret", columns, _ordered(cells)),
            Rows("fig07_19_regret_at_the_end", total_columns, _ordered(totals)),
        ),
        "Mean over seeds; the band holds 80 % of them. 2·|B|·|P| recurrences of every workload.",
    )


def mean_by_gpu(last: FigureData) -> FigureData:
    """Geometric mean over workloads of what :func:`last_five` says, per GPU and policy."""
    rows = last.main
    cells: list[tuple[Cell, ...]] = []
    for gpu in rows.distinct("gpu"):
        for policy in rows.distinct("policy"):
            part = rows.where(gpu=gpu, policy=policy)
            if len(part):
                eta = geometric_mean(part.numbers("eta_vs_default"))
                tta = geometric_mean(part.numbers("tta_vs_default"))
                cells.append((gpu, policy, len(part), eta, tta))
    columns = ("gpu", "policy", "workloads", "eta_vs_default", "tta_vs_default")
    return FigureData(
        "fig14_mean_by_gpu",
        (14,),
        "Energy of the last five recurrences relative to Default, geometric mean over workloads",
        (Rows("fig14_mean_by_gpu", columns, tuple(cells)),),
    )
