"""Forecast of whole runs: the cost, or the score by an objective, of each batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies._job_batch import at_arm
from joulery.jobs.policies.bayesian._gaussian import GaussianCurve, log_repeats
from joulery.objectives import UNBOUNDED, Totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._counter_rng import Floats
    from joulery.jobs.policies.bayesian._beliefs import BayesianBeliefs
    from joulery.jobs.policies.bayesian._bounds import BoundedRuns
    from joulery.objectives import Objective

# A ceiling leaves room for this share of an epoch, so that rounding never costs the last one,
SPARE_EPOCH = 0.2
# and for this many standard errors of an epoch's cost.
SPARE_ERRORS = 2.0
# Bounds of the slope: more epochs are never better, and the straight line through the logarithms
# holds only so far.
_ELASTICITIES = 0.1, 3.0
# Standard deviation of the tilt (log cost per octave from the best batch size) that a job may have
# taken unnoticed per training of the best alone, and octaves over which it grows; the former from
# 0.0006, 0.0009, 0.0012 and 0.002 by the regret of You et al.'s traces, on their GPUs and on drawn
# ones, with the optimum moving unseen and not.
_TILT_SD, _TILTED_OCTAVES = 0.001, 1.5
# Log cost above all others for padding, so that it is never run.
_PADDING = 30.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Whole runs of each batch size, at their best limits, on a logarithmic scale.

    Attributes:
        mean: (rows, arms), mean of the log cost of a run, or of its score.
        covariance: (rows, arms, arms), covariance of those means, once what is under way has ended.
        noise: (rows, arms), or (rows, 1) where all are the same, variance of one run's logarithm.
        variance: (rows, arms), both together: variance of one run whose mean is uncertain.
        elasticity: (rows, arms), per cent of score per per cent of epochs; 1 for costs.
        epochs: Log epochs to the target.
        epoch_cost: Log cost of one epoch, in joules.
        unproven: (rows,), whether no batch size has reached the target yet.
        best: (rows,), batch size to run apart from exploration.
        bounded: Runs under an objective with bounds; None for others.
        scores: (rows, arms, limits), log score of the median run under each limit, infinite where
            unknown, for objectives other than the cost that have no bounds; None for others.
    """

    mean: Floats
    covariance: Floats
    noise: Floats
    variance: Floats
    elasticity: Floats
    epochs: GaussianCurve
    epoch_cost: GaussianCurve
    unproven: NDArray[np.bool_]
    best: NDArray[np.int64]
    bounded: BoundedRuns | None = None
    scores: Floats | None = None

    def _spread(self, arm: NDArray[np.int64]) -> Floats:
        """(rows,), standard deviation of the logarithm of a run's cost."""
        at = at_arm(arm)
        return np.asarray(np.sqrt(self.variance[at]) / self.elasticity[at])

    def expected_cost(self, arm: NDArray[np.int64]) -> Floats:
        """(rows,), cost of a whole run in joules, whatever the objective."""
        at = at_arm(arm)
        mean = self.epochs.mean[at] + self.epoch_cost.mean[at]
        return np.exp(mean + 0.5 * self._spread(arm) ** 2)

    def ceiling(self, arm: NDArray[np.int64], stop: Floats, largest: Floats) -> Floats:
        """(rows,), cost in joules at which a run is to be stopped: whole epochs and a margin.

        Args:
            arm: (rows,), batch size.
            stop: (rows,), standard deviations above the mean; infinite for no stop.
            largest: (rows,), largest cost of the run.
        """
        at = at_arm(arm)
        epoch = np.exp(self.epoch_cost.mean[at])
        far = stop * self._spread(arm)
        largest = np.minimum(np.exp(self.epochs.mean[at] + far) * epoch, largest)
        spare = np.exp(SPARE_ERRORS * np.sqrt(self.epoch_cost.variance[at]))
        return np.asarray((np.ceil(largest / epoch) + SPARE_EPOCH) * epoch * spare)


def forecast(
    beliefs: BayesianBeliefs, rows: NDArray[np.int64], objective: Objective | None
) -> Forecast:
    """Combine the beliefs about epochs with those about the cost of an epoch."""
    epochs, cost = beliefs.epochs.of(rows), beliefs.cost.of(rows)
    covariance = epochs.covariance + cost.covariance
    noise = beliefs.evidence.noise_variance(rows)[:, None]
    # How often a run is repeated: one over its chance of success.
    log_limit = np.log(beliefs.jobs.max_epochs[rows] + 0.5)[:, None]
    repeats = log_repeats((log_limit - epochs.mean) / np.sqrt(epochs.variance + noise))
    valid, proven = beliefs.jobs.valid[rows], beliefs.evidence.runs[rows] > 0
    unproven = np.asarray(~proven.any(axis=1))
    # The proven batch sizes, or all where none is.
    eligible = (proven | unproven[:, None]) & valid
    bounded = scores = None
    elasticity = np.ones(valid.shape)
    if objective is None:
        mean = epochs.mean + cost.mean
    elif objective.bounds != UNBOUNDED:
        from joulery.jobs.policies.bayesian._bounds import BoundedRuns

        half = 0.5 * (covariance.diagonal(axis1=1, axis2=2) + noise)
        size = epochs.mean + repeats + half
        epoch = _believed_epochs(beliefs, rows)
        bounded = BoundedRuns.of(objective, size, eligible, epoch)
        charges = bounded.charges - half - repeats
        mean = np.where(np.isfinite(charges), charges, epochs.mean + cost.mean)
    else:
        scores, mean, elasticity = _scores(beliefs, rows, objective, eligible, noise)
        covariance = elasticity[:, :, None] * elasticity[:, None, :] * covariance
        noise = elasticity**2 * noise
    mean = mean + repeats
    mean = np.where(valid, mean, mean.max(axis=1)[:, None] + _PADDING)
    covariance = _foreseen(mean, covariance, beliefs.under_way[rows], noise)
    half = 0.5 * (covariance.diagonal(axis1=1, axis2=2) + noise)
    best = np.where(eligible, mean + half, np.inf).argmin(axis=1)
    if bounded is not None:
        best = np.where(bounded.known, bounded.best[0], best)
    tilt = _unnoticed_tilt(beliefs, rows, best)
    covariance = covariance + tilt[:, :, None] * tilt[:, None, :]
    variance = covariance.diagonal(axis1=1, axis2=2) + noise
    return Forecast(
        mean=mean,
        covariance=covariance,
        noise=noise,
        variance=variance,
        elasticity=elasticity,
        epochs=epochs,
        epoch_cost=cost,
        unproven=unproven,
        best=best,
        bounded=bounded,
        scores=scores,
    )


