"""Notice that a job no longer trains as it used to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats

    Lane = np.int64 | NDArray[np.int64]

# Page's cumulative sums (Biometrika 1954) in their textbook setting: tuned to a shift of one
# standard deviation, about one false alarm in 500 runs. Surprises are clipped, so that it takes
# two runs in a row to raise an alarm, never a single outlier.
_ALLOWANCE = 0.5
_ALARM = 10.0
_LARGEST_SURPRISE = 4.0
_SIGNS = (1.0, -1.0)


@dataclass(frozen=True, slots=True)
class ChangeWatch:
    """Cumulative sums of surprises, upward and downward; arrays change in place.

    Attributes:
        state: (lanes, 2, 3), upward and downward: the sum; the changes of log epochs since it left
            zero, added up; how many those are.
    """

    state: Floats

    @classmethod
    def start(cls, lanes: int) -> ChangeWatch:
        """Before any training."""
        return cls(np.zeros((lanes, 2, 3)))

    @property
    def sums(self) -> Floats:
        """(lanes, 2), of surprises."""
        return self.state[:, :, 0]

    def notice(
        self, lane: Lane, residual: Floats, spread: Floats
    ) -> tuple[NDArray[np.int64], Floats]:
        """Fold in runs.

        Args:
            lane: One per run; a number for a single run.
            residual: Log epochs above what was believed, likewise.
            spread: Standard deviation that was believed.

        Returns:
            Positions of the runs that raise an alarm, and by how much log epochs seem to have
            shifted there.
        """
        surprise = np.minimum(np.maximum(residual / spread, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        alarm = np.False_
        for side, sign in enumerate(_SIGNS):
            total = self.state[lane, side, 0] + sign * surprise - _ALLOWANCE
            going = total > 0.0
            self.state[lane, side, 0] = total * going
            self.state[lane, side, 1] = (self.state[lane, side, 1] + residual) * going
            self.state[lane, side, 2] = (self.state[lane, side, 2] + 1.0) * going
            alarm = alarm | (total > _ALARM)
        loud = np.flatnonzero(alarm)
        if not len(loud):
            return loud, np.zeros(0)
        lanes = np.atleast_1d(lane)[loud]
        state = self.state[lanes]
        side = state[:, :, 0].argmax(axis=1)
        own = np.arange(len(loud))
        self.state[lanes] = 0.0
        return loud, state[own, side, 1] / state[own, side, 2]
