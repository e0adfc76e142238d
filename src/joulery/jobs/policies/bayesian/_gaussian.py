"""Gaussian beliefs: a Gaussian process over a job's batch sizes, and tails of the normal.

Epochs to the target and the cost of an epoch both bend smoothly with the logarithm of the batch
size, so what is measured at one batch size informs its neighbours. Curves are described from the
default batch size: a level, a slope and a bend there, plus an integrated random walk of the slope
away from it (the prior of cubic smoothing splines; Wahba, JRSS B 1978) and a deviation of each
batch size. Far from everything observed, uncertainty grows instead of reverting to a mean, which is
right for curves that may run away at either end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._counter_rng import Floats


@dataclass(frozen=True, slots=True)
class CurvePrior:
    """Prior of a curve over batch sizes; natural logarithms, per octave.

    Attributes:
        level: Mean of the logarithm at the default batch size.
        level_sd: Standard deviation of that.
        slope: Mean change of the logarithm per doubling of the batch size, at the default.
        slope_sd: Standard deviation of that.
        bend: Mean change of the slope per doubling; positive is a valley.
        bend_sd: Standard deviation of the slope's random walk per doubling.
        local_sd: Standard deviation of a single batch size from the smooth curve.
    """

    level: float
    level_sd: float
    slope: float
    slope_sd: float
    bend: float
    bend_sd: float
    local_sd: float

    def curve(self, octaves: Floats) -> GaussianCurve:
        """The curve of every job before any observation.

        Args:
            octaves: (jobs, arms), log2 of each batch size over the default one.
        """
        mean = self.level + self.slope * octaves + 0.5 * self.bend * octaves**2
        rows, columns = octaves[:, :, None], octaves[:, None, :]
        near = np.minimum(np.abs(rows), np.abs(columns))
        far = np.maximum(np.abs(rows), np.abs(columns))
        wander = np.where(rows * columns > 0, near**2 * (3.0 * far - near) / 6.0, 0.0)
        own = self.local_sd**2 * np.eye(octaves.shape[1])
        line = self.level_sd**2 + self.slope_sd**2 * rows * columns
        return GaussianCurve(mean, line + self.bend_sd**2 * wander + own)


@dataclass(frozen=True, slots=True)
class GaussianCurve:
    """A joint normal belief about the logarithm at every batch size.

    Attributes:
        mean: (jobs, arms).
        covariance: (jobs, arms, arms).
    """

    mean: Floats
    covariance: Floats

    @property
    def variance(self) -> Floats:
        """(jobs, arms), variance of every batch size alone."""
        return self.covariance.diagonal(axis1=1, axis2=2)

    def given(self, value: Floats, precision: Floats) -> GaussianCurve:
        """The posterior after a noisy observation of every batch size.

        Args:
            value: (jobs, arms), values observed; anything where nothing was.
            precision: (jobs, arms), one over the variance of the observation; 0 where there is
                none.
        """
        root = np.sqrt(precision)
        weighed = root[:, :, None] * self.covariance
        inner = weighed * root[:, None, :]
        inner += np.eye(root.shape[1])
        gain = np.linalg.solve(inner, weighed)
        residual = root * np.where(precision > 0, value - self.mean, 0.0)
        transposed = gain.transpose(0, 2, 1)
        mean = self.mean + (transposed @ residual[:, :, None])[:, :, 0]
        return GaussianCurve(mean, self.covariance - transposed @ weighed)

    def flattened(self, level: float, level_variance: float, share: Floats) -> GaussianCurve:
        """The curve with ``share`` (jobs,) of its differences between batch sizes."""
        mean = level + share[:, None] * (self.mean - level)
        own = share[:, None, None] ** 2 * (self.covariance - level_variance)
        return GaussianCurve(mean, level_variance + own)

    def of(self, rows: NDArray[np.int64]) -> GaussianCurve:
        """The curves of some jobs."""
        return GaussianCurve(self.mean[rows], self.covariance[rows])

    def replace(self, rows: NDArray[np.int64], other: GaussianCurve) -> None:
        """Put ``other`` in the place of the jobs ``rows``."""
        self.mean[rows] = other.mean
        self.covariance[rows] = other.covariance


# Chebyshev fit of erfcx on t = 1/(1 + z/2), relative error below 1.2e-7 for every z >= 0
# (Press et al., Numerical Recipes, "Special functions", erfcc).
_ERFCX = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)
_FAR_BELOW = -6.0  # where the lower tail no longer shows in double precision of a mean
# No failure rate is believed to be higher than this leaves, so that a batch size can come back.
LEAST_CHANCE = 1e-3


def _scaled_tail(z: Floats) -> Floats:
    """exp(z²)·erfc(z) for z >= 0."""
    t = 1.0 / (1.0 + 0.5 * z)
    fit = _ERFCX[0] * t
    for coefficient in _ERFCX[1:-1]:
        fit += coefficient
        fit *= t
    fit += _ERFCX[-1]
    np.exp(fit, out=fit)
    fit *= t
    return np.asarray(fit)


def density(z: Floats) -> Floats:
    """Density of a standard normal variable."""
    return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))


def survival(z: Floats) -> Floats:
    """Probability that a standard normal variable exceeds ``z``."""
    x = np.abs(z) / math.sqrt(2.0)
    upper = 0.5 * np.exp(-x * x) * _scaled_tail(x)
    return np.asarray(np.where(z >= 0, upper, 1.0 - upper))


def hazard(z: Floats) -> Floats:
    """Density over survival at ``z``: the mean of a standard normal variable known to exceed it.

    Stays accurate where both underflow.
    """
    beyond = math.sqrt(2.0 / math.pi) / _scaled_tail(np.maximum(z, 0.0) / math.sqrt(2.0))
    below = np.clip(z, _FAR_BELOW, 0.0)
    return np.asarray(np.where(z >= 0, beyond, density(below) / survival(below)))


# Every decision asks for these two; a table is one look-up instead of thirty steps, within 1e-6.
# Steps of 1/512 up to where the upper tail is too small to change one.
_ALL = np.arange(-4.0 * 512, 8.5 * 512 + 1.0) / 512
_POSITIVE = _ALL[_ALL >= 0.0]
_EXCESS = density(_POSITIVE) - _POSITIVE * survival(_POSITIVE)
_LOG_REPEATS = -np.log(np.maximum(1.0 - survival(_ALL), LEAST_CHANCE))


def mean_excess(z: Floats) -> Floats:
    """Expectation of max(0, x - ``z``) of a standard normal variable x, for ``z`` >= 0."""
    return np.asarray(np.interp(z, _POSITIVE, _EXCESS))


def log_repeats(z: Floats) -> Floats:
    """Log of the mean number of draws of a standard normal variable until one is below ``z``."""
    return np.asarray(np.interp(z, _ALL, _LOG_REPEATS))
