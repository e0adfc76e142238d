"""The pruning rounds: order, dropping, abandonment."""

import numpy as np
import pytest

from joulery.jobs.policies import Exploration

ONE = np.zeros(1, dtype=np.int64)


def explore(outcomes, *, arms=5, default=3):
    """The order in which one job tries batch sizes; ``outcomes`` maps (round, arm) to a cost.

    What is not in it fails.
    """
    state = Exploration.of(np.ones((1, arms), dtype=bool), np.array([default]))
    order = []
    while not state.over[0]:
        arm, number = int(state.arm[0]), int(state.round[0])
        order.append(arm)
        state.pending[0] = True
        cost = outcomes.get((number, arm))
        state.advance(ONE, np.array([arm]), np.array([cost or 9e9]), np.array([cost is not None]))
        assert len(order) < 50
    return order, np.flatnonzero(state.candidates[0]).tolist()


def test_down_then_up():
    """From the default to the smallest, then from above the default to the largest."""
    costs = {(r, a): 10.0 + a for r in range(2) for a in range(5)}
    order, kept = explore(costs)
    assert order[:5] == [3, 2, 1, 0, 4]
    assert kept == [0, 1, 2, 3, 4]


def test_second_round_starts_from_the_best():
    """The batch size with the least cost of the first round becomes the default."""
    costs = {(r, a): 10.0 + abs(a - 1) for r in range(2) for a in range(5)}
    order, _ = explore(costs)
    assert order[5:] == [1, 0, 2, 3, 4]


def test_failure_turns_the_direction():
    """Below a failure nothing is tried; above one the round ends."""
    costs = {(r, a): 10.0 for r in range(2) for a in (3, 2)}
    order, kept = explore(costs)
    assert order == [3, 2, 1, 4, 3, 2]
    assert kept == [2, 3]


def test_default_that_fails_still_looks_upward():
    """In the second round the best of the first may fail by bad luck."""
    costs = {(0, 3): 10.0, (0, 2): 12.0, (0, 4): 11.0, (1, 4): 11.0}
    order, kept = explore(costs)
    assert order == [3, 2, 1, 4, 3, 4]
    assert kept == [4]


def test_round_without_success_drops_nothing():
    """Where all fail there is nothing to go by."""
    _, kept = explore({})
    assert kept == [0, 1, 2, 3, 4]


def test_ties_keep_the_first():
    """Equal costs leave the start where it was first seen."""
    costs = {(r, a): 10.0 for r in range(2) for a in range(5)}
    order, _ = explore(costs)
    assert order[5] == 3


def test_only_what_is_awaited_moves_it():
    """Results of concurrent runs of other batch sizes do not disturb the order."""
    state = Exploration.of(np.ones((1, 5), dtype=bool), np.array([3]))
    state.pending[0] = True
    state.advance(ONE, np.array([1]), np.array([5.0]), np.array([True]))
    assert state.arm[0] == 3
    assert state.pending[0]
    state.advance(ONE, np.array([3]), np.array([5.0]), np.array([True]))
    assert state.arm[0] == 2
    assert not state.pending[0]


def test_abandoned_try_is_made_again():
    """A worker that died says nothing about its batch size."""
    state = Exploration.of(np.ones((1, 5), dtype=bool), np.array([3]))
    state.pending[0] = True
    state.abandon(ONE, np.array([2]))
    assert state.pending[0]
    state.abandon(ONE, np.array([3]))
    assert not state.pending[0]
    assert state.arm[0] == 3


@pytest.mark.parametrize("default", [0, 2])
def test_padding_is_never_tried(default):
    """Jobs with fewer batch sizes than others stay within their own."""
    valid = np.array([[True, True, True, False, False]])
    state = Exploration.of(valid, np.array([default]))
    while not state.over[0]:
        assert valid[0, state.arm[0]]
        state.pending[0] = True
        state.advance(ONE, state.arm.copy(), np.array([1.0]), np.array([True]))
    assert state.candidates.tolist() == valid.tolist()
