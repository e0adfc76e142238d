"""Random numbers as a pure function of (seed, decision, stream): the same wherever they are drawn.

A generator with state would give a job other numbers when it is simulated among others, and two
workers of a server the same ones. Here every number is a hash of what it is for (SplitMix64's
finaliser by Steele, Lea and Flood, OOPSLA'14), so jobs can be batched, split and replayed freely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seeds = NDArray[np.uint64]
Floats = NDArray[np.float64]

# Increment and multipliers of the generator SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(seeds: Seeds, counters: NDArray[np.integer]) -> Seeds:
    """One well-mixed 64-bit word per (seed, counter) pair; shapes broadcast."""
    words = seeds + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return np.asarray(words ^ (words >> np.uint64(31)))


def unit_interval(words: Seeds) -> Floats:
    """Words as numbers in [0, 1)."""
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@dataclass(frozen=True, slots=True)
class CounterRng:
    """The random numbers of one decision of each row.

    Attributes:
        words: One 64-bit word per row, unique to the job's seed and the decision.
    """

    words: Seeds

    @classmethod
    def of(cls, seeds: Seeds, decisions: NDArray[np.integer]) -> CounterRng:
        """The numbers of decision ``decisions[row]`` of the job seeded ``seeds[row]``."""
        return cls(mix(seeds, decisions))

    def uniform(self, stream: int, columns: int) -> Floats:
        """Shape (rows, columns), in [0, 1); other streams give independent numbers."""
        keys = mix(self.words, np.full(1, stream))
        return unit_interval(mix(keys[:, None], np.arange(columns)[None, :]))

    def normal(self, stream: int, columns: int) -> Floats:
        """Standard normal, shape (rows, columns), by Box and Muller's transform.

        The first columns do not depend on how many there are: padding a row changes nothing.
        """
        pairs = self.uniform(stream, 2 * columns)
        radius = np.sqrt(-2.0 * np.log1p(-pairs[:, 0::2]))
        return np.asarray(radius * np.cos(2.0 * np.pi * pairs[:, 1::2]))
