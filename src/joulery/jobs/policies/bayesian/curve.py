"""Belief about a quantity along the batch sizes of a job: a Gaussian process on logarithms.

Epochs to the target and the cost of an epoch both bend smoothly with the logarithm of the batch
size, so what one batch size shows informs its neighbours. Curves are seen from the default batch
size: a level, a slope and a bend there, plus an integrated random walk of the slope away from it
(the prior of cubic smoothing splines; Wahba, JRSS B 1978) and a deviation of each batch size.
Far from everything seen, uncertainty grows instead of reverting to a mean, which is right for
curves that may run away at either end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.jobs.policies.job_batch import JobBatch, Rows


@dataclass(frozen=True, slots=True)
class CurvePrior:
    """What is expected of a curve before any of it is seen; natural logarithms, per octave.

    Attributes:
        level: Mean of the logarithm at the default batch size.
        level_sd: How unsure that is.
        slope: Mean change of the logarithm per doubling of the batch size, at the default.
        slope_sd: How unsure that is.
        bend: Mean change of the slope per doubling; positive is a valley.
        bend_sd: How much the slope wanders per doubling.
        local_sd: How far a single batch size may lie from the smooth curve.
    """

    level: float
    level_sd: float
    slope: float
    slope_sd: float
    bend: float
    bend_sd: float
    local_sd: float

    def curve(self, octaves: Floats) -> GaussianCurve:
        """The curve of every lane before anything is seen.

        Args:
            octaves: (lanes, arms), log2 of each batch size over the default one.
        """
        mean = self.level + self.slope * octaves + 0.5 * self.bend * octaves**2
        left, right = octaves[:, :, None], octaves[:, None, :]
        near = np.minimum(np.abs(left), np.abs(right))
        far = np.maximum(np.abs(left), np.abs(right))
        wander = np.where(left * right > 0, near**2 * (3.0 * far - near) / 6.0, 0.0)
        own = self.local_sd**2 * np.eye(octaves.shape[1])
        line = self.level_sd**2 + self.slope_sd**2 * left * right
        return GaussianCurve(mean, line + self.bend_sd**2 * wander + own)


@dataclass(frozen=True, slots=True)
class GaussianCurve:
    """A joint normal belief about the logarithm at every batch size.

    Attributes:
        mean: (lanes, arms).
        covariance: (lanes, arms, arms).
    """

    mean: Floats
    covariance: Floats

    @property
    def variance(self) -> Floats:
        """(lanes, arms), of every batch size alone."""
        return self.covariance.diagonal(axis1=1, axis2=2)

    def given(self, value: Floats, precision: Floats) -> GaussianCurve:
        """The belief after a noisy look at every batch size.

        Args:
            value: (lanes, arms), what was seen; anything where nothing was.
            precision: (lanes, arms), one over the variance of that look; 0 where nothing was.
        """
        root = np.sqrt(precision)
        weighed = root[:, :, None] * self.covariance
        inner = weighed * root[:, None, :]
        inner += _identity(root.shape[1])
        gain = np.linalg.solve(inner, weighed)
        surprise = root * np.where(precision > 0, value - self.mean, 0.0)
        turned = gain.transpose(0, 2, 1)
        mean = self.mean + (turned @ surprise[:, :, None])[:, :, 0]
        return GaussianCurve(mean, self.covariance - turned @ weighed)

    def copy(self) -> GaussianCurve:
        """With arrays of its own."""
        return GaussianCurve(self.mean.copy(), self.covariance.copy())

    def of(self, rows: Rows) -> GaussianCurve:
        """Only some lanes; to be read, not changed."""
        return GaussianCurve(self.mean[rows], self.covariance[rows])

    def replace(self, rows: Rows, other: GaussianCurve) -> None:
        """Put the lanes of ``other`` in the place of ``rows``."""
        self.mean[rows] = other.mean
        self.covariance[rows] = other.covariance


@cache
def _identity(size: int) -> Floats:
    identity = np.eye(size)
    identity.flags.writeable = False
    return identity


def octaves_from_default(lanes: JobBatch) -> Floats:
    """(lanes, arms): log2 of each batch size over the default one; 0 where padded."""
    octaves = np.log2(lanes.batch_sizes)
    default = np.take_along_axis(octaves, lanes.default[:, None], axis=1)
    return np.where(lanes.valid, octaves - default, 0.0)
