"""Fit convex curves through noisy measurements, with as few bends as noise allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# A normal distribution has 1.4826 median absolute deviations per standard deviation.
_SIGMA_PER_DEVIATION = 1.4826
# Beyond this many standard deviations a measurement counts less and less (Huber).
_HUBER = 2.0
# Beyond this many it is an outlier, if its neighbours are not: a bad run explains it.
_FAR = 5.0
_MOST_OUTLIERS = 0.1
# How far the rest may lie off, in standard deviations, before the shape itself is in doubt.
_MOST_MISFIT = 1.6
# Less than this is no noise worth a bend, nor a doubt.
_NEGLIGIBLE = 5e-4
_ROUNDS = 4
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Curve:
    """A fit: its values where it was measured, and how well it sits.

    Attributes:
        values: (n,), the fitted curve at the measured places.
        outliers: (n,), which measurements lie far off.
        follows: Whether what lies off the curve looks like noise and single outliers.
    """

    values: Array
    outliers: NDArray[np.bool_]
    follows: bool


def convex_fit(
    places: Array, measured: Array, weights: Array, noise: float, *, smooth: bool = False
) -> Curve:
    """The convex, non-decreasing curve through positive measurements at increasing places.

    Args:
        places: (n,), strictly increasing.
        measured: (n,), positive.
        weights: (n,), how much each counts; 1 for the best.
        noise: Relative standard deviation of one measurement of weight 1.
        smooth: Whether bends may also be round (for curves that grow like a polynomial).
    """
    scale = (places - places[0]) / max(float(places[-1] - places[0]), _TINY)
    basis = _basis(scale, smooth=smooth)
    noise = max(noise, _NEGLIGIBLE)
    relative = np.sqrt(weights) / measured
    trust = _first_trust(scale, measured, weights, noise)
    off = np.zeros_like(measured)
    values = measured
    for _ in range(_ROUNDS):
        factor = relative * np.sqrt(trust)
        coefficients = _few_bends(basis * factor[:, None], measured * factor, noise)
        values = basis @ coefficients
        off = np.abs(measured - values) * relative
        trust = np.minimum(1.0, _HUBER * noise / np.maximum(off, _TINY))
        trust[off > _FAR * noise] = 0.0
    outliers = off > _FAR * noise
    return Curve(values, outliers, _looks_like_noise(off / noise, outliers))


def _looks_like_noise(off: Array, outliers: NDArray[np.bool_]) -> bool:
    """Whether outliers are few and apart from each other and from the ends, and the rest close.

    At an end there is no telling an outlier from a curve of another shape.
    """
    together = bool(np.any(outliers[1:] & outliers[:-1]))
    at_end = bool(outliers[0] or outliers[-1])
    few = float(np.mean(outliers)) <= _MOST_OUTLIERS
    rest = off[~outliers]
    close = len(rest) > 0 and math.sqrt(float(np.mean(rest**2))) <= _MOST_MISFIT
    return few and close and not together and not at_end


def local_noise(places: Array, measured: Array, weights: Array) -> float:
    """Relative noise, from how far each measurement lies off the line between its neighbours."""
    if len(measured) < 3:
        return 0.0
    return _SIGMA_PER_DEVIATION * float(np.median(_off_neighbours(places, measured, weights)))


def _off_neighbours(places: Array, measured: Array, weights: Array) -> Array:
    """(n - 2,), in units of what noise of 1 would give."""
    share = (places[1:-1] - places[:-2]) / (places[2:] - places[:-2])
    expected = (1 - share) * measured[:-2] + share * measured[2:]
    spread = np.sqrt(1 / weights[1:-1] + (1 - share) ** 2 / weights[:-2] + share**2 / weights[2:])
    off: Array = np.abs(measured[1:-1] / expected - 1) / spread
    return off


def _first_trust(places: Array, measured: Array, weights: Array, noise: float) -> Array:
    """No trust in peaks: a first fit through an outlier would cast doubt on its neighbours."""
    off = np.zeros(len(measured) + 2)
    off[2:-2] = _off_neighbours(places, measured, weights)
    peak = (off[1:-1] > off[:-2]) & (off[1:-1] > off[2:]) & (off[1:-1] > _FAR * noise)
    return np.where(peak, 0.0, 1.0)


def _basis(scale: Array, *, smooth: bool) -> Array:
    """Constant, line, and one bend per inner place; columns in that order."""
    hinges = np.maximum(0.0, scale[:, None] - scale[None, 2:-2])
    columns = [np.ones_like(scale)[:, None], scale[:, None], hinges]
    if smooth:
        columns += [scale[:, None] ** 2, hinges**2]
    return np.hstack(columns)


def _few_bends(basis: Array, wanted: Array, noise: float) -> Array:
    """Least squares with no negative coefficient but the constant's, bends added one at a time.

    A bend is added only while it explains more than noise would (Bayesian information criterion).
    """
    size = basis.shape[1]
    price = noise**2 * math.log(max(len(wanted), 2))
    coefficients = _nonnegative(basis, wanted, [0, 1])
    chosen = [0, 1]
    remaining = wanted - basis @ coefficients
    norms = np.maximum(np.sum(basis**2, axis=0), _TINY)
    while len(chosen) < size:
        gains = basis.T @ remaining
        gains[chosen] = -1.0
        candidates = np.argsort(-(np.maximum(gains, 0.0) ** 2) / norms)[:8]
        trials = [
            (_left(basis, wanted, [*chosen, int(column)]), int(column))
            for column in candidates
            if gains[column] > 0
        ]
        if not trials:
            break
        left, column = min(trials)
        if float(remaining @ remaining) - left <= price:
            break
        chosen.append(column)
        coefficients = _nonnegative(basis, wanted, chosen)
        remaining = wanted - basis @ coefficients
    return coefficients


def _left(basis: Array, wanted: Array, columns: list[int]) -> float:
    remaining = wanted - basis @ _nonnegative(basis, wanted, columns)
    return float(remaining @ remaining)


def _nonnegative(basis: Array, wanted: Array, columns: list[int]) -> Array:
    """Least squares over some columns; those that would turn negative leave, one at a time."""
    kept = list(columns)
    while True:
        solution = np.linalg.lstsq(basis[:, kept], wanted, rcond=None)[0]
        worst = int(np.argmin(solution[1:])) + 1 if len(kept) > 1 else 0
        if worst == 0 or solution[worst] >= 0:
            break
        kept.pop(worst)
    full = np.zeros(basis.shape[1])
    full[kept] = solution
    return full
