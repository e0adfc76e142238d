"""Where policies go in the space of batch sizes and limits: Fig. 8/20/21."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.base import ActionKind
from joulery.simulate.reproduce_rows import FigureData, Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.simulate.log import SimulationLog
    from joulery.simulate.reproduce_rows import Cell
    from joulery.simulate.workload import TracedWorkload


def search_paths(logs: Mapping[str, SimulationLog]) -> FigureData:
    """Every training of one seed, and the regret of every setting behind it.

    Args:
        logs: By policy, with one lane per workload and all single actions kept.
    """
    cells: list[tuple[Cell, ...]] = []
    for policy, log in logs.items():
        deeds = log.deeds
        if deeds is None:
            continue
        trained = np.flatnonzero(deeds.kind == ActionKind.TRAIN)
        steps = np.zeros(len(log.workloads), dtype=np.int64)
        for deed in trained.tolist():
            load = log.workloads[log.of_lane[deeds.lane[deed]]]
            steps[deeds.lane[deed]] += 1
            cells.append(
                (
                    load.gpu,
                    load.dataset,
                    policy,
                    int(steps[deeds.lane[deed]]),
                    int(deeds.recurrence[deed]) + 1,
                    load.batch_sizes[deeds.arm[deed]],
                    float(load.limits_watts[deeds.limit[deed]]),
                    bool(deeds.end[deed] == 0),
                    float(deeds.cost[deed] / log.optimal[deeds.lane[deed], 0]),
                )
            )
    columns = (
        "gpu",
        "workload",
        "policy",
        "training",
        "recurrence",
        "batch_size",
        "limit_watts",
        "reached",
        "cost_over_optimum",
    )
    some = next(iter(logs.values()))
    background = [row for load in some.workloads for row in _regret_map(load, some.eta)]
    map_columns = ("gpu", "workload", "batch_size", "limit_watts", "regret")
    return FigureData(
        "fig08_20_21_search_paths",
        (8, 20, 21),
        "Search paths over the regret of every setting",
        (
            Rows("fig08_20_21_search_paths", columns, tuple(cells)),
            Rows("fig08_20_21_regret_map", map_columns, tuple(background)),
        ),
        "One seed. Darker settings have less regret; paths start light and end dark; blank "
        "settings never reach the target or were not traced.",
    )


def _regret_map(load: TracedWorkload, eta: float) -> list[tuple[Cell, ...]]:
    cost = load.expected_cost(eta)
    least = np.nanmin(cost)
    return [
        (
            load.gpu,
            load.dataset,
            load.batch_sizes[arm],
            float(load.limits_watts[limit]),
            float(cost[arm, limit] / least - 1) if np.isfinite(cost[arm, limit]) else None,
        )
        for arm in range(cost.shape[0])
        for limit in range(cost.shape[1])
    ]
