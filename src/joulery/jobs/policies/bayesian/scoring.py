"""Objectives on arrays: how bad many whole runs are, by time and energy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.frontier import OperatingPoint, Setting
from joulery.objectives import (
    Bounds,
    Cost,
    EnergyDelayProduct,
    EnergyDelaySum,
    FastestWithin,
    LeastEnergy,
)

if TYPE_CHECKING:
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.objectives import Objective

# A run beyond a bound counts as this power of its overshoot: steep enough that being 10 % too long
# costs more than a power limit can save, flat enough that unsure runs can still be compared.
_STEEPNESS = 4.0
_ROUNDING = 1.0 + 1e-12


@dataclass(frozen=True, slots=True)
class Runs:
    """Whole runs side by side; arrays broadcast.

    Attributes:
        seconds: Of each run.
        joules: Of each run.
        reference_seconds: Of the run that ratios refer to.
        reference_joules: Likewise.
    """

    seconds: Floats
    joules: Floats
    reference_seconds: Floats
    reference_joules: Floats


def score(objective: Objective, runs: Runs) -> Floats:
    """As ``objective.score`` on every run: lower is better, infinite where a bound is broken."""
    overshoot = _overshoot(objective, runs)
    return np.where(overshoot <= _ROUNDING, worth(objective, runs), np.inf)


def graded_score(objective: Objective, runs: Runs) -> Floats:
    """The same, finite beyond bounds too: the worse the further.

    A planner that averages over uncertain epochs needs to know how far beyond a bound a run may be.
    """
    graded = worth(objective, runs) * np.maximum(_overshoot(objective, runs), 1.0) ** _STEEPNESS
    # Objectives of one's own say no more than that a bound is broken.
    return np.where(np.isfinite(graded), graded, np.finfo(np.float64).max ** 0.25)


def _overshoot(objective: Objective, runs: Runs) -> Floats:
    """How many times its bound a run takes; at most 1 where the bound is kept."""
    if isinstance(objective, LeastEnergy):
        bounds = Bounds(objective.deadline_seconds, objective.max_slowdown)
        deadline = np.inf if bounds.deadline_seconds is None else bounds.deadline_seconds
        slowdown = np.inf if bounds.max_slowdown is None else bounds.max_slowdown
        longest = np.minimum(deadline, (1 + slowdown) * runs.reference_seconds)
        return np.asarray(runs.seconds / longest)
    if isinstance(objective, FastestWithin):
        return np.asarray(runs.joules / objective.joules)
    return np.zeros(np.broadcast(runs.seconds, runs.joules).shape)


def worth(objective: Objective, runs: Runs) -> Floats:
    """The score of each run, bounds aside where the objective's are known here."""
    if isinstance(objective, Cost):
        weight = (1 - objective.eta) * objective.max_watts
        return objective.eta * runs.joules + weight * runs.seconds
    if isinstance(objective, LeastEnergy):
        return runs.joules + 0.0 * runs.seconds
    if isinstance(objective, FastestWithin):
        return runs.seconds + 0.0 * runs.joules
    if isinstance(objective, EnergyDelayProduct):
        return runs.joules * runs.seconds
    if isinstance(objective, EnergyDelaySum):
        energy = (objective.k - 1) / objective.k * (runs.joules / runs.reference_joules)
        return energy + runs.seconds / runs.reference_seconds / objective.k
    return _one_by_one(objective, runs)


def _one_by_one(objective: Objective, runs: Runs) -> Floats:
    """Objectives without an array form here, such as those under a grid signal."""
    arrays = np.broadcast_arrays(
        runs.seconds, runs.joules, runs.reference_seconds, runs.reference_joules
    )
    scores = [
        objective.score(_point(seconds, joules), _point(reference_seconds, reference_joules))
        if math.isfinite(seconds * joules)
        else math.nan
        for seconds, joules, reference_seconds, reference_joules in zip(
            *(array.ravel().tolist() for array in arrays), strict=True
        )
    ]
    return np.array(scores).reshape(arrays[0].shape)


def _point(seconds: float, joules: float) -> OperatingPoint:
    return OperatingPoint(seconds=seconds, joules=joules, setting=Setting())
