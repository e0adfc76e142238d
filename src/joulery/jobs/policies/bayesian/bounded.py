"""Objectives with a bound: what whole runs score, and what one more run teaches about that.

"The least energy within 5 % of the fastest" is no cost that could be added up: which settings are
allowed hangs on the fastest of all, and that has to be found out too. Bounds are meant of what
settings are expected to take, not of every single run. A setting beyond its bound is not ruled out
but scores steeply worse, so that unsure settings can be compared, and a bound that nothing meets
still has a best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.bayesian.bounded_lessons import COARSE_NODES, STEEPNESS, saved_shares
from joulery.jobs.policies.bayesian.planning import NODES, TAIL_MEAN
from joulery.jobs.policies.job_batch import own_places
from joulery.objectives import UNBOUNDED, Totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats
    from joulery.objectives import Objective

# A run that is made to learn may be beyond the bound; it is charged for that, but mildly.
_TRY_STEEPNESS = 1.0
# Whatever is tried instead of the best is charged at least this much more than the best.
_LEAST_CHARGE = 0.01
# A bound is a promise: to learn that it is broken counts as over so many times the recurrences.
_CARE = 3.0
# What a bound refers to is measured again until it is known this well.
_KNOWN_REFERENCE_SD = 0.004
# Limits whose times differ by fewer standard errors than this may well be equally fast.
_EQUALLY_FAST = 2.0


@dataclass(frozen=True, slots=True)
class BoundForm:
    """A bounded objective in figures: (joules·joule_weight + seconds·second_weight), bounded.

    Attributes:
        joule_weight: Of the energy in what is minimised.
        second_weight: Of the time.
        bounds_energy: Whether energy is bounded, not time.
        most: Largest time or energy, absolute; infinite for none.
        slowdown: Largest time over the fastest setting's; infinite for none.
    """

    joule_weight: float
    second_weight: float
    bounds_energy: bool
    most: float
    slowdown: float


def bound_form(objective: Objective | None) -> BoundForm | None:
    """The figures of an objective that has a bound; None for all others."""
    if objective is None or objective.bounds == UNBOUNDED:
        return None
    bounds, unit = objective.bounds, Totals(1.0, 1.0)
    absolute = bounds.deadline_seconds if bounds.max_joules is None else bounds.max_joules
    return BoundForm(
        joule_weight=objective.value(0.0, 1.0, unit),
        second_weight=objective.value(1.0, 0.0, unit),
        bounds_energy=bounds.max_joules is not None,
        most=np.inf if absolute is None else absolute,
        slowdown=np.inf if bounds.max_slowdown is None else 1.0 + bounds.max_slowdown,
    )


@dataclass(frozen=True, slots=True)
class BoundedRuns:
    """Runs of every batch size and limit under a bounded objective, on a logarithmic scale.

    Attributes:
        size: (rows, arms), expected epochs of a run.
        worth: (rows, arms, limits), of what is minimised, per epoch; infinite where unknown.
        bounded: (rows, arms, limits), of what is bounded, per epoch; 0 where unknown.
        seconds: (rows, arms, limits), of an epoch; infinite where unknown.
        fastest: (rows, arms), the same at the fastest limit.
        able: (rows, arms), batch sizes that may be held, and that the fastest is found among.
        valid: (rows, arms), batch sizes that do not only fill a row up.
        most: Largest time or energy.
        slowdown: Largest time over the fastest's.
        longest: (rows,), the bound: the smaller of both.
        grades: (rows, arms, limits), score of the expected run.
        best: Batch size and limit to hold, (rows,) each.
        charges: (rows, arms), what running each batch size is charged in a plan.
        known: (rows,), whether anything can be scored.
    """

    size: Floats
    worth: Floats
    bounded: Floats
    seconds: Floats
    fastest: Floats
    able: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    most: float
    slowdown: float
    longest: Floats
    grades: Floats
    best: tuple[NDArray[np.int64], NDArray[np.int64]]
    charges: Floats
    known: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        form: BoundForm,
        size: Floats,
        able: NDArray[np.bool_],
        epoch: tuple[Floats, Floats, Floats],
        valid: NDArray[np.bool_] | None = None,
    ) -> BoundedRuns:
        """From log seconds and log watts of an epoch, NaN where unknown, and their variance."""
        log_seconds, log_watts, variance = epoch
        known = np.isfinite(log_seconds)
        seconds, watts = np.where(known, log_seconds, 0.0), np.where(known, log_watts, 0.0)
        rate = form.joule_weight * np.exp(watts) + form.second_weight
        worth = np.where(known, seconds + np.log(rate), np.inf)
        bounded = seconds + watts if form.bounds_energy else seconds
        timed = np.where(known, log_seconds, np.inf)
        fastest = _fastest(timed, variance)
        most = float(np.log(np.maximum(form.most, np.finfo(float).tiny)))
        slowdown = float(np.log(form.slowdown))
        shortest = np.where(able, size + fastest, np.inf).min(axis=1)
        longest = np.minimum(most, slowdown + shortest)
        beyond = np.maximum(0.0, size[:, :, None] + bounded - longest[:, None, None])
        plain = size[:, :, None] + worth
        grades = plain + STEEPNESS * beyond
        best = _best(grades, able)
        return cls(
            size=size,
            worth=worth,
            bounded=bounded,
            seconds=timed,
            fastest=fastest,
            able=able,
            valid=np.ones_like(able) if valid is None else valid,
            most=most,
            slowdown=slowdown,
            longest=longest,
            grades=grades,
            best=best,
            charges=_charges(grades, plain + _TRY_STEEPNESS * beyond, best[0]),
            known=np.asarray(np.isfinite(worth).any(axis=(1, 2))),
        )

    def limits(self, arm: NDArray[np.int64], variance: Floats) -> tuple[Floats, Floats]:
        """(rows, limits): log score of one batch size's limits, NaN where unknown; its variance.

        Near its bound a score hangs steeply on how long an epoch takes, beyond a saving on nothing
        else, so limits near it are worth measuring again.

        Args:
            arm: One per row.
            variance: (rows, limits), of log seconds.
        """
        at = own_places(arm)
        log_score = self.grades[at]
        sd = np.sqrt(np.minimum(variance, 1.0))
        beyond = self.size[at][:, None] + self.bounded[at] - self.longest[:, None]
        steep = STEEPNESS * (np.maximum(0.0, beyond + sd) - np.maximum(0.0, beyond - sd)) / 2.0
        return np.where(np.isfinite(log_score), log_score, np.nan), variance + steep**2

    def doubtful(self, arm: NDArray[np.int64], variance: Floats) -> NDArray[np.bool_]:
        """(rows, limits), limits whose time is not known well enough for a bound that refers to it.

        Args:
            arm: One per row.
            variance: (rows, limits), of log seconds.
        """
        if math.isinf(self.slowdown):
            return np.zeros(variance.shape, dtype=bool)
        at = own_places(arm)
        fastest = np.where(self.able, self.size + self.fastest, np.inf).argmin(axis=1)
        seconds, sd = self.seconds[at], np.sqrt(variance)
        known = np.isfinite(seconds) & np.isfinite(sd)
        least = np.where(known.any(axis=1), self.fastest[at], 0.0)[:, None]
        gap = np.where(known, seconds, 0.0) - least
        near = known & (gap <= _EQUALLY_FAST * np.where(known, sd, 0.0))
        total = np.where(near, 1.0 / variance, 0.0).sum(axis=1)
        refers = (arm == fastest) & (total < 1.0 / _KNOWN_REFERENCE_SD**2)
        return np.asarray(near & refers[:, None])

    def lessons(self, covariance: Floats, trial: Floats) -> tuple[Floats, Floats]:
        """(nodes, rows, run): score saved by what a run shows, once it has ended or was stopped.

        The fastest setting and the best within the bound are found anew for every outcome: a run
        may show that its batch size is better, that the one held is beyond the bound, or that the
        bound itself is elsewhere.

        Args:
            covariance: (rows, arms, arms), of log epochs.
            trial: (rows, arms), standard deviation of what a run will show.
        """
        shares = saved_shares(self, covariance / trial[:, :, None])
        least = self.charges.min(axis=1)
        # Where nothing is likely ever to end, there is no score to be saved.
        known = self.known & np.isfinite(least)
        shares[:, ~known] = 0.0
        shares *= (_CARE * np.exp(np.where(known, least, -np.inf)))[:, None, None]
        ended, stopped = shares[0] @ _AT_NODES, shares[1] @ _AT_TAIL_MEAN
        return ended.transpose(2, 0, 1), stopped.transpose(2, 0, 1)


def _best(grades: Floats, able: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Batch size and limit of least score."""
    flat = np.where(able[:, :, None], grades, np.inf).reshape(len(able), -1)
    arm, limit = np.divmod(flat.argmin(axis=1), grades.shape[2])
    return arm, limit


