"""Figures of every setting that was traced: Fig. 1/15, 2/16, 5/17, 18 and the table of optima."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from papers.zeus.tables import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.jobs.policies import Floats
    from joulery.simulate import TracedWorkload
    from papers.zeus.tables import Row


class Surface:
    """Expected energy and time to accuracy of a workload, over batch sizes and power limits.

    Batch sizes that missed their target in any run are unknown (NaN), except the default: where
    its runs fail at times, they are repeated.

    Attributes:
        load: Traced workload.
        default: Index of the default batch size and limit.
        epochs: (batch sizes,), mean epochs to the target.
        seconds: (batch sizes, limits), time to accuracy (TTA).
        joules: (batch sizes, limits), energy to accuracy (ETA), Eq. 1 of You et al.
        cost: (batch sizes, limits), Eq. 2 with eta 0.5, in joules.
    """

    def __init__(self, load: TracedWorkload) -> None:
        self.load = load
        self.default = load.default_setting()
        epochs = np.array([self.run_epochs(arm).mean() for arm in range(len(load.batch_sizes))])
        if np.isnan(epochs[load.default_arm]):
            epochs[load.default_arm] = load.mean_epochs()[load.default_arm]
        self.epochs: Floats = epochs
        self.seconds: Floats = epochs[:, None] * load.epoch_seconds
        self.joules: Floats = epochs[:, None] * load.epoch_joules
        self.cost: Floats = epochs[:, None] * load.epoch_cost(0.5)

    def run_epochs(self, arm: int) -> Floats:
        """Epochs of each traced run; NaN where it failed."""
        return self.load.epochs[arm, : int(self.load.runs[arm])]

    def label(self, arm: int, limit: int) -> Row:
        """Cells that name a setting."""
        return {
            "gpu": self.load.gpu,
            "workload": self.load.dataset,
            "batch_size": self.load.batch_sizes[arm],
            "limit_watts": float(self.load.limits_watts[limit]),
        }

    def front(self) -> list[tuple[int, int]]:
        """The settings that no other beats in both time and energy, fastest first."""
        measured = [(int(arm), int(limit)) for arm, limit in np.argwhere(np.isfinite(self.joules))]
        points, least = [], np.inf
        for at in sorted(measured, key=lambda at: (self.seconds[at], self.joules[at])):
            if self.joules[at] < least:
                least = self.joules[at]
                points.append(at)
        return points


def best_setting(values: Floats) -> tuple[int, int]:
    """Index of the batch size and limit where ``values`` are least."""
    arm, limit = np.unravel_index(np.nanargmin(values), values.shape)
    return int(arm), int(limit)


def savings_potential(surfaces: Sequence[Surface]) -> Figure:
    """Least energy with one knob and with both, relative to the default setting."""
    rows: list[Row] = []
    for surface in surfaces:
        arm, limit = surface.default
        joules, default = surface.joules, surface.joules[surface.default]
        rows.append(
            {
                "gpu": surface.load.gpu,
                "workload": surface.load.dataset,
                "default_batch_size": surface.load.default,
                "batch_size_only": float(np.nanmin(joules[:, limit]) / default),
                "limit_only": float(np.nanmin(joules[arm]) / default),
                "joint": float(np.nanmin(joules) / default),
            }
        )
    return Figure.of(
        "fig01_15_savings_potential",
        (1, 15),
        "Energy with the best batch size, the best power limit, and both, relative to Default",
        rows,
        "Expected energy over the traced runs; Default is the default batch size at the highest "
        "power limit.",
    )


def optima(surfaces: Sequence[Surface]) -> Figure:
    """The best setting by energy, by time and by cost."""
    rows: list[Row] = []
    for surface in surfaces:
        joules, seconds, base = surface.joules, surface.seconds, surface.default
        for name, at in (
            ("default", base),
            ("least energy", best_setting(joules)),
            ("least time", best_setting(seconds)),
            ("least cost, eta 0.5", best_setting(surface.cost)),
        ):
            rows.append(
                surface.label(*at)
                | {
                    "objective": name,
                    "eta_joules": float(joules[at]),
                    "tta_seconds": float(seconds[at]),
                    "eta_vs_default": float(joules[at] / joules[base]),
                    "tta_vs_default": float(seconds[at] / seconds[base]),
                }
            )
    return Figure.of("optima", (), "Best batch size and power limit of every workload", rows)


def fronts(surfaces: Sequence[Surface]) -> Figure:
    """(TTA, ETA) of every setting that reaches its target, and which are Pareto-optimal."""
    rows: list[Row] = []
    for surface in surfaces:
        seconds, joules, front = surface.seconds, surface.joules, surface.front()
        rows.extend(
            surface.label(*at)
            | {
                "tta_seconds": float(seconds[at]),
                "eta_joules": float(joules[at]),
                "mean_watts": float(joules[at] / seconds[at]),
                "pareto": at in front,
                "default": at == surface.default,
            }
            for at in map(tuple, np.argwhere(np.isfinite(joules)).tolist())
        )
    return Figure.of(
        "fig02_16_fronts",
        (2, 16),
        "Energy against time to accuracy, with the Pareto front",
        rows,
        "Batch sizes that missed the target in any traced run are left out.",
    )


def energy_by_batch_size(surfaces: Sequence[Surface]) -> Figure:
    """ETA of every batch size under its best limit, with the spread over runs."""
    rows: list[Row] = []
    for surface in surfaces:
        epoch_joules = surface.load.epoch_joules
        for arm in np.flatnonzero(np.isfinite(surface.joules).any(axis=1)).tolist():
            limit = int(np.nanargmin(epoch_joules[arm]))
            runs = surface.run_epochs(arm) * epoch_joules[arm, limit]
            rows.append(
                surface.label(arm, limit)
                | {
                    "eta_joules": float(runs.mean()),
                    "eta_joules_least_run": float(runs.min()),
                    "eta_joules_most_run": float(runs.max()),
                    "eta_joules_at_highest_limit": float(surface.joules[arm, surface.default[1]]),
                    "default": arm == surface.default[0],
                }
            )
    return Figure.of(
        "fig17_energy_by_batch_size",
        (5, 17),
        "Energy to accuracy by batch size",
        rows,
        "Under the limit of least energy per batch size; the band spans the traced runs.",
    )


def energy_by_limit(surfaces: Sequence[Surface]) -> Figure:
    """ETA under every limit, with the default batch size and with the best one."""
    rows: list[Row] = []
    for surface in surfaces:
        joules, sizes = surface.joules, surface.load.batch_sizes
        best, default = best_setting(joules)[0], surface.default[0]
        rows.extend(
            {
                "gpu": surface.load.gpu,
                "workload": surface.load.dataset,
                "limit_watts": watts,
                "default_batch_size": sizes[default],
                "eta_joules_default": float(joules[default, limit]),
                "best_batch_size": sizes[best],
                "eta_joules_best": float(joules[best, limit]),
            }
            for limit, watts in enumerate(surface.load.limits_watts.tolist())
        )
    return Figure.of("fig18_energy_by_limit", (18,), "Energy to accuracy by power limit", rows)
