"""Costs observed per batch size: count, mean and population variance, all or the latest only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats


@dataclass(slots=True, eq=False)
class ArmCosts:
    """Running statistics of each lane's batch sizes.

    Attributes:
        count: (lanes, arms).
        mean: (lanes, arms), 0 before the first.
        squares: (lanes, arms), sum of squared distances from the mean.
        latest: (lanes, arms, window), where only the latest count; else of no length.
    """

    count: Floats
    mean: Floats
    squares: Floats
    latest: Floats

    @classmethod
    def of(cls, shape: tuple[int, ...], window: int) -> ArmCosts:
        """Nothing observed yet."""
        latest = np.full((*shape, window), np.nan)
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape), latest)

    def add(self, lane: NDArray[np.int64], arm: NDArray[np.int64], cost: Floats) -> None:
        """One cost per lane (Welford's update)."""
        window = self.latest.shape[2]
        if window:
            place = self.count[lane, arm].astype(np.int64) % window
            self.latest[lane, arm, place] = cost
        count = self.count[lane, arm] + 1.0
        away = cost - self.mean[lane, arm]
        mean = self.mean[lane, arm] + away / count
        self.squares[lane, arm] += away * (cost - mean)
        self.mean[lane, arm] = mean
        self.count[lane, arm] = count

    def moments(self, rows: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """(rows, arms): count, mean and population variance; zeros where nothing was seen."""
        count = self.count[rows]
        window = self.latest.shape[2]
        if not window:
            return count, self.mean[rows], self.squares[rows] / np.maximum(count, 1.0)
        latest = self.latest[rows]
        count = np.minimum(count, window)
        least_one = np.maximum(count, 1.0)
        seen = np.arange(window) < count[:, :, None]
        mean = np.where(seen, latest, 0.0).sum(axis=2) / least_one
        away = np.where(seen, latest - mean[:, :, None], 0.0)
        return count, mean, (away * away).sum(axis=2) / least_one
