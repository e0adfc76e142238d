"""A whole cluster of recurring jobs: Fig. 9."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.simulate.reproduce_rows import FigureData, Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.simulate.cluster_replay import ReplayLog
    from joulery.simulate.reproduce_rows import Cell
    from joulery.simulate.workload import TracedWorkload

ALL = "all jobs"
COLUMNS = (
    "gpu",
    "workload",
    "policy",
    "jobs",
    "eta_vs_default",
    "tta_vs_default",
    "regret_vs_optimum",
    "jobs_while_others_run",
)


def replay_rows(
    logs: Mapping[str, ReplayLog], workloads: Sequence[TracedWorkload]
) -> tuple[tuple[Cell, ...], ...]:
    """Energy and time per workload and policy, relative to the policy ``default``.

    Args:
        logs: By policy, of the same groups on the same GPU; one is ``default``.
        workloads: That the groups were matched to.
    """
    base = logs["default"]
    cells: list[tuple[Cell, ...]] = []
    everything = np.ones(len(base.workload), dtype=bool)
    masks = [(load.dataset, base.workload == at) for at, load in enumerate(workloads)]
    for name, mask in [*masks, (ALL, everything)]:
        for policy, log in logs.items():
            if mask.any():
                optimal = log.optimal[mask].sum()
                cells.append(
                    (
                        workloads[0].gpu,
                        name,
                        policy,
                        int(mask.sum()),
                        float(log.joules[mask].sum() / base.joules[mask].sum()),
                        float(log.seconds[mask].sum() / base.seconds[mask].sum()),
                        float((log.cost[mask].sum() - optimal) / optimal),
                        float((log.blind[mask] > 0).mean()),
                    )
                )
    return tuple(cells)


def cluster(
    replays: Sequence[tuple[Mapping[str, ReplayLog], Sequence[TracedWorkload]]], remark: str
) -> FigureData:
    """One entry of ``replays`` per GPU; ``remark`` says where the jobs come from."""
    cells = tuple(row for logs, workloads in replays for row in replay_rows(logs, workloads))
    return FigureData(
        "fig09_cluster",
        (9,),
        "Energy and time of a cluster's recurring jobs, overlaps and all, relative to Default",
        (Rows("fig09_cluster", COLUMNS, cells),),
        f"Jobs: {remark}. The Alibaba group trace of the publication is not here, so the figures "
        "can be compared in kind only.",
    )
