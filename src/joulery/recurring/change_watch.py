"""Notice that a job no longer trains as it used to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.recurring.draws import Floats

# Page's cumulative sums (Biometrika 1954) in their textbook setting: tuned to a shift of one
# standard deviation, about one false alarm in 500 runs. Surprises are clipped, so that it takes
# two runs in a row to raise an alarm, never a single outlier.
_ALLOWANCE = 0.5
_ALARM = 10.0
_LARGEST_SURPRISE = 4.0
_SIGNS = np.array([1.0, -1.0])


@dataclass(frozen=True, slots=True)
class ChangeWatch:
    """Cumulative sums of surprises, upward and downward; arrays change in place.

    Attributes:
        sums: (lanes, 2).
        shift: (lanes, 2), sum of the changes of log epochs since a sum left zero.
        count: (lanes, 2), how many they are.
    """

    sums: Floats
    shift: Floats
    count: Floats

    @classmethod
    def start(cls, lanes: int) -> ChangeWatch:
        """Before any training."""
        return cls(*(np.zeros((lanes, 2)) for _ in range(3)))

    def notice(
        self, rows: NDArray[np.int64], residual: Floats, spread: Floats
    ) -> tuple[NDArray[np.bool_], Floats]:
        """Fold in one run per row.

        Args:
            rows: One per run.
            residual: Log epochs above what was believed.
            spread: Standard deviation that was believed.

        Returns:
            Which rows raise an alarm, and by how much their log epochs seem to have shifted.
        """
        surprise = np.clip(residual / spread, -_LARGEST_SURPRISE, _LARGEST_SURPRISE)
        sums = np.maximum(0.0, self.sums[rows] + surprise[:, None] * _SIGNS - _ALLOWANCE)
        going = sums > 0
        shift = np.where(going, self.shift[rows] + residual[:, None], 0.0)
        count = np.where(going, self.count[rows] + 1.0, 0.0)
        alarm = sums.max(axis=1) > _ALARM
        side = sums.argmax(axis=1)[:, None]
        mean = np.take_along_axis(shift / np.maximum(count, 1.0), side, axis=1)[:, 0]
        for kept, new in ((self.sums, sums), (self.shift, shift), (self.count, count)):
            kept[rows] = np.where(alarm[:, None], 0.0, new)
        return alarm, mean