def _charges(grades: Floats, mild: Floats, best: NDArray[np.int64]) -> Floats:
    """(rows, arms), of ``mild`` grades at the limits that are best by ``grades``."""
    arms = grades.shape[1]
    limit = grades.argmin(axis=2)
    flat = mild.reshape(-1, mild.shape[2])[np.arange(limit.size), limit.ravel()]
    charged = flat.reshape(-1, arms)
    at = own_places(best)
    least = charged[at].copy()
    charged = np.maximum(charged, least[:, None] + _LEAST_CHARGE)
    charged[at] = least
    return np.asarray(charged)


def _fastest(log_seconds: Floats, variance: Floats) -> Floats:
    """(rows, arms), of the fastest limit: averaged over those that cannot be told from it.

    The least of several noisy figures is too small; a bound that refers to it would be too tight.
    """
    least = log_seconds.argmin(axis=2)[:, :, None]
    sd = np.sqrt(variance)
    near = np.take_along_axis(sd, least, axis=2)
    low = np.take_along_axis(log_seconds, least, axis=2)
    known = np.isfinite(log_seconds) & np.isfinite(sd)
    gap = np.where(known, log_seconds, 0.0) - np.where(np.isfinite(low), low, 0.0)
    same = known & (gap <= _EQUALLY_FAST * np.where(known, np.hypot(sd, near), 0.0))
    weight = np.where(same, 1.0 / np.where(known, variance, 1.0), 0.0)
    total = weight.sum(axis=2)
    mean = (weight * np.where(known, log_seconds, 0.0)).sum(axis=2) / np.maximum(total, 1e-12)
    return np.where(total > 0, mean, low[:, :, 0])


def _interpolation(positions: Floats) -> Floats:
    """(coarse nodes, positions), weights that read values between coarse nodes."""
    return np.stack(
        [np.interp(positions, COARSE_NODES, unit) for unit in np.eye(len(COARSE_NODES))]
    )


_AT_NODES = _interpolation(NODES)
# A stopped run has told that its outcome lies beyond a node: about the mean of what lies there.
_AT_TAIL_MEAN = _interpolation(TAIL_MEAN)
