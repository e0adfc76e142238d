"""Objectives with a bound: what is held, what is charged, what a run teaches."""

import numpy as np
import pytest

from joulery.jobs.policies.bayesian.bounded import BoundedRuns, bound_form
from joulery.jobs.policies.bayesian.planning import NODES
from joulery.objectives import (
    Cost,
    EnergyDelayProduct,
    FastestWithin,
    LeastEnergy,
    LeastMoney,
)

# Two batch sizes of equally many epochs, two limits: (60 s, 300 W), (66 s, 200 W); (90 s, ...).
SECONDS = np.log([[[66.0, 60.0], [99.0, 90.0]]])
WATTS = np.log([[[200.0, 300.0], [150.0, 200.0]]])
VARIANCE = np.full((1, 2, 2), 1e-6)
BOTH = np.array([[True, True]])
FIRST = np.array([[True, False]])
SIZE = np.log([[10.0, 10.0]])


def runs(objective, size=SIZE, able=BOTH, seconds=SECONDS, variance=VARIANCE):
    """Under an objective that has a bound."""
    return BoundedRuns.of(bound_form(objective), size, able, (seconds, WATTS, variance))


@pytest.mark.parametrize(
    "objective", [None, Cost(0.5, 300.0), EnergyDelayProduct(), LeastEnergy()], ids=str
)
def test_without_a_bound_there_is_no_bound_form(objective):
    """Such objectives are planned for as plain costs, which is faster."""
    assert bound_form(objective) is None


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


def test_equally_fast_limits_are_averaged():
    """The least of noisy figures is too small, and a bound that refers to it too tight."""
    seconds = np.log([[[60.0, 61.0], [99.0, 90.0]]])
    noisy = runs(LeastEnergy(max_slowdown=0.0), seconds=seconds, variance=np.full((1, 2, 2), 4e-4))
    assert np.exp(noisy.fastest[0, 0]) == pytest.approx(60.5, abs=0.01)
    assert np.exp(noisy.fastest[0, 1]) == pytest.approx(90.0, abs=0.01)


def test_a_reference_that_is_not_known_well_is_measured_again():
    """A bound of 5 % over a time that is known within 2 % is no bound."""
    vague = np.full((1, 2, 2), 4e-4)
    relative = runs(LeastEnergy(max_slowdown=0.05), variance=vague)
    absolute = runs(LeastEnergy(deadline_seconds=630.0), variance=vague)
    fastest, other = np.array([0]), np.array([1])
    assert relative.doubtful(fastest, vague[:, 0]).tolist() == [[False, True]]
    assert not relative.doubtful(other, vague[:, 1]).any()
    assert not relative.doubtful(fastest, VARIANCE[:, 0]).any()
    assert not absolute.doubtful(fastest, vague[:, 0]).any()


def test_near_the_bound_a_limit_is_less_sure():
    """Whether it is within hangs on a per cent of its time, so it is worth measuring again."""
    near = runs(LeastEnergy(deadline_seconds=661.0))
    _, variance = near.limits(np.array([0]), np.full((1, 2), 4e-4))
    assert variance[0, 0] > 10 * 4e-4
    assert variance[0, 1] == pytest.approx(4e-4)


def lessons(objective, able, sds, size=SIZE):
    """Once a run has ended or was stopped, in units of the held setting's score."""
    bounded = runs(objective, size, able)
    covariance = np.diag(np.square(sds))[None]
    scale = np.exp(bounded.charges.min())
    ended, stopped = bounded.lessons(covariance, np.sqrt(np.square(sds) + 1e-4)[None])
    return ended[:, 0].T / scale, stopped[:, 0].T / scale


def test_a_batch_size_that_may_be_the_fastest_is_worth_a_try():
    """Else the bound refers for ever to the fastest that happens to be proven."""
    ended, _ = lessons(LeastEnergy(max_slowdown=0.0), FIRST, [0.01, 0.3])
    assert ended[1, NODES == -3.0] > 0.2
    assert ended[1, NODES == 1.0] == pytest.approx(0.0, abs=1e-9)


def test_a_slow_batch_size_teaches_nothing_under_a_wide_bound():
    """Looking for the fastest pays only where it would change the choice."""
    dearer = np.log([[10.0, 30.0]])
    ended, stopped = lessons(LeastEnergy(deadline_seconds=5000.0), BOTH, [0.01, 0.05], dearer)
    assert ended[1] == pytest.approx(0.0, abs=1e-9)
    assert stopped[1] == pytest.approx(0.0, abs=1e-9)


def test_a_stopped_run_proves_nothing():
    """Stopping at once must not look like learning for free."""
    better = np.log([[10.0, 5.0]])
    ended, stopped = lessons(LeastEnergy(max_slowdown=0.2), FIRST, [0.01, 0.3], better)
    assert ended[1].max() > 0.2
    assert stopped[1, 0] == pytest.approx(0.0, abs=1e-6)


def test_unknown_limits_teach_nothing():
    """Before anything was measured there is nothing to score, and no NaN may come of it."""
    blank = BoundedRuns.of(
        bound_form(LeastEnergy(max_slowdown=0.1)),
        SIZE,
        BOTH,
        (np.full((1, 2, 2), np.nan), np.full((1, 2, 2), np.nan), np.full((1, 2, 2), np.inf)),
    )
    ended, stopped = blank.lessons(np.eye(2)[None], np.ones((1, 2)))
    assert not ended.any()
    assert not stopped.any()
    assert not blank.doubtful(np.array([0]), np.full((1, 2), np.inf)).any()
