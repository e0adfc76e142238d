"""What a whole run of each batch size is believed to cost, or to score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.bayesian.bounded import BoundedRuns, bound_form
from joulery.jobs.policies.bayesian.curve import GaussianCurve
from joulery.jobs.policies.bayesian.normal import log_repeats
from joulery.jobs.policies.bayesian.scoring import Runs, graded_score, score
from joulery.jobs.policies.job_batch import own_places, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.bayesian.beliefs import BayesianBeliefs
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.jobs.policies.job_batch import Places, Rows
    from joulery.objectives import Objective

# A ceiling leaves room for this share of an epoch, so that rounding never costs the last one,
SPARE_EPOCH = 0.2
# and for this many standard errors of what an epoch costs.
SPARE_ERRORS = 2.0
# More epochs are never better, whatever rounding says; and beyond a bound, where scores rise
# steeply, a straight line through the logarithms holds only so far.
_ELASTICITIES = 0.1, 3.0
# Stands in for batch sizes that only pad a row: too dear ever to be run.
_PADDING = 30.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Whole runs of each batch size, at their best limits, on a logarithmic scale.

    Attributes:
        mean: (rows, arms), of the logarithm of what a run costs, or of its score.
        covariance: (rows, arms, arms), of those means, once what is under way has ended.
        noise: (rows, arms), or (rows, 1) where it is all the same, variance of the logarithm of
            one run.
        variance: (rows, arms), both together: of the logarithm of one run whose mean is unsure.
        elasticity: (rows, arms), per cent of score per per cent of epochs; None for costs: 1.
        epochs: Logarithm of epochs to the target.
        epoch_cost: Logarithm of the running cost of one epoch, in joules.
        unproven: (rows,), whether no batch size has reached the target yet.
        best: (rows,), the batch size to run but for what others may teach.
        bounded: Runs under an objective that has a bound; None for others.
        scores: (rows, arms, limits), log score of the median run under each limit, infinite where
            ruled out, for objectives other than the cost that have no bound; None for others.
    """

    mean: Floats
    covariance: Floats
    noise: Floats
    variance: Floats
    elasticity: Floats | None
    epochs: GaussianCurve
    epoch_cost: GaussianCurve
    unproven: NDArray[np.bool_]
    best: NDArray[np.int64]
    bounded: BoundedRuns | None = None
    scores: Floats | None = None

    def _spread(self, at: Places) -> Floats:
        """(rows,), standard deviation of the logarithm of a run's running cost."""
        spread = np.sqrt(self.variance[at])
        return spread if self.elasticity is None else np.asarray(spread / self.elasticity[at])

    def expected_cost(self, arm: NDArray[np.int64]) -> Floats:
        """(rows,), running cost of a whole run in joules, whatever the objective."""
        at = own_places(arm)
        mean = self.epochs.mean[at] + self.epoch_cost.mean[at]
        return np.exp(mean + 0.5 * self._spread(at) ** 2)

    def ceiling(self, arm: NDArray[np.int64], stop: Floats | None, most: Floats) -> Floats:
        """(rows,), running cost in joules at which a run is to be stopped: whole epochs and a bit.

        Args:
            arm: One per row.
            stop: In standard deviations above the mean, infinite for not at all; None if all are.
            most: What it may cost at most.
        """
        at = own_places(arm)
        epoch = np.exp(self.epoch_cost.mean[at])
        if stop is not None:
            far = stop * self._spread(at)
            most = np.minimum(np.exp(self.epochs.mean[at] + far) * epoch, most)
        spare = np.exp(SPARE_ERRORS * np.sqrt(self.epoch_cost.variance[at]))
        return np.asarray((np.ceil(most / epoch) + SPARE_EPOCH) * epoch * spare)


def forecast(
    beliefs: BayesianBeliefs, rows: NDArray[np.int64], objective: Objective | None
) -> Forecast:
    """Put together what is believed of epochs and of what an epoch costs."""
    at = rows_of(rows)
    epochs, cost = beliefs.epochs.of(at), beliefs.cost.of(at)
    covariance = epochs.covariance + cost.covariance
    noise = beliefs.evidence.noise_variance(at)[:, None]
    repeats = _log_repeats(epochs, beliefs.lanes.max_epochs[at], noise)
    able, unproven = _able(beliefs, at)
    elasticity = bounded = scores = None
    if objective is None:
        mean = epochs.mean + cost.mean
    elif (form := bound_form(objective)) is not None:
        half = 0.5 * (covariance.diagonal(axis1=1, axis2=2) + noise)
        size = epochs.mean + repeats + half
        epoch, valid = _believed_epochs(beliefs, at), beliefs.lanes.valid[at]
        bounded = BoundedRuns.of(form, size, able, epoch, valid)
        charges = bounded.charges - half - repeats
        mean = np.where(np.isfinite(charges), charges, epochs.mean + cost.mean)
    else:
        scores, mean, elasticity = _scores(beliefs, at, objective, (able, noise))
        covariance = elasticity[:, :, None] * elasticity[:, None, :] * covariance
        noise = elasticity**2 * noise
    mean = mean + repeats
    valid = beliefs.lanes.valid[at]
    if np.count_nonzero(valid) < valid.size:
        mean = np.where(valid, mean, mean.max(axis=1)[:, None] + _PADDING)
    covariance = _foreseen(mean, covariance, beliefs.under_way[at], noise)
    variance = covariance.diagonal(axis1=1, axis2=2) + noise
    best = np.where(able, mean + 0.5 * variance, np.inf).argmin(axis=1)
    if bounded is not None:
        best = np.where(bounded.known, bounded.best[0], best)
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


