"""Energy and time of every setting: Fig. 2/16 (fronts), 17 (batch sizes) and 18 (limits)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.simulate.reproduce_rows import FigureData, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.simulate.reproduce_rows import Cell
    from joulery.simulate.reproduce_surface import Surface


def fronts(surfaces: Sequence[Surface]) -> FigureData:
    """(TTA, ETA) of every setting that reaches its target, and which are Pareto-optimal."""
    cells: list[tuple[Cell, ...]] = []
    for surface in surfaces:
        seconds, joules, front = surface.seconds, surface.joules, surface.front()
        for batch, limit in np.argwhere(np.isfinite(joules)).tolist():
            cells.append(
                (
                    surface.gpu,
                    surface.workload,
                    surface.batch_sizes[batch],
                    surface.limits_watts[limit],
                    float(seconds[batch, limit]),
                    float(joules[batch, limit]),
                    float(joules[batch, limit] / seconds[batch, limit]),
                    (batch, limit) in front,
                    (batch, limit) == surface.default,
                )
            )
    columns = (
        "gpu",
        "workload",
        "batch_size",
        "limit_watts",
        "tta_seconds",
        "eta_joules",
        "mean_watts",
        "pareto",
        "default",
    )
    return FigureData(
        "fig02_16_fronts",
        (2, 16),
        "Energy against time to accuracy, with the Pareto front",
        (Rows("fig02_16_fronts", columns, tuple(cells)),),
        "Batch sizes that missed the target in any traced run are left out.",
    )


def energy_by_batch_size(surfaces: Sequence[Surface]) -> FigureData:
    """ETA of every batch size under its best limit, with the spread over runs."""
    cells: list[tuple[Cell, ...]] = []
    for surface in surfaces:
        epoch_joules = surface.load.epoch_joules
        for batch, epochs in enumerate(surface.epochs):
            if not np.isfinite(epochs) or not np.isfinite(epoch_joules[batch]).any():
                continue
            limit = int(np.nanargmin(epoch_joules[batch]))
            runs = surface.run_epochs(batch) * epoch_joules[batch, limit]
            cells.append(
                (
                    surface.gpu,
                    surface.workload,
                    surface.batch_sizes[batch],
                    surface.limits_watts[limit],
                    float(runs.mean()),
                    float(runs.min()),
                    float(runs.max()),
                    float(epochs * epoch_joules[batch, surface.default[1]]),
                    batch == surface.default[0],
                )
            )
    columns = (
        "gpu",
        "workload",
        "batch_size",
        "best_limit_watts",
        "eta_joules",
        "eta_joules_least_run",
        "eta_joules_most_run",
        "eta_joules_at_highest_limit",
        "default",
    )
    return FigureData(
        "fig17_energy_by_batch_size",
        (5, 17),
        "Energy to accuracy by batch size",
        (Rows("fig17_energy_by_batch_size", columns, tuple(cells)),),
        "Under the limit of least energy per batch size; the band spans the traced runs.",
    )


def energy_by_limit(surfaces: Sequence[Surface]) -> FigureData:
    """ETA under every limit, with the default batch size and with the best one."""
    cells: list[tuple[Cell, ...]] = []
    for surface in surfaces:
        joules = surface.joules
        best, default = surface.best(joules)[0], surface.default[0]
        for limit, watts in enumerate(surface.limits_watts):
            cells.append(
                (
                    surface.gpu,
                    surface.workload,
                    watts,
                    surface.batch_sizes[default],
                    float(joules[default, limit]),
                    surface.batch_sizes[best],
                    float(joules[best, limit]),
                )
            )
    columns = (
        "gpu",
        "workload",
        "limit_watts",
        "default_batch_size",
        "eta_joules_default",
        "best_batch_size",
        "eta_joules_best",
    )
    return FigureData(
        "fig18_energy_by_limit",
        (18,),
        "Energy to accuracy by power limit",
        (Rows("fig18_energy_by_limit", columns, tuple(cells)),),
    )
