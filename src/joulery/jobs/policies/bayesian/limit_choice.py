"""Which power limit a training holds, and which others it measures for seconds on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.bayesian.normal import mean_excess
from joulery.jobs.policies.job_batch import own_places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats

# Limits that are known this well are not measured again.
SETTLED_SD = 0.003
# Changing the limit for a slice disturbs a run by at least this share of the slice.
LEAST_DISTURBANCE = 0.005


@dataclass(frozen=True, slots=True)
class LimitChoice:
    """What a training does with power limits.

    Attributes:
        hold: (rows,), position of the limit to hold; -1 leaves it to the profile.
        measure: (rows, limits), limits to measure for seconds.
        extra: (rows,), what measuring adds to the cost of the run, in slices.
    """

    hold: NDArray[np.int64]
    measure: NDArray[np.bool_]
    extra: Floats

    def with_also(self, wanted: NDArray[np.bool_]) -> LimitChoice:
        """Measure ``wanted`` (rows, limits) besides, unless held: that is measured anyway."""
        if not np.count_nonzero(wanted):
            return self
        own = np.arange(wanted.shape[1])[None, :] == self.hold[:, None]
        measure = self.measure | (wanted & ~own)
        more = (measure & ~self.measure).sum(axis=1)
        return LimitChoice(self.hold, measure, self.extra + more)


def choose_limit(
    log_cost: Floats,
    variance: Floats,
    slice_share: Floats,
    horizon: float,
) -> LimitChoice:
    """Hold the cheapest by belief; measure others where what it may save outweighs the slice.

    Slices train while they measure, so one costs only by how much dearer its limit is.

    Args:
        log_cost: (rows, limits), of a run under each limit; NaN where nothing is known.
        variance: (rows, limits), of that.
        slice_share: (rows,), cost of a slice in units of the cost of a run.
        horizon: Recurrences to come that profit.
    """
    known = np.isfinite(log_cost)
    all_known = np.count_nonzero(known) == known.size
    cost = log_cost if all_known else np.where(known, log_cost, np.inf)
    hold = cost.argmin(axis=1)
    at = own_places(hold)
    some = known[at]
    if all_known:
        excess, unsure = cost - cost[at][:, None], variance
    else:
        held = np.where(some, cost[at], 0.0)[:, None]
        excess, unsure = np.where(known, log_cost - held, 0.0), np.where(known, variance, 1.0)
    spread = np.sqrt(unsure + unsure[at][:, None])
    z = excess / spread  # never negative: the cheapest is held
    gain = horizon * spread * mean_excess(z)
    dearer = np.maximum(np.expm1(np.minimum(excess, 1.0)), LEAST_DISTURBANCE)
    measure = (gain > slice_share[:, None] * dearer) & (unsure > SETTLED_SD**2)
    measure[at] = False
    measure &= known
    extra = np.where(measure, dearer, 0.0).sum(axis=1)
    if all_known:
        return LimitChoice(hold, measure, extra)
    return LimitChoice(np.where(some, hold, -1), measure | ~some[:, None], extra)
