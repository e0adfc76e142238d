"""Looking up lanes and arms: one as many."""

import numpy as np
import pytest

from joulery.jobs.policies.job_batch import only, own_places, places_of, rows_of, single

TABLE = np.arange(24.0).reshape(4, 3, 2)


@pytest.mark.parametrize("lanes", [[2], [2, 0], [3, 1, 2, 0]])
def test_one_lane_is_looked_up_as_many(lanes):
    """A server asks for one lane; it must get the figures of that lane in the same shape."""
    lane, arm = np.array(lanes), np.array(lanes) % 3
    assert TABLE[rows_of(lane)].tolist() == TABLE[lane].tolist()
    assert TABLE[places_of(lane, arm)].tolist() == TABLE[lane, arm].tolist()
    own = TABLE[lane]
    assert own[own_places(arm)].tolist() == own[np.arange(len(arm)), arm].tolist()


def test_only_what_a_mask_says():
    """Figures of one action must not end up beside the lane of another."""
    lane, arm = np.array([3, 1]), np.array([0, 2])
    assert [each.tolist() for each in only(np.array([False, True]), lane, arm)] == [[1], [2]]
    assert only(np.array([True, True]), lane, arm)[1] is arm


def test_single_entries_become_numbers():
    """Sums on numbers are what makes a decision for one job cheap."""
    assert single(np.array([3]), np.array([0.5])) == (3, 0.5)
    lane = np.array([3, 1])
    assert single(lane)[0] is lane
