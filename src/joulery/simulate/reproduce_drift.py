"""Jobs that change while they recur: Fig. 10, on drift made from the traces at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.simulate import drift
from joulery.simulate.reproduce_rows import FigureData, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.drift import Drift
    from joulery.simulate.log import SimulationLog
    from joulery.simulate.reproduce_rows import Cell
    from joulery.simulate.workload import TracedWorkload

RECURRENCES = 100
AT = 50
WINDOW = 10  # as the publication sets it for its own drifting data

_GROWTH = 1.9
_LABEL = ("gpu", "workload", "drift", "policy")
_COURSE = (
    "recurrence",
    "eta_joules",
    "tta_seconds",
    "cost_over_optimum",
    "batch_size_first_seed",
    "optimal_batch_size",
)
_RECOVERY = ("regret_after_drift", "share_of_seeds_that_fail", "recurrences_to_recover")


def _all_grow(load: TracedWorkload) -> Drift:
    """Every batch size needs more epochs, but the best still reaches its target in time."""
    most = np.nanmax(load.epochs[load.optimum()[0]])
    return drift.scaled(load, AT, min(_GROWTH, load.max_epochs / most))


KINDS: dict[str, Callable[[TracedWorkload], Drift]] = {
    "all need up to 1.9× the epochs": _all_grow,
    "the optimum moves": lambda load: drift.optimum_moves(load, AT),
    "a discarded size is best": lambda load: drift.discarded_becomes_best(load, AT),
}


def drifting(logs: Mapping[tuple[str, str], SimulationLog]) -> FigureData:
    """Energy, time and batch size over recurrences; ``logs`` by (kind of drift, policy)."""
    cells: list[tuple[Cell, ...]] = []
    totals: list[tuple[Cell, ...]] = []
    for (kind, policy), log in logs.items():
        for one in log.by_workload():
            load = one.workloads[0]
            label = (load.gpu, load.dataset, kind, policy)
            cells.extend((*label, *row) for row in _course(one, KINDS[kind](load)))
            totals.append((*label, *_recovery(one)))
    return FigureData(
        "fig10_drift",
        (10,),
        "A job that changes after recurrence 50: energy, and the batch sizes chosen",
        (
            Rows("fig10_drift", (*_LABEL, *_COURSE), tuple(cells)),
            Rows("fig10_drift_recovery", (*_LABEL, *_RECOVERY), tuple(totals)),
        ),
        "The publication's Capriccio traces are not public in this form, so this is no "
        "reproduction of its Fig. 10: the drift is synthetic, made from the traces at hand by "
        f"changing epochs to the target. Zeus remembers {WINDOW} recurrences, as published.",
    )


def _course(one: SimulationLog, change: Drift) -> Iterator[tuple[Cell, ...]]:
    """One row per recurrence, by the columns of ``_COURSE``."""
    load = one.workloads[0]
    before, after = (load.optimum(one.eta, epochs)[0] for epochs in change.epochs)
    above = (one.cost / one.optimal).mean(axis=0)
    energy, time = one.joules.mean(axis=0), one.seconds.mean(axis=0)
    for number in range(one.cost.shape[1]):
        yield (
            number + 1,
            float(energy[number]),
            float(time[number]),
            float(above[number]),
            load.batch_sizes[one.arm[0, number]],
            load.batch_sizes[before if number < AT else after],
        )


def _recovery(one: SimulationLog) -> tuple[Cell, ...]:
    """What the change cost, by the columns of ``_RECOVERY``."""
    late = one.cost[:, AT:] / one.optimal[:, AT:]
    return (
        float((late - 1).sum(axis=1).mean()),
        float((~one.reached[:, AT:]).any(axis=1).mean()),
        _recovered(late),
    )


def _recovered(late: Floats) -> float | None:
    """Recurrences after the drift until ten on end are within 10 % of the optimum on average."""
    mean = late.mean(axis=0)
    window = 10
    smooth = np.convolve(mean, np.ones(window) / window, mode="valid")
    good = np.flatnonzero(smooth <= 1.1)
    return float(good[0]) if good.size else None
