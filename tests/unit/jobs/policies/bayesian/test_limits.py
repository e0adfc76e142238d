"""Which limit is held and which are measured."""

import numpy as np

from joulery.jobs.policies.bayesian._limits import choose_limit

SURE, UNSURE = 0.001**2, 0.02**2


def choose(log_cost, variance, share=0.01, horizon=100.0):
    """One training."""
    cost = np.array([log_cost])
    return choose_limit(cost, np.array([variance]), np.array([share]), horizon)


def test_the_cheapest_is_held():
    """The limit is the part of the saving that costs nothing."""
    assert choose([0.2, 0.0, 0.1], [SURE] * 3).hold.tolist() == [1]


def test_contenders_are_measured_until_they_are_known():
    """One noisy profile picks a limit that is about 1 % off, for ever."""
    made = choose([0.2, 0.01, 0.0], [UNSURE, UNSURE, UNSURE])
    assert made.measure.tolist() == [[False, True, False]]
    assert not choose([0.2, 0.01, 0.0], [SURE] * 3).measure.any()


def test_slices_that_cost_too_much_are_not_made():
    """In a run of seconds a slice is expensive."""
    assert not choose([0.3, 0.08, 0.0], [UNSURE] * 3, share=20.0).measure.any()


def test_extra_counts_what_slices_add():
    """Ceilings must leave room for measuring."""
    made = choose([0.2, 0.02, 0.0], [UNSURE] * 3)
    assert made.measure[0, 1]
    assert np.isclose(made.extra[0], np.expm1(0.02))


def test_unknown_limits_are_all_measured_and_the_profile_decides():
    """The first run of a job knows nothing about limits."""
    made = choose([np.nan] * 3, [np.inf] * 3)
    assert made.hold.tolist() == [-1]
    assert made.measure.all()


def test_limits_that_nobody_knows_are_left_out():
    """A trace or a board may lack a limit."""
    made = choose([np.nan, 0.0, 0.001], [np.inf, UNSURE, UNSURE])
    assert made.hold.tolist() == [1]
    assert made.measure.tolist() == [[False, False, True]]
