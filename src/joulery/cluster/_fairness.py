"""Fair and safe over time: recovery, ramp limits, over-subscription with a bounded risk."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.cluster._allocate import Allocation

# A job is owed, or owes, at most this much of its performance at any time.
MOST_CREDIT = 0.25
# Credits move in steps, so that jobs with nearly the same stay in one class.
CREDIT_STEP = 1 / 64


class DeficitLedger:
    """Performance that jobs lost against their fair share, and get back later.

    A job's fair share is the mean performance of all jobs at the time, so deficits add up to zero.
    What a job runs below that (in a hot rack, paused, under a conservative cap while unknown)
    adds to its deficit; what it runs above takes away.

    Args:
        horizon_seconds: Time within which a deficit is to be repaid.

    Attributes:
        deficits: Seconds of full speed that each job is owed.
    """

    def __init__(self, horizon_seconds: float = 4 * 3600.0) -> None:
        if not horizon_seconds > 0:
            raise InvalidValueError(
                f"a horizon of {horizon_seconds} s", remedy="give a positive number of seconds"
            )
        self._horizon = horizon_seconds
        self.deficits: dict[str, float] = {}

    def record(self, allocation: Allocation, seconds: float) -> None:
        """Add an interval in which every job ran as allocated."""
        self.add(allocation.ids, allocation.performance, seconds)

    def add(self, ids: Sequence[str], performance: np.ndarray, seconds: float) -> None:
        """Add an interval in which every job had some performance; others are forgotten."""
        share = float(performance.mean())
        rows = zip(ids, performance.tolist(), strict=True)
        most = MOST_CREDIT * self._horizon
        kept = self.deficits
        self.deficits = {
            name: min(most, max(-most, kept.get(name, 0.0) + (share - reached) * seconds))
            for name, reached in rows
        }

    def credit(self, job: str) -> float:
        """Extra performance that a job should get now; negative when it had more than its share."""
        owed = self.deficits.get(job, 0.0) / self._horizon
        return round(owed / CREDIT_STEP) * CREDIT_STEP


def ramped(
    before: np.ndarray,
    wanted: np.ndarray,
    seconds: float,
    *,
    up_watts_per_second: float = math.inf,
) -> np.ndarray:
    """Watts on the way from one allocation to the next, within a limit on the total's rise.

    Both ends keep every cap of a budget tree, so every mixture of them does, too.
    """
    change = float(wanted.sum() - before.sum())
    allowed = up_watts_per_second * seconds
    fraction = 1.0 if change <= allowed else allowed / change
    mixture: np.ndarray = before + fraction * (wanted - before)
    return mixture


def oversubscribed_watts(
    budget_watts: float, draws: Iterable[tuple[float, float]], risk: float = 1e-4
) -> float:
    """Sum of caps that may be handed out although the budget is smaller.

    Jobs rarely draw their caps all at once. By Hoeffding's inequality the sum of independent
    draws, each between 0 and its cap, exceeds its mean by more than
    sqrt(ln(1/risk) / 2 · sum of caps²) with a probability of at most ``risk``, whatever their
    distributions. Caps are scaled together until mean plus that margin meets the budget.

    Args:
        budget_watts: Power that the draws may exceed with a probability of ``risk``.
        draws: Cap in watts and mean draw as a fraction of the cap, for each independent job.
        risk: Largest probability of exceeding the budget at any one time.
    """
    caps, means = (np.array(column, dtype=float) for column in zip(*draws, strict=True))
    if not 0 < risk < 1 or (means < 0).any() or (means > 1).any():
        raise InvalidValueError(
            "risk and mean draws must be fractions", remedy="give values between 0 and 1"
        )
    margin = math.sqrt(math.log(1 / risk) / 2 * float(caps @ caps))
    expected = float(caps @ means) + margin
    # Handing out the budget itself is never a risk.
    return max(budget_watts, float(caps.sum()) * budget_watts / expected)
