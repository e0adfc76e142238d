"""Objectives with bounds: scores of whole runs, and what one more run saves under a bound.

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
from joulery.jobs.policies.bayesian._planning import NODES, TAIL_MEAN
from joulery.objectives import Totals

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
# A bound is a promise: learning that it is broken counts as over this many times the recurrences.
_BOUND_WEIGHT = 3.0
# The time that a bound refers to is measured again until it is known this well.
_KNOWN_REFERENCE_SD = 0.004
# Limits whose times differ by fewer standard errors than this may be equally fast.
_EQUALLY_FAST = 2.0
# Scores are computed at every other node of the plan, and interpolated between them.
COARSE_NODES = NODES[::2]


@dataclass(frozen=True, slots=True)
class BoundedRuns:
    """Runs of every batch size and limit under an objective with bounds, on a log scale.

    Attributes:
        size: (rows, arms), expected epochs of a run.
        value: (rows, arms, limits), value to minimise, per epoch; infinite where unknown.
        seconds: (rows, arms, limits), time of an epoch; 0 where unknown.
        excess_joules: (rows, arms, limits), energy of an epoch over the largest energy of a run;
            None where energy is not bounded.
        fastest: (rows, arms), time of an epoch at the fastest limit.
        eligible: (rows, arms), batch sizes that may be chosen, the fastest setting among them.
        valid: (rows, arms), batch sizes that are no padding.
        deadline: Longest time of a run.
        slowdown: Longest time over the fastest setting's.
        longest: (rows,), the smaller of both bounds.
        scores: (rows, arms, limits), score of the expected run.
        best: Batch size and limit to hold, (rows,) each.
        charges: (rows, arms), score that a plan charges for running each batch size.
        known: (rows,), whether anything can be scored.
    """

    size: Floats
    value: Floats
    seconds: Floats
    excess_joules: Floats | None
    fastest: Floats
    eligible: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    deadline: float
    slowdown: float
    longest: Floats
    scores: Floats
    best: tuple[NDArray[np.int64], NDArray[np.int64]]
    charges: Floats
    known: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        objective: Objective,
        size: Floats,
        eligible: NDArray[np.bool_],
        epoch: tuple[Floats, Floats, Floats],
        valid: NDArray[np.bool_] | None = None,
    ) -> BoundedRuns:
        """Score all runs.

        Args:
            objective: Objective with bounds.
            size: (rows, arms), log of the expected epochs.
            eligible: (rows, arms), batch sizes that may be chosen.
            epoch: (rows, arms, limits) each: log seconds and log watts of an epoch, NaN where
                unknown, and their variance.
            valid: (rows, arms), batch sizes that are no padding; None for all.
        """
        log_seconds, log_watts, variance = epoch
        bounds = objective.bounds
        known = np.isfinite(log_seconds)
        seconds, watts = np.where(known, log_seconds, 0.0), np.where(known, log_watts, 0.0)
        fastest = _fastest_limit(np.where(known, log_seconds, np.inf), variance)
        deadline = _log_bound(bounds.deadline_seconds)
        slowdown = math.inf if bounds.max_slowdown is None else math.log1p(bounds.max_slowdown)
        shortest = np.where(eligible, size + fastest, np.inf).min(axis=1)
        longest = np.minimum(deadline, slowdown + shortest)
        excess_joules = None
        if bounds.max_joules is not None:
            excess_joules = seconds + watts - _log_bound(bounds.max_joules)
        value = _values(objective, size, (seconds, watts, known), eligible)
        beyond = size[:, :, None] + _excess(seconds, longest[:, None, None], excess_joules)
        beyond = np.maximum(0.0, beyond)
        plain = size[:, :, None] + value
        scores = plain + STEEPNESS * beyond
        best = _best_setting(scores, eligible)
        return cls(
            size=size,
            value=value,
            seconds=seconds,
            excess_joules=excess_joules,
            fastest=fastest,
            eligible=eligible,
            valid=np.ones_like(eligible) if valid is None else valid,
            deadline=deadline,
            slowdown=slowdown,
            longest=longest,
            scores=scores,
            best=best,
            charges=_charges(scores, plain + _TRIAL_STEEPNESS * beyond, best[0]),
            known=np.asarray(np.isfinite(value).any(axis=(1, 2))),
        )

    def limits(self, arm: NDArray[np.int64], variance: Floats) -> tuple[Floats, Floats]:
        """(rows, limits): score of one batch size's limits, NaN where unknown; its variance.

        Near its bound a score depends steeply on the time of an epoch, so limits near it are worth
        measuring again.

        Args:
            arm: (rows,), batch size.
            variance: (rows, limits), variance of log seconds.
        """
        at = at_arm(arm)
        scores = self.scores[at]
        sd = np.sqrt(np.minimum(variance, 1.0))
        energy = None if self.excess_joules is None else self.excess_joules[at]
        beyond = self.size[at][:, None] + _excess(self.seconds[at], self.longest[:, None], energy)
        steep = STEEPNESS * (np.maximum(0.0, beyond + sd) - np.maximum(0.0, beyond - sd)) / 2.0
        return np.where(np.isfinite(scores), scores, np.nan), variance + steep**2

    def uncertain_reference(self, arm: NDArray[np.int64], variance: Floats) -> NDArray[np.bool_]:
        """(rows, limits), limits whose time is not known well enough for a bound that refers to it.

        Args:
            arm: (rows,), batch size.
            variance: (rows, limits), variance of log seconds.
        """
        if math.isinf(self.slowdown):
            return np.zeros(variance.shape, dtype=bool)
        at = at_arm(arm)
        fastest = np.where(self.eligible, self.size + self.fastest, np.inf).argmin(axis=1)
        sd = np.sqrt(variance)
        known = np.isfinite(self.value[at]) & np.isfinite(sd)
        least = np.where(known.any(axis=1), self.fastest[at], 0.0)[:, None]
        gap = np.where(known, self.seconds[at], 0.0) - least
        near = known & (gap <= _EQUALLY_FAST * np.where(known, sd, 0.0))
        total = np.where(near, 1.0 / variance, 0.0).sum(axis=1)
        refers = (arm == fastest) & (total < 1.0 / _KNOWN_REFERENCE_SD**2)
        return np.asarray(near & refers[:, None])

    def savings(self, covariance: Floats, trial: Floats) -> tuple[Floats, Floats]:
        """(nodes, rows, run): score saved by what a run shows, once it has ended or was stopped.

        The fastest setting and the best within the bound are found anew for every outcome: a run
        may show that its batch size is better, that the one held is beyond the bound, or that the
        bound itself is elsewhere.

        Args:
            covariance: (rows, arms, arms), covariance of log epochs.
            trial: (rows, arms), standard deviation of what a run will show.
        """
        tilt = covariance / trial[:, :, None]
        least = self.charges.min(axis=1)
        # Where nothing is likely ever to end, there is no score to be saved.
        known = self.known & np.isfinite(least)
        scale = (_BOUND_WEIGHT * np.exp(np.where(known, least, -np.inf)))[:, None, None]
        ended = (saved_shares(self, tilt, ended=True) * scale) @ _AT_NODES
        stopped = (saved_shares(self, tilt, ended=False) * scale) @ _AT_TAIL_MEAN
        return ended.transpose(2, 0, 1), stopped.transpose(2, 0, 1)


def _log_bound(bound: float | None) -> float:
    return math.inf if bound is None else math.log(max(bound, np.finfo(float).tiny))


def _values(
    objective: Objective,
    size: Floats,
    epoch: tuple[Floats, Floats, NDArray[np.bool_]],
    eligible: NDArray[np.bool_],
) -> Floats:
    """(rows, arms, limits), log of the expected run's value per epoch; infinite where unknown."""
    log_seconds, log_watts, known = epoch
    seconds = np.exp(size[:, :, None] + log_seconds)
    joules = seconds * np.exp(log_watts)
    flat = np.where(known & eligible[:, :, None], seconds, np.inf).reshape(len(size), -1)
    at = at_arm(flat.argmin(axis=1))
    fastest = (each.reshape(flat.shape)[at][:, None, None] for each in (seconds, joules))
    value = objective.value(seconds, joules, Totals(*fastest))
    logs = np.log(np.maximum(value, np.finfo(float).tiny)) - size[:, :, None]
    return np.where(known, logs, np.inf)


