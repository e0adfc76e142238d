"""What a whole run of each batch size is believed to cost, or to score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.recurring.bounded import BoundedRuns, bound_form
from joulery.recurring.curve import Curve
from joulery.recurring.normal import survival
from joulery.recurring.scoring import Runs, graded_score, score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.recurring.draws import Floats
    from joulery.recurring.joulery_beliefs import JouleryBeliefs

# A ceiling leaves room for this share of an epoch, so that rounding never costs the last one,
_SPARE_EPOCH = 0.2
# and for this many standard errors of what an epoch costs.
_SPARE_ERRORS = 2.0
# More epochs are never better, whatever rounding says; and beyond a bound, where scores rise
# steeply, a straight line through the logarithms holds only so far.
_ELASTICITIES = 0.1, 3.0
# Stands in for batch sizes that only pad a row: too dear ever to be run.
_PADDING = 30.0
# No batch size is believed to fail more often than this, so that it can come back one day.
_LEAST_CHANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whole runs of each batch size, at their best limits, on a logarithmic scale.

    Attributes:
        mean: (rows, arms), of the logarithm of what a run costs, or of its score.
        covariance: (rows, arms, arms), of those means, once what is under way has ended.
        noise: (rows, arms), variance of the logarithm of one run.
        elasticity: (rows, arms), per cent of score per per cent of epochs: 1 for costs.
        log_epochs: (rows, arms), mean of the logarithm of epochs to the target.
        log_epoch_cost: (rows, arms), of the running cost of one epoch, in joules.
        epoch_cost_sd: (rows, arms), how unsure that is.
        best: (rows,), the batch size to run but for what others may teach.
        bounded: Runs under an objective that has a bound; None for others.
    """

    mean: Floats
    covariance: Floats
    noise: Floats
    elasticity: Floats
    log_epochs: Floats
    log_epoch_cost: Floats
    epoch_cost_sd: Floats
    best: NDArray[np.int64]
    bounded: BoundedRuns | None = None

    def _spread(self) -> Floats:
        """(rows, arms), standard deviation of the logarithm of a run's running cost."""
        own = np.diagonal(self.covariance, axis1=1, axis2=2)
        return np.asarray(np.sqrt(own + self.noise) / self.elasticity)

    def expected_cost(self) -> Floats:
        """(rows, arms), running cost of a whole run in joules, whatever the objective."""
        return np.exp(self.log_epochs + self.log_epoch_cost + 0.5 * self._spread() ** 2)

    def ceiling(self, arm: NDArray[np.int64], stop: Floats, most: Floats) -> Floats:
        """(rows,), running cost in joules at which a run is to be stopped: whole epochs and a bit.

        Args:
            arm: One per row.
            stop: In standard deviations above the mean; infinite for not at all.
            most: What it may cost at most.
        """
        at = np.arange(len(arm)), arm
        epoch = np.exp(self.log_epoch_cost[at])
        far = np.where(np.isfinite(stop), stop, 0.0) * self._spread()[at]
        cost = np.where(np.isfinite(stop), np.exp(self.log_epochs[at] + far) * epoch, np.inf)
        cost = np.minimum(cost, most)
        whole = np.ceil(np.where(np.isfinite(cost), cost, 0.0) / epoch)
        spare = np.exp(_SPARE_ERRORS * self.epoch_cost_sd[at])
        return np.where(np.isfinite(cost), (whole + _SPARE_EPOCH) * epoch * spare, np.inf)


def outlook(
    beliefs: JouleryBeliefs, rows: NDArray[np.int64], objective: Objective | None
) -> Outlook:
    """Put together what is believed of epochs and of what an epoch costs."""
    epochs, cost = beliefs.epochs.of(rows), beliefs.cost.of(rows)
    covariance = epochs.covariance + cost.covariance
    noise = np.broadcast_to(beliefs.evidence.noise_variance(rows)[:, None], epochs.mean.shape)
    repeats = _log_repeats(beliefs, rows, noise)
    elasticity, bounded = np.ones(epochs.mean.shape), None
    if objective is None:
        mean = epochs.mean + cost.mean
    elif (form := bound_form(objective)) is not None:
        half = 0.5 * (np.diagonal(covariance, axis1=1, axis2=2) + noise)
        size, able = epochs.mean + repeats + half, _able(beliefs, rows)
        bounded = BoundedRuns.of(form, size, able, _believed_epochs(beliefs, rows))
        charges = bounded.charges() - half - repeats
        mean = np.where(np.isfinite(charges), charges, epochs.mean + cost.mean)
    else:
        mean, elasticity = _scores(beliefs, rows, objective, noise)
        covariance = elasticity[:, :, None] * elasticity[:, None, :] * covariance
        noise = elasticity**2 * noise
    mean = mean + repeats
    mean = np.where(beliefs.lanes.valid[rows], mean, mean.max(axis=1)[:, None] + _PADDING)
    covariance = _foreseen(mean, covariance, beliefs.under_way[rows] / noise)
    return Outlook(
        mean=mean,
        covariance=covariance,
        noise=noise,
        elasticity=elasticity,
        log_epochs=epochs.mean,
        log_epoch_cost=cost.mean,
        epoch_cost_sd=np.sqrt(cost.variance),
        best=_best(mean, covariance, noise, _able(beliefs, rows), bounded),
        bounded=bounded,
    )


