"""Error bars that hold for devices and models which were left out.

A model claims a standard deviation for each log-prediction. Whether it is right shows on groups
(devices, jobs, models) that were left out of the fit: :func:`conformal_scale` is the factor at
which 90 % of their errors lie inside. Factors per task and level of evidence ship with the
constants and multiply every claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.predict._bayes import fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.predict._bayes import Array

# A model's own claim counts like so many left-out groups; chosen on the tasks of
# benchmarks/predict.py, leaving each group out in turn.
_CLAIM_GROUPS = 3
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


def conformal_scale(groups: Sequence[tuple[Array, Array]]) -> float:
    """Factor of claimed deviations at which 90 % intervals hold for a further group.

    Every group counts alike, and the claim itself like three groups that it fits. Few groups say
    little about the next one, so the factor is that of Student's distribution.

    Args:
        groups: Log-errors and claimed standard deviations per left-out group.
    """
    if not groups:
        return 1.0
    found = [(np.quantile(np.abs(off) / claimed, 0.9) / NINETY) ** 2 for off, claimed in groups]
    known = len(groups) + _CLAIM_GROUPS
    variance = (sum(found) + _CLAIM_GROUPS) / known
    return float(variance**0.5) * _student(known) / NINETY


def _student(freedom: int) -> float:
    """95 % quantile of Student's distribution, within 1 % from 4 degrees of freedom on."""
    z = NINETY
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def shared_correlation(groups: Sequence[tuple[Array, Array]]) -> float:
    """Correlation of two errors of the same group, every group counting alike.

    Errors are in units of their claims; few groups say little, so the correlation grows by a part
    of what is missing to 1.
    """
    pairs, total = 0.0, 0.0
    for off, claimed in groups:
        ratio, count = off / claimed, len(off)
        squares = float((ratio**2).sum())
        if count > 1:
            pairs += (float(ratio.sum()) ** 2 - squares) / (count * (count - 1))
            total += squares / count
    if not total:
        return 1.0
    found = min(max(pairs / total, 0.0), 1.0)
    return found + (1 - found) * 0.3 / len(groups)


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
