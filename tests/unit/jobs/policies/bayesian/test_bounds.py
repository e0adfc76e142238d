"""Objectives with a bound: what is held, and what is measured again."""

import numpy as np
import pytest

from joulery.jobs.policies import JobBatch
from joulery.jobs.policies.bayesian._bounds import STEEPNESS, BoundedRuns
from joulery.jobs.policies.bayesian._forecast import forecast
from joulery.jobs.policies.bayesian._policy import BayesianPolicy
from joulery.objectives import (
    Bounds,
    Cost,
    EnergyDelayProduct,
    FastestWithin,
    LeastEnergy,
    LeastMoney,
)
from joulery.testing.workloads import made_up_workload

# Two batch sizes of equally many epochs, two limits: (60 s, 300 W), (66 s, 200 W); (90 s, ...).
SECONDS = np.log([[[66.0, 60.0], [99.0, 90.0]]])
WATTS = np.log([[[200.0, 300.0], [150.0, 200.0]]])
VARIANCE = np.full((1, 2, 2), 1e-6)
BOTH = np.array([[True, True]])
FIRST = np.array([[True, False]])
SIZE = np.log([[10.0, 10.0]])


def runs(objective, size=SIZE, able=BOTH):
    """Under an objective that has a bound."""
    return BoundedRuns.of(objective, size, able, (SECONDS, WATTS))


@pytest.mark.parametrize(
    "objective", [None, Cost(0.5, 300.0), EnergyDelayProduct(), LeastEnergy()], ids=str
)
def test_without_a_bound_runs_are_plain_costs(objective):
    """Such objectives are planned for as plain costs, which is faster."""
    beliefs = BayesianPolicy().start(JobBatch.of([made_up_workload().job()], [1]))
    assert forecast(beliefs, np.zeros(1, dtype=np.int64), objective).bounded is None


@pytest.mark.parametrize(
    ("objective", "best"),
    [
        (LeastEnergy(max_slowdown=0.0), (0, 1)),
        (LeastEnergy(max_slowdown=0.11), (0, 0)),
        (LeastEnergy(deadline_seconds=630.0), (0, 1)),
        (LeastEnergy(deadline_seconds=700.0), (0, 0)),
        (FastestWithin(joules=150_000.0), (0, 0)),
        (FastestWithin(joules=200_000.0), (0, 1)),
        (LeastMoney(0.3, max_slowdown=0.05), (0, 1)),
        (LeastMoney(0.3, max_slowdown=0.2), (0, 0)),
    ],
    ids=str,
)
def test_the_best_within_the_bound_is_held(objective, best):
    """The bound decides, then what is minimised."""
    arm, limit = runs(objective).best
    assert (arm[0], limit[0]) == best


def test_where_nothing_meets_the_bound_the_fastest_is_held():
    """A deadline that cannot be kept is missed by as little as possible."""
    arm, limit = runs(LeastEnergy(deadline_seconds=60.0)).best
    assert (arm[0], limit[0]) == (0, 1)


def test_what_is_not_proven_is_not_held_and_sets_no_bound():
    """A batch size that is only thought to be fast must not make all others too slow."""
    size = np.log([[10.0, 1.0]])
    objective = LeastEnergy(max_slowdown=0.11)
    assert runs(objective, size, FIRST).best[0][0] == 0
    assert runs(objective, size, BOTH).best[0][0] == 1


def test_a_reference_that_is_not_known_well_is_measured_again():
    """A bound of 5 % over a time that is known within 2 % is no bound."""
    vague = np.full((1, 2, 2), 4e-4)
    relative = runs(LeastEnergy(max_slowdown=0.05))
    absolute = runs(LeastEnergy(deadline_seconds=630.0))
    fastest, other = np.array([0]), np.array([1])
    assert relative.uncertain_reference(fastest, vague[:, 0]).tolist() == [[False, True]]
    assert not relative.uncertain_reference(other, vague[:, 1]).any()
    assert not relative.uncertain_reference(fastest, VARIANCE[:, 0]).any()
    assert not absolute.uncertain_reference(fastest, vague[:, 0]).any()


def test_near_the_bound_a_limit_is_less_sure():
    """Whether it is within depends on a per cent of its time, so it is worth measuring again."""
    near = runs(LeastEnergy(deadline_seconds=661.0))
    _, variance = near.limits(np.array([0]), np.full((1, 2), 4e-4))
    assert variance[0, 0] > 10 * 4e-4
    assert variance[0, 1] == pytest.approx(4e-4)


def test_before_anything_was_measured_nothing_is_known():
    """There is nothing to score, and no NaN may come of it."""
    nothing = np.full((1, 2, 2), np.nan)
    blank = BoundedRuns.of(LeastEnergy(max_slowdown=0.1), SIZE, BOTH, (nothing, nothing))
    assert not blank.known.any()
    assert not blank.uncertain_reference(np.array([0]), np.full((1, 2), np.inf)).any()


class WithinBoth:
    """A user's own objective: the least energy-delay product within a time and an energy."""

    def __init__(self, seconds, joules):
        self.bounds = Bounds(deadline_seconds=seconds, max_joules=joules)

    def value(self, seconds, joules, reference):
        """Relative to the reference, which is the fastest run."""
        return joules * seconds / (reference.joules * reference.seconds)


@pytest.mark.parametrize(
    ("seconds", "joules", "best"),
    [(1e9, 1e9, (0, 0)), (650.0, 1e9, (0, 1)), (1e9, 140_000.0, (0, 0)), (1e9, 1e3, (0, 0))],
)
def test_an_objective_of_ones_own_may_bound_time_and_energy(seconds, joules, best):
    """Otherwise a new objective would need a change of the policy."""
    own = runs(WithinBoth(seconds, joules))
    assert (own.best[0][0], own.best[1][0]) == best
    value = own.scores[0, 0, 1] - STEEPNESS * max(0.0, own.excess[0, 0, 1])
    assert np.exp(value) == pytest.approx(1.0)  # the fastest run is the reference
