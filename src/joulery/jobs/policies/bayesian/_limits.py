"""Power limits: time and power of an epoch under each, and which to hold and to measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies._job_batch import at_arm
from joulery.jobs.policies.bayesian._gaussian import mean_excess

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._base import Outcomes
    from joulery.jobs.policies._counter_rng import Floats
    from joulery.jobs.policies._job_batch import JobBatch

# How a power limit changes the cost of an epoch carries over from one batch size to the next
# within this much (spread over the batch sizes of You et al.'s V100 and A40 traces, NSDI'23).
TRANSFER_SD = 0.03
TRANSFER_SHARE = 0.4
# No figure is believed to be more exact than this, whatever its source states.
_LEAST_ERROR = 1e-3
# Limits that are known this well are not measured again.
_SETTLED_SD = 0.003
# Epochs whose time or power changes by more than this (a logarithm), and so many standard errors,
# mean that the job has changed; by hand: between a noisy neighbour's 10 % and the factor of 1.5
# from which reports are quarantined. All else that was measured is then known this well.
_JUMP, _JUMP_SPREADS = 0.2, 4.0
_JUMP_SD = 0.05
# Changing the limit for a slice disturbs a run by at least this share of the slice.
_LEAST_DISTURBANCE = 0.005


@dataclass(frozen=True, slots=True)
class LimitChoice:
    """The power limits that a training holds and measures.

    Attributes:
        hold: (rows,), power limit to hold; -1 leaves it to just-in-time profiling.
        measure: (rows, limits), limits to measure for seconds.
        extra: (rows,), cost that measuring adds to the run, in units of one slice's cost.
    """

    hold: NDArray[np.int64]
    measure: NDArray[np.bool_]
    extra: Floats


@dataclass(frozen=True, slots=True)
class EpochProfiles:
    """Precision-weighted averages of measured epochs; arrays change in place.

    Attributes:
        jobs: The jobs.
        logs: (jobs, arms, 2, limits), logarithms of seconds and of watts of an epoch; 0 where
            not measured.
        precision: (jobs, arms, limits), one over the variance of either; 0 where not measured.
    """

    jobs: JobBatch
    logs: Floats
    precision: Floats

    def learn(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        """Average measured epochs in, each weighed by its precision.

        Returns:
            (rows,), whether epochs have become so much dearer or cheaper that the job must have
            changed: all its batch sizes and limits are then taken to have changed alike.
        """
        jumps = np.zeros(len(outcomes.job), dtype=bool)
        measured = np.isfinite(outcomes.epoch_seconds) & np.isfinite(outcomes.epoch_joules)
        row, limit = np.nonzero(measured)
        if not len(row):
            return jumps
        job, arm = outcomes.job[row], outcomes.arm[row]
        seconds = outcomes.epoch_seconds[row, limit]
        watts = outcomes.epoch_joules[row, limit] / seconds
        error = np.maximum(outcomes.relative_error[row, limit], _LEAST_ERROR)
        logs = np.log(np.stack([seconds, watts], axis=1))
        average, precision = self.logs[job, arm, :, limit], self.precision[job, arm, limit]
        residual = np.where(precision[:, None] > 0, logs - average, 0.0)
        spread = np.sqrt(error * error + 1.0 / np.maximum(precision, 1e-12))
        far = np.abs(residual).max(axis=1) > np.maximum(_JUMP, _JUMP_SPREADS * spread)
        if np.count_nonzero(far):
            jumps[row[far]] = True
            self._shift(outcomes.job, row[far], residual[far])
            average, precision = self.logs[job, arm, :, limit], self.precision[job, arm, limit]
        gained = 1.0 / (error * error)
        share = gained / (precision + gained)
        self.logs[job, arm, :, limit] = average + share[:, None] * (logs - average)
        self.precision[job, arm, limit] = np.minimum(precision + gained, 1.0 / _SETTLED_SD**2)
        return jumps

    def _shift(self, jobs: NDArray[np.int64], row: NDArray[np.int64], residual: Floats) -> None:
        """Move all that is known of the jobs of some rows by the mean of their residuals."""
        rows = np.unique(row)
        job = jobs[rows]
        total = np.stack([np.bincount(row, part, len(jobs)) for part in residual.T], axis=1)
        shift = total[rows] / np.bincount(row)[rows, None]
        measured = (self.precision[job] > 0)[:, :, None, :]
        self.logs[job] += np.where(measured, shift[:, None, :, None], 0.0)
        self.precision[job] = np.minimum(self.precision[job], 1.0 / _JUMP_SD**2)

    def measured(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(rows, arms), whether anything was measured."""
        return np.asarray((self.precision[rows] > 0).any(axis=2))

    def nearest_compared(
        self, rows: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """(rows,), the closest batch size whose limits were compared; 0 where there is none."""
        sizes = np.log2(self.jobs.batch_sizes[rows])
        distance = np.abs(sizes - sizes[at_arm(arm)][:, None])
        return np.asarray(np.where(self._compared(rows), distance, np.inf).argmin(axis=1))

    def _compared(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(rows, arms), whether limits were compared: at least two of them, if there are two."""
        counts = (self.precision[rows] > 0).sum(axis=2)
        # Only the most complete profiles count: a batch size of which a few limits were measured
        # would otherwise be its own source, and never get figures of the others.
        fullest = counts.max(axis=1, keepdims=True)
        return np.asarray(counts >= np.maximum(fullest, min(2, self.precision.shape[2])))

    def believed(
        self, rows: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> tuple[Floats, Floats, Floats]:
        """(rows, limits): log seconds and log watts of an epoch, and the variance of either.

        Limits that were not measured at this batch size are taken from the nearest one whose
        limits were compared, moved to this one's level where both know a limit; NaN and infinite
        where there is none.
        """
        own, own_precision = self.logs[rows, arm], self.precision[rows, arm]
        if np.count_nonzero(own_precision) == own_precision.size:
            return own[:, 0], own[:, 1], 1.0 / own_precision
        nearest = self.nearest_compared(rows, arm)
        source = self.logs[rows, nearest], self.precision[rows, nearest]
        return self._filled(rows, (own, own_precision), source)

    def believed_of_all(self, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """(rows, arms, limits), the same for every batch size, without the variance."""
        own, precision = self.logs[rows], self.precision[rows]
        sizes = np.log2(self.jobs.batch_sizes[rows])
        distance = np.abs(sizes[:, None, :] - sizes[:, :, None])
        distance = np.where(self._compared(rows)[:, None, :], distance, np.inf)
        nearest = np.arange(len(own))[:, None], distance.argmin(axis=2)
        return self._filled(rows, (own, precision), (own[nearest], precision[nearest]))[:2]

    def _filled(
        self, rows: NDArray[np.int64], own: tuple[Floats, Floats], source: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats, Floats]:
        """(..., limits), from (logs, precision) of batch sizes and of their sources.

        Log seconds and log watts, NaN where neither was measured; the variance of either.
        """
        here, there = own[1] > 0, source[1] > 0
        measured = here | there
        precision = np.where(here, own[1], source[1])
        variance = np.divide(1.0, precision, out=np.full_like(precision, np.inf), where=measured)
        cost = source[0][..., 0, :] + np.log(self.cost_rate(rows, source[0][..., 1, :]))
        least = np.where(there, cost, np.inf).min(axis=-1, keepdims=True)
        # A lighter load is throttled less by a low limit: what costs more there may not here.
        excess = TRANSFER_SHARE * np.where(there, cost - least, 0.0)
        variance += np.where(here, 0.0, TRANSFER_SD**2 + excess**2)
        both = (here & there)[..., None, :]
        count = np.maximum(both.sum(axis=-1, keepdims=True), 1)
        gap = np.where(both, own[0] - source[0], 0.0).sum(axis=-1, keepdims=True) / count
        logs = np.where(here[..., None, :], own[0], source[0] + gap)
        logs = np.where(measured[..., None, :], logs, np.nan)
        return logs[..., 0, :], logs[..., 1, :], variance

    def cheapest(self, rows: NDArray[np.int64], arm: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """(rows,): log cost of a measured epoch at its best limit, and its variance."""
        log_seconds, log_watts, _ = self.believed(rows, arm)
        cost = log_seconds + np.log(self.cost_rate(rows, log_watts))
        own = self.precision[rows, arm]
        best = np.where(np.isfinite(cost), cost, np.inf).min(axis=-1)
        transferred = (own > 0).sum(axis=1) < min(2, own.shape[1])
        return best, 1.0 / own.max(axis=1) + np.where(transferred, TRANSFER_SD**2, 0.0)

    def cost_rate(self, rows: NDArray[np.int64], log_watts: Floats) -> Floats:
        """Joules of cost per second at a power; the first axis of ``log_watts`` is the row."""
        shape = (-1,) + (1,) * (log_watts.ndim - 1)
        rate = np.exp(log_watts)
        rate *= self.jobs.joule_weight[rows].reshape(shape)
        rate += self.jobs.second_weight[rows].reshape(shape)
        return np.asarray(rate)


def choose_limit(
    log_cost: Floats, variance: Floats, slice_share: Floats, horizon: float
) -> LimitChoice:
    """Hold the limit of least expected cost; measure others where that may save more than it costs.

    A slice trains while it measures, so it costs only the excess of its limit.

    Args:
        log_cost: (rows, limits), log cost of a run under each limit; NaN where nothing is known.
        variance: (rows, limits), variance of that.
        slice_share: (rows,), cost of a slice in units of the cost of a run.
        horizon: Number of recurrences to come that profit.
    """
    measured = np.isfinite(log_cost)
    hold = np.where(measured, log_cost, np.inf).argmin(axis=1)
    at = at_arm(hold)
    some = measured[at]
    excess = np.where(measured, log_cost - log_cost[at][:, None], 0.0)
    unsure = np.where(measured, variance, 1.0)
    spread = np.sqrt(unsure + unsure[at][:, None])
    gain = horizon * spread * mean_excess(excess / spread)
    slice_excess = np.maximum(np.expm1(np.minimum(excess, 1.0)), _LEAST_DISTURBANCE)
    measure = (gain > slice_share[:, None] * slice_excess) & (unsure > _SETTLED_SD**2)
    measure[at] = False
    measure &= measured
    extra = np.where(measure, slice_excess, 0.0).sum(axis=1)
    return LimitChoice(np.where(some, hold, -1), measure | ~some[:, None], extra)


def also_measure(choice: LimitChoice, limits: NDArray[np.bool_]) -> LimitChoice:
    """Measure ``wanted`` (rows, limits), too, except the limit held: it is measured anyway."""
    if not np.count_nonzero(limits):
        return choice
    current = np.arange(limits.shape[1])[None, :] == choice.hold[:, None]
    measure = choice.measure | (limits & ~current)
    more = (measure & ~choice.measure).sum(axis=1)
    return LimitChoice(choice.hold, measure, choice.extra + more)
