"""The compiled decision over whole histories of recorded jobs."""

import os
from pathlib import Path

import numpy as np
import pytest

from joulery.recurring.joulery import Joulery
from joulery.recurring.native.library import prepare
from joulery.simulate.recurring import Options, simulate
from joulery.simulate.traces import read_traces
from joulery.testing.decisions import Compared

TRACES = Path(os.environ.get("JOULERY_DATA", Path(__file__).parents[4] / "shared/data")) / "zeus"
pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(not TRACES.is_dir(), reason="needs the traces of You et al."),
]


def test_recorded_jobs_are_decided_as_on_arrays():
    """Published figures would otherwise hang on whether there is a compiler."""
    assert prepare()
    loads = read_traces(TRACES).workloads
    policy = Compared(Joulery())
    for overlap, eta in ((1, 0.5), (1, 1.0), (4, 0.5), (20, 0.0)):
        simulate(loads, policy, 50, range(12), Options(overlap=overlap, eta=eta))
    assert policy.decisions >= 20_000
    assert policy.ties <= 1e-4 * policy.decisions
    assert np.count_nonzero(policy.reasons_seen) >= 5