def _unnoticed_tilt(
    beliefs: BayesianBeliefs, rows: NDArray[np.int64], best: NDArray[np.int64]
) -> Floats:
    """(rows, arms), standard deviation of what trainings of the best have not shown of others.

    Its sign tells the sides apart: a job whose larger batch sizes became cheaper has dearer small
    ones, so that one training on either side shows both. Without this, a batch size that was once
    thought worse would never be tried again.
    """
    octaves = beliefs.jobs.octaves[rows]
    distance = np.where(beliefs.jobs.valid[rows], octaves - octaves[at_arm(best)][:, None], 0.0)
    age = np.where(distance != 0, beliefs.age[rows], np.inf).min(axis=1)
    sd = _TILT_SD * np.where(np.isfinite(age), age, 0.0)
    return np.asarray(sd[:, None] * np.clip(distance, -_TILTED_OCTAVES, _TILTED_OCTAVES))


def _foreseen(mean: Floats, covariance: Floats, under_way: Floats, noise: Floats) -> Floats:
    """The covariance once trainings under way have ended, whatever they will show.

    So that overlapping submissions do not all explore the same batch size.
    """
    if not np.count_nonzero(under_way):
        return covariance
    precision = under_way / noise
    busy = np.flatnonzero((precision > 0).any(axis=1))
    foreseen = covariance.copy()
    curve = GaussianCurve(mean[busy], covariance[busy])
    foreseen[busy] = curve.given(mean[busy], precision[busy]).covariance
    return foreseen


def _scores(
    beliefs: BayesianBeliefs,
    rows: NDArray[np.int64],
    objective: Objective,
    eligible: NDArray[np.bool_],
    noise: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Log score of the median run under every limit, under the best, and its slope by log epochs.

    Ratios refer to ``eligible`` (rows, arms); runs scatter by ``noise``.
    """
    epochs = beliefs.epochs.of(rows)
    spread = np.sqrt(epochs.variance + noise)
    log_seconds, log_watts = _believed_epochs(beliefs, rows)
    run_seconds = np.exp(log_seconds + epochs.mean[:, :, None])
    measured = eligible[:, :, None] & np.isfinite(run_seconds)
    reference = fastest_run(run_seconds, run_seconds * np.exp(log_watts), measured)

    def log_score(log_epochs: Floats) -> Floats:
        """(rows, arms, limits), of a run of that many epochs; infinite where unknown."""
        seconds = np.exp(log_seconds + log_epochs[:, :, None])
        value = objective.value(seconds, seconds * np.exp(log_watts), reference)
        value = np.maximum(value, np.finfo(float).tiny)
        return np.log(np.where(np.isfinite(seconds), value, np.inf))

    middle = log_score(epochs.mean)
    best = middle.min(axis=2)
    low, high = (log_score(epochs.mean + by).min(axis=2) for by in (-spread, spread))
    there = np.isfinite(best)
    rise = np.where(there, high, 1.0) - np.where(there, low, 0.0)
    slope = np.where(there, np.clip(rise / (2.0 * spread), *_ELASTICITIES), 1.0)
    # Before any limit was measured there is nothing to score; the cost stands in.
    return middle, np.where(there, best, epochs.mean + beliefs.cost.mean[rows]), slope


def fastest_run(seconds: Floats, joules: Floats, eligible: NDArray[np.bool_]) -> Totals:
    """Totals of each row's fastest eligible run, which ratios refer to; (rows, 1, 1) each."""
    flat = np.where(eligible, seconds, np.inf).reshape(len(seconds), -1)
    at = at_arm(flat.argmin(axis=1))
    return Totals(*(totals.reshape(flat.shape)[at][:, None, None] for totals in (seconds, joules)))


def _believed_epochs(beliefs: BayesianBeliefs, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """(rows, arms, limits): log seconds and log watts of an epoch, NaN where unknown."""
    profiles = beliefs.profiles
    log_seconds, log_watts = profiles.believed_of_all(rows)
    cost = log_seconds + np.log(profiles.cost_rate(rows, log_watts))
    least = np.where(np.isfinite(cost), cost, np.inf).min(axis=2)
    # Where nothing was measured, the curve over batch sizes gives the level.
    there = profiles.measured(rows) | ~np.isfinite(least)
    gap = np.where(there, 0.0, beliefs.cost.mean[rows] - least)
    return log_seconds + gap[:, :, None], log_watts
