"""Error bars that hold for devices and models which were left out.

A model claims a standard deviation for each log-prediction. Whether it is right shows on groups
(devices, jobs, models) that were left out of the fit: by some factor 90 % of their errors lie
inside (``benchmarks/predict_fitting.py``). Factors per task and level of evidence ship with the
constants and multiply every claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.predict._bayes import fitted

if TYPE_CHECKING:
    from joulery.predict._bayes import Array

# Half-width of a 90 % interval, and the one-sided 90 % bound, in standard deviations.
NINETY, NINETY_BELOW = 1.6449, 1.2816


@dataclass(frozen=True, slots=True)
class Interval:
    """A 90 % interval.

    Attributes:
        low: Lower end.
        high: Upper end.
    """

    low: float
    high: float

    @classmethod
    def around(cls, value: float, deviation: float) -> Interval:
        """The interval of a value whose logarithm has a standard deviation."""
        return cls(value * math.exp(-NINETY * deviation), value * math.exp(NINETY * deviation))


def interval_scale(task: str) -> float:
    """Factor of claimed deviations for a task at a level of evidence, from left-out groups."""
    return float(fitted()["intervals"].get(task, {}).get("scale", 1.0))


def correlation(task: str) -> float:
    """Correlation of two errors of the same left-out group."""
    return float(fitted()["intervals"].get(task, {}).get("correlation", 1.0))


def summed_deviation(values: Array, deviations: Array, correlated: float) -> float:
    """Relative standard deviation of a sum whose terms' errors are correlated.

    Args:
        values: Terms.
        deviations: Relative standard deviation of each.
        correlated: Correlation of any two errors; 1 for the same prediction many times.
    """
    spread = np.asarray(values, float) * np.asarray(deviations, float)
    variance = correlated * spread.sum() ** 2 + (1 - correlated) * (spread**2).sum()
    return float(math.sqrt(variance) / np.sum(values))
