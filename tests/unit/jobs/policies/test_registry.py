"""Policies by name."""

import pytest

from joulery.errors import InvalidValueError
from joulery.jobs.policies import make_policy, policy_names


@pytest.mark.parametrize("name", policy_names())
def test_every_name_makes_its_policy(name):
    """A name that the command line offers must work."""
    assert make_policy(name).name == name


def test_options_reach_whom_they_concern():
    """One command line serves several policies; each takes what it knows."""
    assert make_policy("zeus", beta=3.0, window=None).beta == 3.0
    assert make_policy("default", beta=3.0).name == "default"


def test_unknown_name_lists_the_known():
    """A misspelt name is answered with what there is."""
    with pytest.raises(InvalidValueError) as refusal:
        make_policy("zues")
    assert "zeus" in refusal.value.remedy
