"""How much could be saved by knowing everything: Fig. 1/15 and the table of optima."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.simulate.reproduce_rows import FigureData, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.simulate.reproduce_rows import Cell
    from joulery.simulate.reproduce_surface import Surface


def savings_potential(surfaces: Sequence[Surface]) -> FigureData:
    """Least energy with one knob and with both, relative to the default setting."""
    cells = []
    for surface in surfaces:
        joules = surface.joules
        batch, limit = surface.default
        default = joules[batch, limit]
        cells.append(
            (
                surface.gpu,
                surface.workload,
                surface.batch_sizes[batch],
                float(np.nanmin(joules[:, limit]) / default),
                float(np.nanmin(joules[batch]) / default),
                float(np.nanmin(joules) / default),
            )
        )
    columns = (
        "gpu",
        "workload",
        "default_batch_size",
        "batch_size_only",
        "limit_only",
        "joint",
    )
    return FigureData(
        "fig01_15_savings_potential",
        (1, 15),
        "Energy with the best batch size, the best power limit, and both, relative to Default",
        (Rows("fig01_15_savings_potential", columns, tuple(cells)),),
        "Expected energy over the traced runs; Default is the default batch size at the highest "
        "power limit.",
    )


def optima(surfaces: Sequence[Surface], eta: float) -> FigureData:
    """The best setting by energy, by time and by cost."""
    cells: list[tuple[Cell, ...]] = []
    for surface in surfaces:
        joules, seconds = surface.joules, surface.seconds
        wanted = (
            ("default", surface.default),
            ("least energy", surface.best(joules)),
            ("least time", surface.best(seconds)),
            (f"least cost, eta {eta:g}", surface.best(surface.cost(eta))),
        )
        base = surface.default
        for name, at in wanted:
            cells.append(
                (
                    surface.gpu,
                    surface.workload,
                    name,
                    surface.batch_sizes[at[0]],
                    surface.limits_watts[at[1]],
                    float(joules[at]),
                    float(seconds[at]),
                    float(joules[at] / joules[base]),
                    float(seconds[at] / seconds[base]),
                )
            )
    columns = (
        "gpu",
        "workload",
        "objective",
        "batch_size",
        "limit_watts",
        "eta_joules",
        "tta_seconds",
        "eta_vs_default",
        "tta_vs_default",
    )
    return FigureData(
        "optima",
        (),
        "Best batch size and power limit of every workload",
        (Rows("optima", columns, tuple(cells)),),
    )