def _able(beliefs: JouleryBeliefs, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(rows, arms), the proven batch sizes; all, where none is."""
    proven = beliefs.proven(rows)
    return np.asarray((proven | ~proven.any(axis=1, keepdims=True)) & beliefs.lanes.valid[rows])


def _log_repeats(beliefs: JouleryBeliefs, rows: NDArray[np.int64], noise: Floats) -> Floats:
    """A run that fails has to be repeated: one over the chance of success is how often it is."""
    epochs = beliefs.epochs.of(rows)
    most = np.log(beliefs.lanes.max_epochs[rows] + 0.5)[:, None]
    chance = 1.0 - survival((most - epochs.mean) / np.sqrt(epochs.variance + noise))
    return np.asarray(-np.log(np.maximum(chance, _LEAST_CHANCE)))


def _best(
    mean: Floats,
    covariance: Floats,
    noise: Floats,
    able: NDArray[np.bool_],
    bounded: BoundedRuns | None,
) -> NDArray[np.int64]:
    expected = mean + 0.5 * (np.diagonal(covariance, axis1=1, axis2=2) + noise)
    cheapest = np.asarray(np.where(able, expected, np.inf).argmin(axis=1))
    if bounded is None:
        return cheapest
    known = np.isfinite(bounded.worth).any(axis=(1, 2))
    return np.where(known, bounded.best()[0], cheapest)


def _foreseen(mean: Floats, covariance: Floats, precision: Floats) -> Floats:
    """The covariance once trainings under way have ended, whatever they will tell.

    So that overlapping submissions do not all explore the same batch size.
    """
    busy = np.flatnonzero((precision > 0).any(axis=1))
    if not len(busy):
        return covariance
    foreseen = covariance.copy()
    curve = Curve(mean[busy], covariance[busy])
    foreseen[busy] = curve.given(mean[busy], precision[busy]).covariance
    return foreseen


def _scores(
    beliefs: JouleryBeliefs, rows: NDArray[np.int64], objective: Objective, noise: Floats
) -> tuple[Floats, Floats]:
    """Log score of the median run at its best limit, and its slope against log epochs."""
    epochs = beliefs.epochs.of(rows)
    spread = np.sqrt(epochs.variance + noise)
    low, middle, high = (
        limit_scores(beliefs, rows, objective, epochs.mean + step * spread).min(axis=2)
        for step in (-1.0, 0.0, 1.0)
    )
    known = np.isfinite(middle)
    rise = np.where(known, high, 1.0) - np.where(known, low, 0.0)
    slope = np.where(known, np.clip(rise / (2.0 * spread), *_ELASTICITIES), 1.0)
    # Before any limit was measured there is nothing to score; the cost stands in.
    return np.where(known, middle, epochs.mean + beliefs.cost.mean[rows]), slope


def limit_scores(
    beliefs: JouleryBeliefs,
    rows: NDArray[np.int64],
    objective: Objective,
    log_epochs: Floats,
) -> Floats:
    """(rows, arms, limits), log score of a run of that many epochs; infinite where ruled out."""
    log_seconds, log_watts, _ = _believed_epochs(beliefs, rows)
    seconds = np.exp(log_seconds + log_epochs[:, :, None])
    joules = seconds * np.exp(log_watts)
    # Ratios refer to the fastest among the proven, as `joulery.objectives.choose` does, and to what
    # is believed of it, not to the luck of the runs that are scored.
    usual = np.exp(log_seconds + beliefs.epochs.mean[rows][:, :, None])
    able = _able(beliefs, rows)[:, :, None] & np.isfinite(usual)
    flat = np.where(able, usual, np.inf).reshape(len(rows), -1)
    own, fastest = np.arange(len(rows)), flat.argmin(axis=1)
    reference = flat[own, fastest][:, None, None]
    watts = np.exp(log_watts).reshape(len(rows), -1)[own, fastest][:, None, None]
    runs = Runs(seconds, joules, reference, reference * watts)
    exact = score(objective, runs)
    # Limits that break a bound are out, unless all of a batch size's do; then the least bad.
    within = (np.isfinite(exact) & np.isfinite(seconds)).any(axis=2, keepdims=True)
    scores = np.where(within, exact, graded_score(objective, runs))
    return np.log(np.where(np.isfinite(seconds), scores, np.inf))


def _believed_epochs(
    beliefs: JouleryBeliefs, rows: NDArray[np.int64]
) -> tuple[Floats, Floats, Floats]:
    """(rows, arms, limits): log seconds and watts of an epoch, NaN where unknown; variances."""
    arms = beliefs.lanes.valid.shape[1]
    lane, arm = np.repeat(rows, arms), np.tile(np.arange(arms), len(rows))
    profiles = beliefs.profiles
    log_seconds, log_watts, variance = profiles.believed(lane, arm)
    cost = log_seconds + np.log(profiles.rate(lane, log_watts))
    least = np.where(np.isfinite(cost), cost, np.inf).min(axis=1)
    # Where nothing was measured, the curve over batch sizes tells the level.
    gap = np.where(
        profiles.measured(rows).ravel() | ~np.isfinite(least),
        0.0,
        beliefs.cost.mean[lane, arm] - least,
    )
    shape = (len(rows), arms, log_watts.shape[1])
    return (
        (log_seconds + gap[:, None]).reshape(shape),
        log_watts.reshape(shape),
        variance.reshape(shape),
    )
