"""Warm start: begin a job's beliefs from another GPU's results, or from an older version's.

Epochs to the target do not depend on the GPU (You et al., NSDI'23, section 7), so they carry over
to another type as they are; an older version of a job carries over with less certainty.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.jobs.policies._counter_rng import Floats
    from joulery.jobs.policies._job_batch import JobBatch
    from joulery.jobs.policies.bayesian._beliefs import BayesianBeliefs
    from joulery.jobs.policies.bayesian._gaussian import CurvePrior, GaussianCurve


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Epochs to the target that another job took, by batch size.

    Attributes:
        batch_sizes: Batch sizes of the other job; they need not be those of the new one.
        log_epochs: Natural logarithms of epochs to the target, one per batch size.
        log_sds: Standard deviation of each.
        shift_sd: Standard deviation of an error that all of them share: 0 for the same job on
            another GPU, 0.3 or so for an older version.
        shape_sd: Standard deviation of a further error of each.
    """

    batch_sizes: tuple[int, ...]
    log_epochs: tuple[float, ...]
    log_sds: tuple[float, ...]
    shift_sd: float = 0.0
    shape_sd: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.batch_sizes) == len(self.log_epochs) == len(self.log_sds):
            raise InvalidValueError(
                f"{len(self.batch_sizes)} batch sizes, {len(self.log_epochs)} epochs and "
                f"{len(self.log_sds)} errors do not belong together",
                remedy="give one of each per batch size",
            )
        for value in self.log_epochs:
            finite(value, "log epochs of a warm start")
        for value in (*self.log_sds, self.shift_sd, self.shape_sd):
            finite(value, "standard deviation of a warm start's log epochs", minimum=0.0)

    @classmethod
    def of(cls, beliefs: BayesianBeliefs) -> WarmStart:
        """The epochs that the trainings of the first job have shown."""
        value, precision = beliefs.evidence.observations(np.zeros(1, dtype=np.int64))
        trained_arms = np.flatnonzero((precision[0] > 0) & beliefs.jobs.valid[0])
        return cls(
            batch_sizes=tuple(int(size) for size in beliefs.jobs.batch_sizes[0, trained_arms]),
            log_epochs=tuple(value[0, trained_arms].tolist()),
            log_sds=tuple((1.0 / np.sqrt(precision[0, trained_arms])).tolist()),
        )

    def extended(self, other: WarmStart) -> WarmStart:
        """The same with the batch sizes of ``other`` that this one lacks."""
        more = [at for at, size in enumerate(other.batch_sizes) if size not in self.batch_sizes]
        error = other.shift_sd**2 + other.shape_sd**2
        return dataclasses.replace(
            self,
            batch_sizes=self.batch_sizes + tuple(other.batch_sizes[at] for at in more),
            log_epochs=self.log_epochs + tuple(other.log_epochs[at] for at in more),
            log_sds=self.log_sds + tuple(math.sqrt(other.log_sds[at] ** 2 + error) for at in more),
        )


def warm_started_curve(prior: CurvePrior, jobs: JobBatch, start: WarmStart | None) -> GaussianCurve:
    """Log epochs that are believed before the first training."""
    octaves = jobs.octaves
    curve = prior.curve(octaves)
    if start is not None and start.batch_sizes:
        for job, default in enumerate(jobs.default):
            size = float(jobs.batch_sizes[job, default])
            mean, covariance = _conditioned(prior, octaves[job], size, start)
            curve.mean[job], curve.covariance[job] = mean, covariance
    return curve


def _conditioned(
    prior: CurvePrior, octaves: Floats, default: float, start: WarmStart
) -> tuple[Floats, Floats]:
    """One job's curve, given epochs at batch sizes that may not be its own."""
    theirs = np.log2(np.array(start.batch_sizes, dtype=float) / default)
    both = prior.curve(np.concatenate([octaves, theirs])[None, :])
    count = len(octaves)
    mean, covariance = both.mean[0], both.covariance[0].copy()
    # The same batch size is the same size: its own deviation from the smooth curve carries over.
    same = np.abs(octaves[:, None] - theirs[None, :]) < 1e-9
    covariance[:count, count:] += np.where(same, prior.local_sd**2, 0.0)
    covariance[count:, :count] = covariance[:count, count:].T
    sds = np.array(start.log_sds)
    error = np.diag(sds**2 + start.shape_sd**2) + start.shift_sd**2
    observed = covariance[count:, count:] + error
    gain = np.linalg.solve(observed, covariance[count:, :count]).T
    residual = np.array(start.log_epochs) - mean[count:]
    return (
        mean[:count] + gain @ residual,
        covariance[:count, :count] - gain @ covariance[count:, :count],
    )
