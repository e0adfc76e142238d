"""A small made-up workload for tests of clusters."""

import pytest

from support.small_workload import small_workload as make_small_workload


@pytest.fixture
def small_workload():
    """The function that makes one."""
    return make_small_workload
