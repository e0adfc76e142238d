"""Random numbers as a pure function of (seed, decision, stream): the same draw wherever it is made.

A generator with state would give a lane other numbers when it is simulated among others, and two
workers of a server the same ones. Here every number is a hash of what it is for (SplitMix64's
finaliser by Steele, Lea and Flood, OOPSLA'14), so lanes can be batched, split and replayed freely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seeds = NDArray[np.uint64]
Floats = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53


def mix(seeds: Seeds, counters: NDArray[np.integer]) -> Seeds:
    """One well-mixed 64-bit word per (seed, counter) pair; shapes broadcast."""
    words = seeds + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return np.asarray(words ^ (words >> np.uint64(31)))


@dataclass(frozen=True, slots=True)
class CounterRng:
    """The randomness of one decision in each lane.

    Attributes:
        words: One 64-bit word per lane, unique to the lane's seed and the decision.
    """

    words: Seeds

    @classmethod
    def of(cls, seeds: Seeds, decisions: NDArray[np.integer]) -> CounterRng:
        """The draws of decision number ``decisions[lane]`` of the job seeded ``seeds[lane]``."""
        return cls(mix(seeds, decisions))

    def uniform(self, stream: int, columns: int) -> Floats:
        """Shape (lanes, columns), in [0, 1); other streams give independent numbers."""
        keys = mix(self.words, np.full(1, stream))
        words = mix(keys[:, None], np.arange(columns)[None, :])
        return (words >> np.uint64(11)).astype(np.float64) * _UNIT

    def normal(self, stream: int, columns: int) -> Floats:
        """Standard normal, shape (lanes, columns), by Box and Muller's transform.

        The first columns do not depend on how many there are: padding a lane changes nothing.
        """
        pairs = self.uniform(stream, 2 * columns)
        radius = np.sqrt(-2.0 * np.log1p(-pairs[:, 0::2]))
        return np.asarray(radius * np.cos(2.0 * np.pi * pairs[:, 1::2]))