def _able(beliefs: BayesianBeliefs, rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(rows, arms), the proven batch sizes; all, where none is; and (rows,) where none is."""
    proven = beliefs.proven(rows)
    unproven = np.asarray(~proven.any(axis=1))
    if not np.count_nonzero(unproven):
        return proven, unproven
    return np.asarray((proven | unproven[:, None]) & beliefs.lanes.valid[rows]), unproven


def _log_repeats(epochs: GaussianCurve, max_epochs: Floats, noise: Floats) -> Floats:
    """A run that fails has to be repeated: one over the chance of success is how often it is."""
    most = np.log(max_epochs + 0.5)[:, None]
    return log_repeats((most - epochs.mean) / np.sqrt(epochs.variance + noise))


def _foreseen(mean: Floats, covariance: Floats, under_way: Floats, noise: Floats) -> Floats:
    """The covariance once trainings under way have ended, whatever they will tell.

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
    rows: Rows,
    objective: Objective,
    known: tuple[NDArray[np.bool_], Floats],
) -> tuple[Floats, Floats, Floats]:
    """Log score of the median run under every limit, under the best, and its slope by log epochs.

    Args:
        beliefs: Of all lanes.
        rows: Some of them.
        objective: What to minimise.
        known: (rows, arms), batch sizes that ratios may refer to, and the scatter of runs.
    """
    able, noise = known
    epochs = beliefs.epochs.of(rows)
    spread = np.sqrt(epochs.variance + noise)
    figures = _figures(_believed_epochs(beliefs, rows), epochs.mean, able)
    middle = _limit_scores(objective, figures, epochs.mean)
    low, best, high = (
        scores.min(axis=2)
        for scores in (
            _limit_scores(objective, figures, epochs.mean - spread),
            middle,
            _limit_scores(objective, figures, epochs.mean + spread),
        )
    )
    there = np.isfinite(best)
    rise = np.where(there, high, 1.0) - np.where(there, low, 0.0)
    slope = np.where(there, np.clip(rise / (2.0 * spread), *_ELASTICITIES), 1.0)
    # Before any limit was measured there is nothing to score; the cost stands in.
    return middle, np.where(there, best, epochs.mean + beliefs.cost.mean[rows]), slope


def _figures(
    epoch: tuple[Floats, Floats, Floats], log_epochs: Floats, able: NDArray[np.bool_]
) -> Runs:
    """Log seconds and watts of an epoch, and seconds and joules of the run that ratios refer to.

    That is the fastest among the proven, as in `joulery.objectives.choose`, and what is believed of
    it, not the luck of the runs that are scored.
    """
    log_seconds, log_watts, _ = epoch
    watts = np.exp(log_watts)
    usual = np.exp(log_seconds + log_epochs[:, :, None])
    able = able[:, :, None] & np.isfinite(usual)
    flat = np.where(able, usual, np.inf).reshape(len(usual), -1)
    fastest = own_places(flat.argmin(axis=1))
    reference = flat[fastest][:, None, None]
    return Runs(
        log_seconds, watts, reference, reference * watts.reshape(flat.shape)[fastest][:, None, None]
    )


def _limit_scores(objective: Objective, figures: Runs, log_epochs: Floats) -> Floats:
    """(rows, arms, limits), log score of a run of that many epochs; infinite where ruled out."""
    seconds = np.exp(figures.seconds + log_epochs[:, :, None])
    runs = Runs(
        seconds, seconds * figures.joules, figures.reference_seconds, figures.reference_joules
    )
    exact = score(objective, runs)
    known = np.isfinite(seconds)
    # Limits that break a bound are out, unless all of a batch size's do; then the least bad.
    within = (np.isfinite(exact) & known).any(axis=2, keepdims=True)
    scores = np.where(within, exact, graded_score(objective, runs))
    return np.log(np.where(known, scores, np.inf))


def _believed_epochs(beliefs: BayesianBeliefs, rows: Rows) -> tuple[Floats, Floats, Floats]:
    """(rows, arms, limits): log seconds and watts of an epoch, NaN where unknown; variances."""
    profiles = beliefs.profiles
    log_seconds, log_watts, variance = profiles.believed_of_all(rows)
    cost = log_seconds + np.log(profiles.rate(rows, log_watts))
    least = np.where(np.isfinite(cost), cost, np.inf).min(axis=2)
    # Where nothing was measured, the curve over batch sizes tells the level.
    there = profiles.measured(rows) | ~np.isfinite(least)
    gap = np.where(there, 0.0, beliefs.cost.mean[rows] - least)
    return log_seconds + gap[:, :, None], log_watts, variance
