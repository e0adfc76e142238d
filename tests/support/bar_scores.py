"""Scores of error bars: the interval score, which rewards narrow bars and punishes wrong ones.

The score of a bar of 95 % is its width plus 40 times the distance by which it misses the truth, in
per cent of the truth; of two that hold equally often the narrower one has the better score.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    # Joules and their standard error, both relative to the truth.
    Figure = tuple[float, float]

SIGMAS_95 = 1.96
_MISS = 2 / 0.05


def coverage(figures: Sequence[Figure]) -> float:
    """Share of the bars of 95 % that hold the truth."""
    return fmean(abs(ratio - 1.0) <= SIGMAS_95 * sigma for ratio, sigma in figures)


def score(figures: Sequence[Figure]) -> float:
    """Mean interval score of the bars."""
    return fmean(_score(ratio - 1.0, SIGMAS_95 * sigma) for ratio, sigma in figures)


def fixed_score(figures: Sequence[Figure], share: float = 0.05) -> float:
    """Mean interval score of a bar of the same share of every figure."""
    return fmean(_score(ratio - 1.0, share * ratio) for ratio, _ in figures)


def best_score(figures: Sequence[Figure]) -> float:
    """Mean interval score of the one relative interval that fits these figures best."""
    truths = 1.0 / np.array([ratio for ratio, _ in figures])
    low, high = np.quantile(truths, [0.025, 0.975])
    misses = np.maximum(0.0, low - truths) + np.maximum(0.0, truths - high)
    return float(100.0 * np.mean(high - low + _MISS * misses))


def _score(error: float, half: float) -> float:
    return 100.0 * (2.0 * half + _MISS * max(0.0, abs(error) - half))
