"""Objectives with a bound: what whole runs score, and what one more run teaches about that.

"The least energy within 5 % of the fastest" is no cost that could be added up: which settings are
allowed hangs on the fastest of all, and that has to be found out too. Bounds are meant of what
settings are expected to take, not of every single run. A setting beyond its bound is not ruled out
but scores steeply worse, so that unsure settings can be compared, and a bound that nothing meets
still has a best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.objectives import (
    UNBOUNDED,
    Bounds,
    ConstantSignal,
    FastestWithin,
    LeastCarbon,
    LeastEnergy,
    LeastMoney,
)
from joulery.recurring.planning import NODES, TAIL_MEAN
from joulery.units import JOULES_PER_KILOWATT_HOUR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.recurring.draws import Floats

# Per cent of score per per cent beyond the bound. A choice is 1 % too slow only where that saves a
# quarter of the energy: no power limit does, and hardly another batch size.
_STEEPNESS = 30.0
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
    if isinstance(objective, FastestWithin):
        return BoundForm(0.0, 1.0, bounds_energy=True, most=objective.joules, slowdown=np.inf)
    weights, bounds = (1.0, 0.0), UNBOUNDED
    if isinstance(objective, LeastEnergy):
        bounds = Bounds(objective.deadline_seconds, objective.max_slowdown)
    elif isinstance(objective, LeastCarbon | LeastMoney) and isinstance(
        objective.signal, ConstantSignal
    ):
        bounds = objective.bounds
        rent = objective.rent_per_hour if isinstance(objective, LeastMoney) else 0.0
        weights = objective.signal.per_kilowatt_hour / JOULES_PER_KILOWATT_HOUR, rent / 3600.0
    if bounds == UNBOUNDED:
        return None
    return BoundForm(
        *weights,
        bounds_energy=False,
        most=np.inf if bounds.deadline_seconds is None else bounds.deadline_seconds,
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
        most: Largest time or energy.
        slowdown: Largest time over the fastest's.
    """

    size: Floats
    worth: Floats
    bounded: Floats
    seconds: Floats
    fastest: Floats
    able: NDArray[np.bool_]
    most: float
    slowdown: float

    @classmethod
    def of(
        cls,
        form: BoundForm,
        size: Floats,
        able: NDArray[np.bool_],
        epoch: tuple[Floats, Floats, Floats],
    ) -> BoundedRuns:
        """From log seconds and log watts of an epoch, NaN where unknown, and their variance."""
        log_seconds, log_watts, variance = epoch
        known = np.isfinite(log_seconds)
        seconds, watts = np.where(known, (log_seconds, log_watts), 0.0)
        rate = form.joule_weight * np.exp(watts) + form.second_weight
        worth = np.where(known, seconds + np.log(rate), np.inf)
        bounded = seconds + watts if form.bounds_energy else seconds
        timed = np.where(known, log_seconds, np.inf)
        most = float(np.log(np.maximum(form.most, np.finfo(float).tiny)))
        return cls(
            size=size,
            worth=worth,
            bounded=bounded,
            seconds=timed,
            fastest=_fastest(timed, variance),
            able=able,
            most=most,
            slowdown=float(np.log(form.slowdown)),
        )

    def grades(self, steepness: float = _STEEPNESS) -> Floats:
        """(rows, arms, limits), log score of the expected run."""
        fastest = np.where(self.able, self.size + self.fastest, np.inf).min(axis=1)
        longest = np.minimum(self.most, self.slowdown + fastest)[:, None, None]
        size = self.size[:, :, None]
        beyond = np.maximum(0.0, size + self.bounded - longest)
        return np.asarray(size + self.worth + steepness * beyond)

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Batch size and limit to hold."""
        grades = np.where(self.able[:, :, None], self.grades(), np.inf).reshape(len(self.able), -1)
        arm, limit = np.divmod(grades.argmin(axis=1), self.worth.shape[2])
        return arm, limit

    def limits(self, arm: NDArray[np.int64], variance: Floats) -> tuple[Floats, Floats]:
        """(rows, limits): log score of one batch size's limits, NaN where unknown; its variance.

        Near its bound a score hangs steeply on how long an epoch takes, beyond a saving on nothing
        else, so limits near it are worth measuring again.

        Args:
            arm: One per row.
            variance: (rows, limits), of log seconds.
        """
        own = np.arange(len(arm))
        log_score = self.grades()[own, arm]
        size = self.size[own, arm][:, None]
        fastest = np.where(self.able, self.size + self.fastest, np.inf).min(axis=1)
        longest = np.minimum(self.most, self.slowdown + fastest)[:, None]
        sd = np.sqrt(np.minimum(variance, 1.0))
        beyond = size + self.bounded[own, arm] - longest
        steep = _STEEPNESS * (np.maximum(0.0, beyond + sd) - np.maximum(0.0, beyond - sd)) / 2.0
        return np.where(np.isfinite(log_score), log_score, np.nan), variance + steep**2

    def doubtful(self, arm: NDArray[np.int64], variance: Floats) -> NDArray[np.bool_]:
        """(rows, limits), limits whose time is not known well enough for a bound that refers to it.

        Args:
            arm: One per row.
            variance: (rows, limits), of log seconds.
        """
        own = np.arange(len(arm))
        fastest = np.where(self.able, self.size + self.fastest, np.inf).argmin(axis=1)
        refers = np.isfinite(self.slowdown) & (arm == fastest)
        seconds, sd = self.seconds[own, arm], np.sqrt(variance)
        known = np.isfinite(seconds) & np.isfinite(sd)
        least = np.where(known.any(axis=1), self.fastest[own, arm], 0.0)[:, None]
        gap = np.where(known, seconds, 0.0) - least
        near = known & (gap <= _EQUALLY_FAST * np.where(known, sd, 0.0))
        total = np.where(near, 1.0 / variance, 0.0).sum(axis=1)
        return np.asarray(near & (refers & (total < 1.0 / _KNOWN_REFERENCE_SD**2))[:, None])

    def charges(self) -> Floats:
        """(rows, arms), log of what running each batch size is charged in a plan."""
        own = np.arange(len(self.size))
        limit = self.grades().argmin(axis=2)[:, :, None]
        mild = np.take_along_axis(self.grades(_TRY_STEEPNESS), limit, axis=2)[:, :, 0]
        arm, _ = self.best()
        best = mild[own, arm][:, None]
        charged = np.maximum(mild, best + _LEAST_CHARGE)
        charged[own, arm] = best[:, 0]
        return np.asarray(charged)

    def lessons(self, covariance: Floats, trial: Floats) -> tuple[Floats, Floats]:
        """(rows, run, nodes): score saved by what a run shows, once it has ended or was stopped.

        The fastest setting and the best within the bound are found anew for every outcome: a run
        may show that its batch size is better, that the one held is beyond the bound, or that the
        bound itself is elsewhere.

        Args:
            covariance: (rows, arms, arms), of log epochs.
            trial: (rows, arms), standard deviation of what a run will show.
        """
        tilt = covariance / trial[:, :, None]
        bow = 0.5 * tilt**2
        able = np.broadcast_to(self.able[:, None, :], tilt.shape)
        # A run that has ended proves its batch size; one that was stopped does not.
        proven = able | np.eye(self.able.shape[1], dtype=bool)
        known = np.isfinite(self.worth).any(axis=(1, 2))
        scale = np.exp(np.where(known, self.charges().min(axis=1), -np.inf))[:, None, None]
        shares = (
            np.stack([self._share(tilt * node - bow, allowed) for node in _COARSE], axis=2)
            for allowed in (proven, able)
        )
        ended, stopped = (_CARE * scale * each for each in shares)
        return ended @ _AT_NODES, stopped @ _AT_TAIL_MEAN

    def _share(self, shift: Floats, allowed: NDArray[np.bool_]) -> Floats:
        """(rows, run), of the held setting's score that changing over would save.

        Args:
            shift: (rows, run, arms), of log epochs, if the run of ``run`` ends so.
            allowed: (rows, run, arms), which batch sizes may be changed over to then.
        """
        size = self.size[:, None, :] + shift
        fastest = np.where(allowed, size + self.fastest[:, None, :], np.inf).min(axis=2)
        longest = np.minimum(self.most, self.slowdown + fastest)
        grades = self.bounded[:, None] + (size - longest[:, :, None])[..., None]
        np.maximum(grades, 0.0, out=grades)
        grades *= _STEEPNESS
        grades += self.worth[:, None]
        least = np.where(allowed, grades.min(axis=3) + size, np.inf).min(axis=2)
        arm, limit = self.best()
        own = np.arange(len(arm))
        held = grades[own, :, arm, limit] + size[own, :, arm]
        known = np.isfinite(least) & np.isfinite(held)
        saved = np.where(known, held, 0.0) - np.where(known, least, 0.0)
        return np.asarray(-np.expm1(-np.maximum(0.0, saved)))


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
    return np.stack([np.interp(positions, _COARSE, unit) for unit in np.eye(len(_COARSE))])


# Scores are worked out at every other node of the plan, and read between them.
_COARSE = NODES[::2]
_AT_NODES = _interpolation(NODES)
# A stopped run has told that its outcome lies beyond a node: about the mean of what lies there.
_AT_TAIL_MEAN = _interpolation(TAIL_MEAN)
