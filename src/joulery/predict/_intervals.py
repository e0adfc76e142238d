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

from joulery.predict._fitted import fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.predict._bayes import Array

# Growth of intervals that stand on few groups, and the least factor of a claim; chosen on the tasks
# of benchmarks/predict.py, leaving each group out in turn.
_FEW_GROUPS, _LEAST_SCALE = 0.3, 0.5
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

    Every group counts alike. Few groups say little about the next one, so the factor grows by a
    part of ``1 / groups`` and never falls below a half.

    Args:
        groups: Log-errors and claimed standard deviations per left-out group.
    """
    if not groups:
        return 1.0
    ratio = np.concatenate([np.abs(off) / claimed for off, claimed in groups])
    weight = np.concatenate([np.full(len(off), 1.0 / len(off)) for off, _ in groups])
    order = np.argsort(ratio)
    reached = np.cumsum(weight[order]) / weight.sum()
    place = int(np.searchsorted(reached, 0.9))
    found = float(ratio[order][min(place, len(ratio) - 1)]) / NINETY
    return max(found * (1 + _FEW_GROUPS / len(groups)), _LEAST_SCALE)


def shared_correlation(groups: Sequence[tuple[Array, Array]]) -> float:
    """Correlation of two errors of the same group, every group counting alike.

    Errors are in units of their claims; as with intervals, few groups say little, so the
    correlation grows by a part of what is missing to 1.
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
    return found + (1 - found) * _FEW_GROUPS / len(groups)


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
