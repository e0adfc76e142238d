"""Statistics of costs per batch size."""

import numpy as np
import pytest

from joulery.jobs.policies._zeus import ObservedCosts

ROWS = np.zeros(1, dtype=np.int64)


def filled(values, window=0):
    """Moments after some costs of one batch size."""
    costs = ObservedCosts.start((1, 2), window)
    for value in values:
        costs.add(ROWS, np.array([1]), np.array([value]))
    return [part[0].tolist() for part in costs.moments(ROWS)]


def test_mean_and_population_variance():
    """Algorithm 2 takes the variance of the costs seen, not an estimate of a larger set's."""
    values = [3.0, 5.0, 10.0]
    count, mean, variance = filled(values)
    assert count == [0, 3]
    assert mean[1] == pytest.approx(np.mean(values))
    assert variance[1] == pytest.approx(np.var(values))


def test_window_forgets():
    """Only the latest costs count, in a window that is full and in one that is not."""
    count, mean, variance = filled([100.0, 3.0, 5.0, 10.0], window=3)
    assert count[1] == 3
    assert mean[1] == pytest.approx(6)
    assert variance[1] == pytest.approx(np.var([3, 5, 10]))
    assert filled([4.0, 6.0], window=3)[0][1] == 2
    assert filled([4.0, 6.0], window=3)[2][1] == pytest.approx(1)


def test_large_numbers_keep_their_variance():
    """Costs are millions of joules; their squares must not swallow the differences."""
    values = [1e9 + 1, 1e9 + 2, 1e9 + 3]
    assert filled(values)[2][1] == pytest.approx(np.var([1, 2, 3]))
