"""Start a job's beliefs from what others have shown: another GPU, an older version, the team.

Epochs to the target do not hang on the GPU (You et al., NSDI'23, section 7), so they carry over to
another type as they are; an older version of a job carries over with doubt; the jobs of a team tell
what to expect of the next one before any of it has run.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies.bayesian.curve import octaves_from_default
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.jobs.policies.bayesian.beliefs import BayesianBeliefs
    from joulery.jobs.policies.bayesian.curve import CurvePrior, GaussianCurve
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.jobs.policies.job_batch import JobBatch

# A team's jobs weigh as much as what is expected of any job once there are this many of them.
_JOBS_TO_CONVINCE = 4.0
_FEWEST_SIZES = 3  # a level, a slope and a bend


@dataclass(frozen=True, slots=True)
class Inheritance:
    """Epochs to the target that another job took, by batch size.

    Attributes:
        batch_sizes: Of the other job; they need not be those of the heir.
        log_epochs: Natural logarithms of epochs to the target, one per batch size.
        log_sds: How unsure each is.
        shift_sd: How far all of them together may be off: 0 for the same job on another GPU, 0.3
            or so for an older version.
        shape_sd: How far each may be off on its own besides.
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
            finite(value, "inherited log epochs")
        for value in (*self.log_sds, self.shift_sd, self.shape_sd):
            finite(value, "standard deviation of inherited log epochs", minimum=0.0)

    @classmethod
    def of(cls, beliefs: BayesianBeliefs, lane: int) -> Inheritance:
        """What the trainings of one job have shown, to hand on as it is."""
        row = np.array([lane])
        value, precision = beliefs.evidence.sites(row)
        seen = np.flatnonzero((precision[0] > 0) & beliefs.lanes.valid[lane])
        return cls(
            batch_sizes=tuple(int(size) for size in beliefs.lanes.batch_sizes[lane, seen]),
            log_epochs=tuple(value[0, seen].tolist()),
            log_sds=tuple((1.0 / np.sqrt(precision[0, seen])).tolist()),
        )

    def beside(self, other: Inheritance) -> Inheritance:
        """With what ``other`` tells of batch sizes that this one tells nothing of."""
        more = [at for at, size in enumerate(other.batch_sizes) if size not in self.batch_sizes]
        doubt = other.shift_sd**2 + other.shape_sd**2
        return dataclasses.replace(
            self,
            batch_sizes=self.batch_sizes + tuple(other.batch_sizes[at] for at in more),
            log_epochs=self.log_epochs + tuple(other.log_epochs[at] for at in more),
            log_sds=self.log_sds + tuple(math.sqrt(other.log_sds[at] ** 2 + doubt) for at in more),
        )

    def doubted(self, shift_sd: float, shape_sd: float) -> Inheritance:
        """The same for a job that has changed since."""
        return dataclasses.replace(self, shift_sd=shift_sd, shape_sd=shape_sd)


def inherit(
    prior: CurvePrior, lanes: JobBatch, inheritances: Sequence[Inheritance | None]
) -> GaussianCurve:
    """Log epochs that are believed before the first training, one inheritance or none per lane."""
    octaves = octaves_from_default(lanes)
    curve = prior.curve(octaves)
    for lane, inheritance in enumerate(inheritances):
        if inheritance is not None and inheritance.batch_sizes:
            mean, covariance = _heir(prior, octaves[lane], _default_size(lanes, lane), inheritance)
            curve.mean[lane], curve.covariance[lane] = mean, covariance
    return curve


def _heir(
    prior: CurvePrior, octaves: Floats, default: float, inheritance: Inheritance
) -> tuple[Floats, Floats]:
    """One lane's curve, given epochs at batch sizes that may not be its own."""
    theirs = np.log2(np.array(inheritance.batch_sizes, dtype=float) / default)
    both = prior.curve(np.concatenate([octaves, theirs])[None, :])
    count = len(octaves)
    mean, covariance = both.mean[0], both.covariance[0].copy()
    # The same batch size is the same size: its own deviation from the smooth curve carries over.
    same = np.abs(octaves[:, None] - theirs[None, :]) < 1e-9
    covariance[:count, count:] += np.where(same, prior.local_sd**2, 0.0)
    covariance[count:, :count] = covariance[:count, count:].T
    sds = np.array(inheritance.log_sds)
    error = np.diag(sds**2 + inheritance.shape_sd**2) + inheritance.shift_sd**2
    seen = covariance[count:, count:] + error
    gain = np.linalg.solve(seen, covariance[count:, :count]).T
    surprise = np.array(inheritance.log_epochs) - mean[count:]
    return (
        mean[:count] + gain @ surprise,
        covariance[:count, :count] - gain @ covariance[count:, :count],
    )


def learn_prior(prior: CurvePrior, jobs: Sequence[tuple[int, Inheritance]]) -> CurvePrior:
    """What to expect of the next job of a team.

    Each job gives a level, a slope and a bend at its default batch size; their means and spreads
    over the team are mixed with ``prior``, the more the more jobs there are. Jobs with fewer than
    three batch sizes say too little about a bend and are left out.

    Args:
        prior: What is expected of any job.
        jobs: Default batch size and epochs of each job of the team.
    """
    fits = np.array(
        [_fit(default, job) for default, job in jobs if len(job.batch_sizes) >= _FEWEST_SIZES]
    )
    if not len(fits):
        return prior
    share = len(fits) / (len(fits) + _JOBS_TO_CONVINCE)
    mean, variance = fits.mean(axis=0), fits.var(axis=0)

    def mixed(of_any: float, of_team: float) -> float:
        return float((1.0 - share) * of_any + share * of_team)

    def spread(of_any: float, variance_of_team: float) -> float:
        return float(np.sqrt(mixed(of_any**2, variance_of_team)))

    return dataclasses.replace(
        prior,
        level=mixed(prior.level, mean[0]),
        level_sd=spread(prior.level_sd, variance[0]),
        slope=mixed(prior.slope, mean[1]),
        slope_sd=spread(prior.slope_sd, variance[1]),
        bend=mixed(prior.bend, mean[2]),
    )


def _fit(default: int, job: Inheritance) -> Floats:
    """Level, slope and bend at the default batch size, by least squares."""
    octaves = np.log2(np.array(job.batch_sizes, dtype=float) / default)
    design = np.stack([np.ones_like(octaves), octaves, 0.5 * octaves**2], axis=1)
    return np.asarray(np.linalg.lstsq(design, np.array(job.log_epochs), rcond=None)[0])


def _default_size(lanes: JobBatch, lane: int) -> float:
    return float(lanes.batch_sizes[lane, lanes.default[lane]])
