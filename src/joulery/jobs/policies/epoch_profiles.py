"""Time and power of an epoch at every batch size and power limit: measured, averaged, borrowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.job_batch import own_places, places_of, rows_of, single

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Outcomes
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.jobs.policies.job_batch import JobBatch, Rows

# How a power limit changes the cost of an epoch carries over from one batch size to the next
# within this much (spread over the batch sizes of You et al.'s V100 and A40 traces, NSDI'23).
BORROWED_SD = 0.03
BORROWED_SHARE = 0.4
# The best limit is about this much cheaper than any one limit, where none were compared.
_UNCOMPARED_EXCESS = 0.04
# No figure is believed to be more exact than this, whatever its source says.
_LEAST_ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class EpochProfiles:
    """Averages of what was measured; arrays change in place.

    Attributes:
        lanes: The jobs.
        logs: (lanes, arms, 2, limits), logarithms of seconds and of watts of an epoch; 0 where
            not measured.
        precision: (lanes, arms, limits), one over the variance of either; 0 where not measured.
    """

    lanes: JobBatch
    logs: Floats
    precision: Floats

    @classmethod
    def start(cls, lanes: JobBatch) -> EpochProfiles:
        """Before anything is measured."""
        arms, limits = lanes.batch_sizes.shape[1], lanes.limits_watts.shape[1]
        shape = (len(lanes), arms)
        return cls(lanes, np.zeros((*shape, 2, limits)), np.zeros((*shape, limits)))

    def learn(self, outcomes: Outcomes) -> None:
        """Average measured epochs in, each weighed by its precision."""
        told = np.isfinite(outcomes.epoch_seconds) & np.isfinite(outcomes.epoch_joules)
        entries = np.nonzero(told)
        if not len(entries[0]):
            return
        row, limit = single(*entries)  # an action tells of a limit or two, seldom of more
        lane, arm = outcomes.lane[row], outcomes.arm[row]
        seconds = outcomes.epoch_seconds[row, limit]
        watts = outcomes.epoch_joules[row, limit] / seconds
        error = np.maximum(outcomes.relative_error[row, limit], _LEAST_ERROR)
        gained = 1.0 / (error * error)
        total = self.precision[lane, arm, limit] + gained
        share = gained / total
        for number, new in enumerate((np.log(seconds), np.log(watts))):
            known = self.logs[lane, arm, number, limit]
            self.logs[lane, arm, number, limit] = known + share * (new - known)
        self.precision[lane, arm, limit] = total

    def measured(self, lane: Rows) -> NDArray[np.bool_]:
        """(rows, arms), where anything was measured."""
        return np.asarray((self.precision[lane] > 0).any(axis=2))

    def nearest_compared(
        self, lane: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The closest batch size whose limits were compared, and whether there is one."""
        rows = rows_of(lane)
        compared = self._compared(rows)
        sizes = np.log2(self.lanes.batch_sizes[rows])
        distance = np.where(compared, np.abs(sizes - sizes[own_places(arm)][:, None]), np.inf)
        return distance.argmin(axis=1), np.asarray(compared.any(axis=1))

    def _compared(self, rows: Rows) -> NDArray[np.bool_]:
        """(rows, arms), batch sizes whose limits were compared: at least two, if there are two."""
        counts = (self.precision[rows] > 0).sum(axis=2)
        # Only the fullest profiles lend: a batch size of which a few limits were measured would
        # otherwise keep itself from ever hearing of the others.
        fullest = counts.max(axis=1, keepdims=True)
        return np.asarray(counts >= np.maximum(fullest, min(2, self.precision.shape[2])))

    def believed(
        self, lane: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> tuple[Floats, Floats, Floats]:
        """(rows, limits): log seconds and log watts of an epoch, and the variance of either.

        Limits that were not measured at this batch size are borrowed from the nearest one whose
        limits were compared; NaN and infinite where there is none. The level of a batch size of
        which nothing was measured is that of the lender. To be read, not changed.
        """
        at = places_of(lane, arm)
        own, own_precision = self.logs[at], self.precision[at]
        missing = own_precision == 0
        if not np.count_nonzero(missing):
            return own[:, 0], own[:, 1], 1.0 / own_precision
        source, _ = self.nearest_compared(lane, arm)
        lender = places_of(lane, source)
        lent = self.logs[lender], self.precision[lender]
        return self._filled(rows_of(lane), (own, own_precision), lent)

    def believed_of_all(self, rows: Rows) -> tuple[Floats, Floats, Floats]:
        """The same for every batch size: (rows, arms, limits)."""
        own, precision = self.logs[rows], self.precision[rows]
        sizes = np.log2(self.lanes.batch_sizes[rows])
        distance = np.abs(sizes[:, None, :] - sizes[:, :, None])
        distance = np.where(self._compared(rows)[:, None, :], distance, np.inf)
        lender = np.arange(len(own))[:, None], distance.argmin(axis=2)
        return self._filled(rows, (own, precision), (own[lender], precision[lender]))

    def _filled(
        self, rows: Rows, own: tuple[Floats, Floats], lent: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats, Floats]:
        """(..., limits), from logs and precision of batch sizes and of those that they borrow from.

        Log seconds and log watts, NaN where neither knows; the variance of either.
        """
        has, lends = own[1] > 0, lent[1] > 0
        known = has | lends
        precision = np.where(has, own[1], lent[1])
        variance = np.divide(1.0, precision, out=np.full_like(precision, np.inf), where=known)
        cost = lent[0][..., 0, :] + np.log(self.rate(rows, lent[0][..., 1, :]))
        least = np.where(lends, cost, np.inf).min(axis=-1, keepdims=True)
        # A lighter load is bound less by a low limit: what hurts elsewhere may not hurt here.
        hurt = BORROWED_SHARE * np.where(lends, cost - least, 0.0)
        variance += np.where(has, 0.0, BORROWED_SD**2 + hurt**2)
        # What is borrowed is moved to the level of what both know.
        both = (has & lends)[..., None, :]
        count = np.maximum(both.sum(axis=-1, keepdims=True), 1)
        gap = np.where(both, own[0] - lent[0], 0.0).sum(axis=-1, keepdims=True) / count
        logs = np.where(has[..., None, :], own[0], lent[0] + gap)
        logs = np.where(known[..., None, :], logs, np.nan)
        return logs[..., 0, :], logs[..., 1, :], variance

    def cheapest(self, lane: NDArray[np.int64], arm: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Logarithm of an epoch's cost at its best limit, and its variance, where measured."""
        log_seconds, log_watts, _ = self.believed(lane, arm)
        cost = log_seconds + np.log(self.rate(rows_of(lane), log_watts))
        own = self.precision[places_of(lane, arm)]
        best, counts = _least(cost)[..., 0], (own > 0).sum(axis=1)
        borrows = counts < min(2, own.shape[1])
        _, compared = self.nearest_compared(lane, arm)
        best = np.where(compared, best, best - _UNCOMPARED_EXCESS)
        return best, 1.0 / own.max(axis=1) + np.where(borrows, BORROWED_SD**2, 0.0)

    def rate(self, lane: Rows, log_watts: Floats) -> Floats:
        """Joules of cost per second."""
        each = (-1,) + (1,) * (log_watts.ndim - 1)
        rate = np.exp(log_watts)
        rate *= self.lanes.joule_weight[lane].reshape(each)
        rate += self.lanes.second_weight[lane].reshape(each)
        return np.asarray(rate)


def _least(values: Floats) -> Floats:
    return np.asarray(np.where(np.isfinite(values), values, np.inf).min(axis=-1, keepdims=True))
