"""Objectives with bounds: scores of whole runs.

"The least energy within 5 % of the fastest" is no cost that could be added up: which settings are
allowed depends on the fastest of all, which has to be found too. Bounds apply to the expected run
of a setting, not to every single run. A setting beyond a bound is not ruled out but scores steeply
worse, so that uncertain settings can be compared, and a bound that nothing meets still has a best
setting. Scores are logarithms and grow in proportion to the epochs of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies._job_batch import at_arm
from joulery.jobs.policies.bayesian._forecast import fastest_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._counter_rng import Floats
    from joulery.objectives import Objective

# Per cent of score per per cent beyond the bound. A choice is 1 % too slow only where that saves a
# quarter of the energy: no power limit does, and hardly another batch size.
STEEPNESS = 30.0
# A run that is made to learn may be beyond the bound; it is charged for that, but mildly.
_TRIAL_STEEPNESS = 1.0
# Whatever is tried instead of the best is charged at least this much more than the best.
_LEAST_CHARGE = 0.01
# The time that a bound refers to is measured again until it is known this well.
_KNOWN_REFERENCE_SD = 0.004
# Limits whose times differ by fewer standard errors than this may be equally fast.
_EQUALLY_FAST = 2.0


@dataclass(frozen=True, slots=True)
class BoundedRuns:
    """Runs of every batch size and limit under an objective with bounds, on a log scale.

    Attributes:
        size: (rows, arms), expected epochs of a run.
        seconds: (rows, arms, limits), time of an epoch; 0 where unknown.
        excess: (rows, arms, limits), excess of the expected run over the bounds.
        fastest: (rows, arms), time of an epoch at the fastest limit.
        eligible: (rows, arms), batch sizes that may be chosen, the fastest setting among them.
        slowdown: Longest time over the fastest setting's.
        scores: (rows, arms, limits), score of the expected run; infinite where unknown.
        best: Batch size and limit to hold, (rows,) each.
        charges: (rows, arms), score that a plan charges for running each batch size.
    """

    size: Floats
    seconds: Floats
    excess: Floats
    fastest: Floats
    eligible: NDArray[np.bool_]
    slowdown: float
    scores: Floats
    best: tuple[NDArray[np.int64], NDArray[np.int64]]
    charges: Floats

    @classmethod
    def of(
        cls,
        objective: Objective,
        size: Floats,
        eligible: NDArray[np.bool_],
        epoch: tuple[Floats, Floats],
    ) -> BoundedRuns:
        """Score all runs; ``epoch`` has log seconds and log watts of epochs, NaN where unknown."""
        log_seconds, log_watts = epoch
        bounds = objective.bounds
        measured = np.isfinite(log_seconds)
        seconds, watts = np.where(measured, log_seconds, 0.0), np.where(measured, log_watts, 0.0)
        fastest = np.where(measured, log_seconds, np.inf).min(axis=2)
        slowdown = math.inf if bounds.max_slowdown is None else math.log1p(bounds.max_slowdown)
        shortest = np.where(eligible, size + fastest, np.inf).min(axis=1)
        longest = np.minimum(_log_bound(bounds.deadline_seconds), slowdown + shortest)
        excess = seconds - longest[:, None, None]
        if bounds.max_joules is not None:
            excess = np.maximum(excess, seconds + watts - _log_bound(bounds.max_joules))
        excess = size[:, :, None] + excess
        value = _values(objective, size, (seconds, watts, measured), eligible)
        beyond = np.maximum(0.0, excess)
        plain = size[:, :, None] + value
        scores = plain + STEEPNESS * beyond
        best = _best_setting(scores, eligible)
        return cls(
            size=size,
            seconds=seconds,
            excess=excess,
            fastest=fastest,
            eligible=eligible,
            slowdown=slowdown,
            scores=scores,
            best=best,
            charges=_charges(scores, plain + _TRIAL_STEEPNESS * beyond, best[0]),
        )

    @property
    def known(self) -> NDArray[np.bool_]:
        """(rows,), whether anything can be scored."""
        return np.asarray(np.isfinite(self.scores).any(axis=(1, 2)))

    def limits(self, arm: NDArray[np.int64], variance: Floats) -> tuple[Floats, Floats]:
        """(rows, limits): score of one batch size's limits, NaN where unknown; its variance.

        Near its bound a score depends steeply on the time of an epoch, whose log has ``variance``
        (rows, limits), so limits near it are worth measuring again.
        """
        scores, excess = self.scores[at_arm(arm)], self.excess[at_arm(arm)]
        sd = np.sqrt(np.minimum(variance, 1.0))
        steep = STEEPNESS * (np.maximum(0.0, excess + sd) - np.maximum(0.0, excess - sd)) / 2.0
        return np.where(np.isfinite(scores), scores, np.nan), variance + steep**2

    def uncertain_reference(self, arm: NDArray[np.int64], variance: Floats) -> NDArray[np.bool_]:
        """(rows, limits), limits whose time is not known well enough for a bound that refers to it.

        ``variance`` (rows, limits) is that of the log seconds.
        """
        if math.isinf(self.slowdown):
            return np.zeros(variance.shape, dtype=bool)
        at = at_arm(arm)
        fastest = np.where(self.eligible, self.size + self.fastest, np.inf).argmin(axis=1)
        sd = np.sqrt(variance)
        measured = np.isfinite(self.scores[at]) & np.isfinite(sd)
        least = np.where(measured.any(axis=1), self.fastest[at], 0.0)[:, None]
        gap = np.where(measured, self.seconds[at], 0.0) - least
        near = measured & (gap <= _EQUALLY_FAST * np.where(measured, sd, 0.0))
        total = np.where(near, 1.0 / variance, 0.0).sum(axis=1)
        refers = (arm == fastest) & (total < 1.0 / _KNOWN_REFERENCE_SD**2)
        return np.asarray(near & refers[:, None])


def _log_bound(bound: float | None) -> float:
    return math.inf if bound is None else math.log(max(bound, np.finfo(float).tiny))


def _values(
    objective: Objective,
    size: Floats,
    epoch: tuple[Floats, Floats, NDArray[np.bool_]],
    eligible: NDArray[np.bool_],
) -> Floats:
    """(rows, arms, limits), log of the expected run's value per epoch; infinite where unknown."""
    log_seconds, log_watts, measured = epoch
    seconds = np.exp(size[:, :, None] + log_seconds)
    joules = seconds * np.exp(log_watts)
    fastest = fastest_run(seconds, joules, measured & eligible[:, :, None])
    value = objective.value(seconds, joules, fastest)
    logs = np.log(np.maximum(value, np.finfo(float).tiny)) - size[:, :, None]
    return np.where(measured, logs, np.inf)


def _best_setting(
    scores: Floats, eligible: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Batch size and limit of least score, (rows,) each."""
    flat = np.where(eligible[:, :, None], scores, np.inf).reshape(len(eligible), -1)
    arm, limit = np.divmod(flat.argmin(axis=1), scores.shape[2])
    return arm, limit


def _charges(scores: Floats, mild: Floats, best: NDArray[np.int64]) -> Floats:
    """(rows, arms), ``mild`` scores at the limits that are best by ``scores``."""
    limit = scores.argmin(axis=2)
    charged = np.take_along_axis(mild, limit[:, :, None], axis=2)[:, :, 0]
    at = at_arm(best)
    least = charged[at]
    charged = np.maximum(charged, least[:, None] + _LEAST_CHARGE)
    charged[at] = least
    return charged
