"""The continuous frontier where it is known at sampled iteration times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SampledRelaxation:
    """Near exact at the samples; in between a mix of two neighbours, which is feasible and near.

    Attributes:
        seconds: (samples,), increasing iteration times.
        cost: (samples,), joules above waiting of the durations.
        proven: (samples,), joules above waiting that no durations go below.
        watts: (samples,), what a second more would save.
        lasts: (samples, instructions), durations.
    """

    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    proven: NDArray[np.float64]
    watts: NDArray[np.float64]
    lasts: NDArray[np.float32] | NDArray[np.float64]

    def bound(self, seconds: float) -> float:
        """No choice of clocks ends within ``seconds`` for less cost: the tangents say so."""
        return float(np.max(self.proven - self.watts * (seconds - self.seconds)))

    def durations(self, seconds: float) -> NDArray[np.float64]:
        """Of every instruction, near least cost, in an iteration of ``seconds``."""
        right = int(np.searchsorted(self.seconds, seconds, side="right"))
        if right == 0:
            left, right, share = 0, 0, 0.0
        elif right == len(self.seconds):
            left, right, share = -1, -1, 0.0
        else:
            left = right - 1
            span = float(self.seconds[right] - self.seconds[left])
            share = (seconds - float(self.seconds[left])) / span
        mix: NDArray[np.float64] = np.multiply(self.lasts[left], 1.0 - share, dtype=np.float64)
        mix += np.multiply(self.lasts[right], share, dtype=np.float64)
        return mix
