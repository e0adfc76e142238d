"""Objectives on arrays: how bad many whole runs are, by time and energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.objectives import Totals

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
    reference = Totals(runs.reference_seconds, runs.reference_joules)
    found = objective.bounds.overshoot(runs.seconds, runs.joules, reference)
    return np.broadcast_to(found, np.broadcast(runs.seconds, runs.joules).shape)


def worth(objective: Objective, runs: Runs) -> Floats:
    """The value of each run, bounds aside."""
    reference = Totals(runs.reference_seconds, runs.reference_joules)
    return np.asarray(objective.value(runs.seconds, runs.joules, reference))
