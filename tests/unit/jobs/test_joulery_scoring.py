"""Objectives on arrays agree with objectives on points."""

import numpy as np
import pytest

from joulery.frontier import OperatingPoint
from joulery.jobs.policies.bayesian.scoring import Runs, graded_score, score
from joulery.objectives import (
    Cost,
    EnergyDelayProduct,
    EnergyDelaySum,
    FastestWithin,
    LeastCarbon,
    LeastEnergy,
    LeastMoney,
)
from joulery.objectives import score as exact_score

OBJECTIVES = [
    Cost(eta=0.0, max_watts=300.0),
    Cost(eta=0.5, max_watts=300.0),
    Cost(eta=1.0),
    LeastEnergy(),
    LeastEnergy(max_slowdown=0.1),
    LeastEnergy(deadline_seconds=110.0),
    LeastEnergy(max_slowdown=0.5, deadline_seconds=120.0),
    FastestWithin(joules=16_000.0),
    EnergyDelayProduct(),
    EnergyDelaySum(k=2.0),
    EnergyDelaySum(k=1.0),
    LeastCarbon(400.0),
    LeastMoney(0.2, rent_per_hour=1.0),
]
SECONDS = np.array([[90.0, 100.0], [110.0, 150.0]])
JOULES = np.array([[20_000.0, 18_000.0], [16_000.0, 15_000.0]])
RUNS = Runs(SECONDS, JOULES, np.array(100.0), np.array(18_000.0))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_scores_match_points(objective):
    """The policy must want what the user asked for, to the last bound."""
    reference = OperatingPoint(seconds=100.0, joules=18_000.0)
    expected = [
        exact_score(objective, s, j, reference)
        for s, j in zip(SECONDS.ravel(), JOULES.ravel(), strict=True)
    ]
    assert score(objective, RUNS).ravel() == pytest.approx(expected)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_grades_equal_scores_within_bounds_and_are_finite_beyond(objective):
    """A planner averages over epochs; infinity would make all unsure runs equal."""
    exact, graded = score(objective, RUNS), graded_score(objective, RUNS)
    assert np.isfinite(graded).all()
    within = np.isfinite(exact)
    assert graded[within] == pytest.approx(exact[within])


def test_the_further_beyond_a_bound_the_worse():
    """Otherwise the policy could not find its way back to a deadline."""
    late = Runs(np.array([110.0, 121.0, 150.0]), np.array(10_000.0), np.array(1.0), np.array(1.0))
    graded = graded_score(LeastEnergy(deadline_seconds=110.0), late)
    assert np.all(np.diff(graded) > 0)
    assert graded[1] > 1.4 * graded[0]
