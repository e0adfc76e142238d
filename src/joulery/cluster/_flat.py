"""Allocate one budget to classes of jobs again and again, as jobs come and go.

``joulery.cluster.Allocator`` solves any tree of caps for fixed jobs. Without a tree the order
in which a policy fills the jobs does not depend on how many there are, so it is worked out once,
and a change costs one row of additions.
"""

from __future__ import annotations

import numpy as np

from joulery.cluster._allocate import FAIR_SHARE, policy_ramp
from joulery.cluster._jobs import Fleet, at_performance, at_watts, segment_watts

# Sums of watts are added up anew after this many changes: rounding stays below 1e-12.
_REFRESH = 4096


class FlatAllocator:
    """Shares of classes of jobs under one budget; equal to an allocator's without a tree.

    Args:
        fleet: Classes of jobs; how many of them run is told by ``change``.
        policy: Name of the policy, one of ``POLICIES``.
        base_watts: Power of hosts, network and all GPUs without a job.
        idle_watts: Power of one GPU without a job, which one that runs a job no longer draws.
        alpha: Aversion to unequal performance, for ``alpha-fair``.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: str,
        base_watts: float = 0.0,
        idle_watts: float = 0.0,
        alpha: float = 2.0,
    ) -> None:
        self._is_fair = policy == "fair"
        path = _filling_path(fleet, "max-min" if self._is_fair else policy, alpha)
        self._levels, self._watts, self._performance = path
        self._columns = np.ascontiguousarray((self._watts - idle_watts).T)
        self._steps = np.diff(self._performance, axis=0)
        self._base, self._idle = base_watts, idle_watts
        self._totals = np.full(len(self._levels), base_watts)
        self._running = np.zeros(len(fleet.count))
        self._changes = 0
        if self._is_fair:
            self._note_steepest(fleet)

    def _note_steepest(self, fleet: Fleet) -> None:
        _, watts, self._steep = _filling_path(fleet, "throughput", 1.0)
        # Each step along the path fills one segment of one class.
        self._moving = np.diff(watts, axis=0).argmax(axis=1)
        steps = np.arange(len(self._moving))
        self._low, self._high = watts[steps, self._moving], watts[steps + 1, self._moving]
        gains = self._steep[steps + 1, self._moving] - self._steep[steps, self._moving]
        self._slope = gains / (self._high - self._low)

    def change(self, row: int, gpus: float) -> None:
        """Let more (or fewer) GPUs run a class."""
        self._running[row] += gpus
        self._totals += gpus * self._columns[row]
        self._changes += 1
        if self._changes >= _REFRESH:
            self._changes = 0
            self._totals = self._base + self._running @ self._columns

    def least_watts(self) -> float:
        """Power at the lowest level."""
        return float(self._totals[0])

    def need_watts(self, row: int) -> float:
        """Further power of one GPU that runs a class at the lowest level."""
        return float(self._columns[row, 0])

    def solve(self, budget_watts: float) -> tuple[np.ndarray, float]:
        """Performance of each class, and the power."""
        totals = self._totals
        if totals[-1] <= budget_watts:
            return self._performance[-1], float(totals[-1])
        step = int(totals.searchsorted(budget_watts))
        if step == 0:
            return self._performance[0], float(totals[0])
        share = (budget_watts - totals[step - 1]) / (totals[step] - totals[step - 1])
        if self._is_fair:
            low = self._levels[step - 1]
            level = float(low + share * (self._levels[step] - low))
            return self._fill_above(FAIR_SHARE * level, budget_watts), budget_watts
        return self._performance[step - 1] + share * self._steps[step - 1], budget_watts

    def _fill_above(self, level: float, budget_watts: float) -> np.ndarray:
        """Performance when the steepest segments above a max-min level are filled first."""
        watts, floors = self._at(level)
        room = budget_watts - self._base - float((watts - self._idle) @ self._running)
        moving = self._moving
        above = np.maximum(self._high - np.maximum(self._low, watts[moving]), 0.0)
        filled = np.cumsum(above * self._running[moving])
        step = int(filled.searchsorted(room))
        if step == len(filled):
            highest: np.ndarray = self._performance[-1]
            return highest
        performance: np.ndarray = np.maximum(self._steep[step], floors)
        row = moving[step]
        before = float(filled[step - 1]) if step else 0.0
        if room > before:
            performance[row] += (room - before) / self._running[row] * self._slope[step]
        return performance

    def _at(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Watts and performance of every class at a max-min level."""
        step = max(1, int(self._levels.searchsorted(level)))
        low, high = self._levels[step - 1], self._levels[step]
        share = max(0.0, (level - low) / (high - low))
        watts = self._watts[step - 1] + share * (self._watts[step] - self._watts[step - 1])
        return watts, self._performance[step - 1] + share * self._steps[step - 1]


def _filling_path(
    fleet: Fleet, policy: str, alpha: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels, and the watts and performance of each row as a policy's level rises.

    Watts and performance are arrays of levels × rows, and linear between two levels; for
    ``throughput`` the levels count the segments filled.
    """
    floor = at_performance(fleet, fleet.floor_performance)
    if policy == "throughput":
        full = segment_watts(fleet, fleet.floor_performance)
        order = np.argsort(-(fleet.weight * fleet.slope), axis=None, kind="stable")
        order = order[full.ravel()[order] > 0]
        steps = np.zeros((len(order) + 1, len(floor)))
        steps[np.arange(len(order)) + 1, order % len(floor)] = full.ravel()[order]
        watts = floor + np.cumsum(steps, axis=0)
        levels = np.arange(len(watts), dtype=float)
    else:
        ramp = policy_ramp(fleet, policy, alpha)
        positive = ramp.full > 0
        levels = np.unique(
            np.concatenate([ramp.low[positive], ramp.high[positive], ramp.low[:1].min(axis=1)])
        )
        watts = floor + np.array([ramp.watts(np.full(len(floor), level)) for level in levels])
    return levels, watts, np.array([at_watts(fleet, row) for row in watts])
