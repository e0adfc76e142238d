"""Make the folder ``papers`` importable, and a small workload for its tests."""

import sys
from pathlib import Path

import pytest

from support.small_workload import small_workload as make_small_workload

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture
def small_workload():
    """The function that makes one."""
    return make_small_workload
