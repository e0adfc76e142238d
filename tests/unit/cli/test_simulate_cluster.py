import argparse

import pytest

from joulery.cli import simulate_cluster
from joulery.errors import InvalidValueError


def test_default_is_always_replayed_first():
    """There would be nothing to compare with."""
    assert simulate_cluster._policy_names("zeus,default,zeus") == ["default", "zeus"]
    assert simulate_cluster._policy_names("") == ["default"]


def test_unknown_policies_are_named():
    """A typing error would surface after minutes of work."""
    with pytest.raises(InvalidValueError, match="'zeuss'"):
        simulate_cluster._policy_names("zeuss")


@pytest.mark.parametrize("text", ["x", "-0.1", "1.1", "nan"])
def test_eta_is_a_share(text):
    """A weight outside of 0 to 1 would reward waste."""
    with pytest.raises(InvalidValueError, match="--eta"):
        simulate_cluster._share(text)


def test_options_parse():
    """The command could not be called as documented."""
    parser = argparse.ArgumentParser()
    simulate_cluster.add_arguments(parser)
    arguments = parser.parse_args(["--traces", "t", "--groups", "g", "--generate"])
    assert arguments.generate == "50000"