def _excess(seconds: Floats, longest: Floats, excess_joules: Floats | None) -> Floats:
    """Log excess of an epoch over its share of the bounds, the size of the run aside."""
    late = seconds - longest
    return late if excess_joules is None else np.maximum(late, excess_joules)


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


def _fastest_limit(log_seconds: Floats, variance: Floats) -> Floats:
    """(rows, arms), time at the fastest limit: the mean of those that may be equally fast.

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
    """(coarse nodes, positions), weights that interpolate values between coarse nodes."""
    return np.stack(
        [np.interp(positions, COARSE_NODES, unit) for unit in np.eye(len(COARSE_NODES))]
    )


_AT_NODES = _interpolation(NODES)
# A stopped run has shown that its outcome lies beyond a node: about the mean of what lies there.
_AT_TAIL_MEAN = _interpolation(TAIL_MEAN)


def saved_shares(runs: BoundedRuns, tilt: Floats, *, ended: bool) -> Floats:
    """(rows, run, coarse nodes), share of the held setting's score that a run saves.

    Args:
        runs: Runs under a bound.
        tilt: (rows, run, arms), change of each by one standard deviation of what a run shows.
        ended: Whether the run has ended, which proves its batch size, or was stopped.
    """
    own = np.eye(tilt.shape[1], dtype=bool)
    eligible = runs.eligible[:, None] | (own & ended)
    held = at_arm(runs.best[0])
    figures = [each for each in (runs.value, runs.seconds, runs.excess_joules) if each is not None]
    of_held = [each[(*held, runs.best[1])][:, None, None] for each in figures]
    shares = np.empty((*tilt.shape[:2], len(COARSE_NODES)))
    for at, node in enumerate(COARSE_NODES):
        size = runs.size[:, None] + tilt * node - 0.5 * tilt**2
        fastest = np.where(eligible, size + runs.fastest[:, None], np.inf).min(axis=2)
        longest = np.minimum(runs.deadline, runs.slowdown + fastest)
        scores = _scores(size, longest[:, :, None], [each[:, None] for each in figures])
        least = np.where(eligible, scores, np.inf).min(axis=2)
        kept = _scores(size[held[0], :, held[1]], longest, of_held)
        shares[:, :, at] = _saved_share(kept, least)
    return np.where(runs.valid[:, :, None], shares, 0.0)


def _scores(size: Floats, longest: Floats, figures: list[Floats]) -> Floats:
    """Score of runs under their best limit, the last axis of ``figures``.

    Args:
        size: Log epochs of the runs.
        longest: Longest time of a run.
        figures: Figures per epoch: value, seconds and, where energy is bounded, excess joules.
    """
    value, seconds, *excess_joules = figures
    best = np.full(size.shape, np.inf)
    for limit in range(value.shape[-1]):
        beyond = seconds[..., limit] + (size - longest)
        for energy in excess_joules:
            np.maximum(beyond, energy[..., limit] + size, out=beyond)
        np.maximum(beyond, 0.0, out=beyond)
        beyond *= STEEPNESS
        beyond += value[..., limit]
        np.minimum(best, beyond, out=best)
    return best + size


def _saved_share(held: Floats, least: Floats) -> Floats:
    """Share of the held setting's score; nothing where either is not known."""
    known = np.isfinite(least) & np.isfinite(held)
    saved = np.where(known, held, 0.0) - np.where(known, least, 0.0)
    return np.asarray(-np.expm1(-np.maximum(0.0, saved)))
