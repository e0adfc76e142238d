"""How much the knobs matter: Fig. 11/22 (eta), 12 (beta) and 13 (ablation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.simulate.reproduce_recurrences import LAST
from joulery.simulate.reproduce_rows import FigureData, Rows, geometric_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.log import SimulationLog
    from joulery.simulate.reproduce_rows import Cell

ALL = "geometric mean"


def eta_sweep(logs: Mapping[tuple[str, float], SimulationLog]) -> FigureData:
    """Where each policy ends up for each weight of energy; ``logs`` by (policy, eta)."""
    cells: list[tuple[Cell, ...]] = []
    for (policy, eta), log in logs.items():
        for one in log.by_workload():
            load = one.workloads[0]
            seconds, joules, _ = one.last(LAST)
            cells.append(
                (
                    load.gpu,
                    load.dataset,
                    policy,
                    eta,
                    float(joules.mean()),
                    float(seconds.mean()),
                    float(joules.mean() * one.default[1, 0, 0]),
                    float(seconds.mean() * one.default[0, 0, 0]),
                )
            )
    columns = (
        "gpu",
        "workload",
        "policy",
        "eta",
        "eta_vs_default",
        "tta_vs_default",
        "eta_joules",
        "tta_seconds",
    )
    return FigureData(
        "fig11_22_eta_sweep",
        (11, 22),
        "Energy and time of the last five recurrences by the weight of energy, eta",
        (Rows("fig11_22_eta_sweep", columns, tuple(cells)),),
    )


def beta_sweep(logs: Mapping[float, SimulationLog], usual: float) -> FigureData:
    """Energy over all recurrences with Zeus's early-stopping threshold, relative to the usual."""
    energy = {beta: _total(log.joules, log) for beta, log in logs.items()}
    cells: list[tuple[Cell, ...]] = []
    for beta in logs:
        log = logs[beta]
        ratios = energy[beta] / energy[usual]
        cells.extend(
            (load.gpu, load.dataset, beta, float(ratio))
            for load, ratio in zip(log.workloads, ratios, strict=True)
        )
        for gpu in dict.fromkeys(load.gpu for load in log.workloads):
            of_gpu = [
                ratio for load, ratio in zip(log.workloads, ratios, strict=True) if load.gpu == gpu
            ]
            cells.append((gpu, ALL, beta, geometric_mean(of_gpu)))
    columns = ("gpu", "workload", "beta", "total_eta_vs_usual")
    return FigureData(
        "fig12_beta_sweep",
        (12,),
        f"Energy over all recurrences by early-stopping threshold, relative to beta = {usual:g}",
        (Rows("fig12_beta_sweep", columns, tuple(cells)),),
        "Policy zeus. Early-stopped attempts and retries count.",
    )


def ablation(logs: Mapping[str, SimulationLog]) -> FigureData:
    """Energy and time over all recurrences without one part, relative to the whole (the first)."""
    whole = next(iter(logs.values()))
    cells: list[tuple[Cell, ...]] = []
    for variant, log in logs.items():
        joules = _total(log.joules, log) / _total(whole.joules, whole)
        seconds = _total(log.seconds, log) / _total(whole.seconds, whole)
        figures = list(zip(log.workloads, joules.tolist(), seconds.tolist(), strict=True))
        cells.extend((load.gpu, load.dataset, variant, e, t) for load, e, t in figures)
        for gpu in dict.fromkeys(load.gpu for load in log.workloads):
            energy = geometric_mean(e for load, e, _ in figures if load.gpu == gpu)
            time = geometric_mean(t for load, _, t in figures if load.gpu == gpu)
            cells.append((gpu, ALL, variant, energy, time))
    columns = ("gpu", "workload", "variant", "total_eta_vs_whole", "total_tta_vs_whole")
    return FigureData(
        "fig13_ablation",
        (13,),
        "Energy over all recurrences without one part of Zeus, relative to Zeus",
        (Rows("fig13_ablation", columns, tuple(cells)),),
        "No early stopping: runs go on to the largest number of epochs. No pruning: batch sizes "
        "that failed stay. No profiling just in time: every limit takes a training of its own.",
    )


def _total(spent: Floats, log: SimulationLog) -> Floats:
    """(workloads,), sum over recurrences and seeds."""
    per_lane = np.nansum(spent, axis=1)
    positions = range(len(log.workloads))
    return np.array([per_lane[log.of_lane == position].sum() for position in positions])
