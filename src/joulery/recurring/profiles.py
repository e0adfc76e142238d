"""Time and power of an epoch at every batch size and power limit: measured, averaged, borrowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.recurring.draws import Floats
    from joulery.recurring.lanes import Lanes
    from joulery.recurring.policy import Outcomes

# How a power limit changes the cost of an epoch carries over from one batch size to the next
# within this much (spread over the batch sizes of You et al.'s V100 and A40 traces, NSDI'23).
BORROWED_SD = 0.03
BORROWED_SHARE = 0.4
# The best limit is about this much cheaper than any one limit, where none were compared.
_UNCOMPARED_EXCESS = 0.04
# No figure is believed to be more exact than this, whatever its source says.
_LEAST_ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class Profiles:
    """Averages of what was measured; arrays change in place.

    Attributes:
        lanes: The jobs.
        log_seconds: (lanes, arms, limits), of an epoch; NaN where not measured.
        log_watts: (lanes, arms, limits), likewise.
        precision: (lanes, arms, limits), one over the variance of either; 0 where not measured.
    """

    lanes: Lanes
    log_seconds: Floats
    log_watts: Floats
    precision: Floats

    @classmethod
    def start(cls, lanes: Lanes) -> Profiles:
        """Before anything is measured."""
        shape = (*lanes.batch_sizes.shape, lanes.limits_watts.shape[1])
        return cls(lanes, np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape))

    def learn(self, outcomes: Outcomes) -> None:
        """Average measured epochs in, each weighed by its precision."""
        at = outcomes.lane, outcomes.arm
        measured = np.isfinite(outcomes.epoch_seconds) & np.isfinite(outcomes.epoch_joules)
        seconds = np.where(measured, outcomes.epoch_seconds, 1.0)
        watts = np.where(measured, outcomes.epoch_joules, 1.0) / seconds
        error = np.where(measured, outcomes.relative_error, 1.0)
        gained = np.where(measured, 1.0 / np.maximum(error, _LEAST_ERROR) ** 2, 0.0)
        total = self.precision[at] + gained
        share = gained / np.where(measured, total, 1.0)
        for kept, new in ((self.log_seconds, seconds), (self.log_watts, watts)):
            before = np.where(np.isnan(kept[at]), 0.0, kept[at])
            kept[at] = np.where(measured, before + share * (np.log(new) - before), kept[at])
        self.precision[at] = total

    def log_cost(self, lane: NDArray[np.int64], arm: NDArray[np.int64]) -> Floats:
        """(rows, limits), of an epoch, in joules; NaN where not measured."""
        return self.log_seconds[lane, arm] + np.log(self.rate(lane, self.log_watts[lane, arm]))

    def measured(self, lane: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(rows, arms), where anything was measured."""
        return np.asarray((self.precision[lane] > 0).any(axis=2))

    def nearest_compared(
        self, lane: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The closest batch size whose limits were compared, and whether there is one."""
        counts = (self.precision[lane] > 0).sum(axis=2)
        # Only the fullest profiles lend: a batch size of which a few limits were measured would
        # otherwise keep itself from ever hearing of the others.
        fullest = counts.max(axis=1, keepdims=True)
        compared = counts >= np.maximum(fullest, min(2, self.precision.shape[2]))
        sizes = np.log2(self.lanes.batch_sizes[lane])
        own = np.take_along_axis(sizes, arm[:, None], axis=1)
        distance = np.where(compared, np.abs(sizes - own), np.inf)
        return distance.argmin(axis=1), compared.any(axis=1)

    def believed(
        self, lane: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> tuple[Floats, Floats, Floats]:
        """(rows, limits): log seconds and log watts of an epoch, and the variance of either.

        Limits that were not measured at this batch size are borrowed from the nearest one whose
        limits were compared; NaN and infinite where there is none. The level of a batch size of
        which nothing was measured is that of the lender.
        """
        source, _ = self.nearest_compared(lane, arm)
        own_precision = self.precision[lane, arm]
        missing = own_precision == 0
        precision = np.where(missing, self.precision[lane, source], own_precision)
        known = precision > 0
        variance = np.divide(1.0, precision, out=np.full_like(precision, np.inf), where=known)
        lent_cost = self.log_cost(lane, source)
        hurt = np.where(known, lent_cost - _least(lent_cost), 0.0)
        # A lighter load is bound less by a low limit: what hurts elsewhere may not hurt here.
        variance += np.where(missing, BORROWED_SD**2 + (BORROWED_SHARE * hurt) ** 2, 0.0)
        filled = [
            _borrow(kept[lane, arm], kept[lane, source])
            for kept in (self.log_seconds, self.log_watts)
        ]
        return filled[0], filled[1], variance

    def cheapest(self, lane: NDArray[np.int64], arm: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Logarithm of an epoch's cost at its best limit, and its variance, where measured."""
        log_seconds, log_watts, _ = self.believed(lane, arm)
        cost = log_seconds + np.log(self.rate(lane, log_watts))
        own = self.precision[lane, arm]
        best, counts = _least(cost)[:, 0], (own > 0).sum(axis=1)
        borrows = counts < min(2, own.shape[1])
        _, compared = self.nearest_compared(lane, arm)
        best = np.where(compared, best, best - _UNCOMPARED_EXCESS)
        return best, 1.0 / own.max(axis=1) + np.where(borrows, BORROWED_SD**2, 0.0)

    def rate(self, lane: NDArray[np.int64], log_watts: Floats) -> Floats:
        """Joules of cost per second."""
        weights = self.lanes.joule_weight[lane, None], self.lanes.second_weight[lane, None]
        return np.asarray(weights[0] * np.exp(log_watts) + weights[1])


def _borrow(own: Floats, lent: Floats) -> Floats:
    """``own`` where known, else ``lent`` moved to the same level."""
    both = np.isfinite(own) & np.isfinite(lent)
    gap = np.where(both, own - lent, 0.0).sum(axis=1) / np.maximum(both.sum(axis=1), 1)
    return np.where(np.isnan(own), lent + gap[:, None], own)


def _least(values: Floats) -> Floats:
    return np.asarray(np.where(np.isfinite(values), values, np.inf).min(axis=1, keepdims=True))
