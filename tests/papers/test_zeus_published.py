"""Figures of You, Chung and Chowdhury (Zeus, NSDI'23) from the traces of its artifact."""

import os
from pathlib import Path

import pytest
from papers.zeus.claims import claims
from papers.zeus.policies import last_five
from papers.zeus.study import Study, published_traces

from joulery.jobs.policies import ZeusPolicy
from joulery.simulate import simulate

DATA = Path(os.environ.get("JOULERY_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(
        not (DATA / "zeus" / "summary_power_v100.csv").exists(), reason="no traces here"
    ),
]


@pytest.fixture(scope="module")
def workloads():
    """On the GPU of the publication's own figures."""
    return published_traces(DATA).select(gpus=["v100"]).workloads


def _by_words(*figures):
    return {claim.what: claim for claim in claims({data.name: data for data in figures})}


def test_savings_potential_is_the_published_one(workloads):
    """Fig. 1 would not be reproduced: the traces or Eq. 1 are read wrongly."""
    found = _by_words(*Study(workloads).figures([1]))
    # The publication prints 23.8-74.7, 3.4-65.0 and 3.0-31.5.
    joint = found["energy that the best batch size and limit together save"].spans["traces"]
    assert joint == pytest.approx((23.8, 74.7), abs=0.05)
    batch_size = found["energy that the best batch size alone saves"].spans["traces"]
    assert batch_size == pytest.approx((3.0, 65.0), abs=0.05)
    limit = found["energy that the best power limit alone saves"].spans["traces"]
    assert limit == pytest.approx((3.0, 31.4), abs=0.05)


def test_the_optima_of_deepspeech2_are_the_published_ones(workloads):
    """Fig. 2b would name other settings than (32, 100 W) and (48, 250 W)."""
    table = Study(workloads).makers()[()]()
    rows = table.main.where(workload="librispeech")
    for objective, setting in (("least energy", (32, 100.0)), ("least time", (48, 250.0))):
        found = rows.where(objective=objective)
        assert (found.column("batch_size")[0], found.column("limit_watts")[0]) == setting


def test_zeus_saves_what_was_published(workloads):
    """Fig. 6 would contradict the publication: 15.3 to 75.8 % energy, -60.1 to +12.8 % time."""
    log = simulate(workloads, ZeusPolicy(), None, range(60))
    found = _by_words(last_five({"zeus": log}))
    energy = found["energy saved in the last five recurrences"].spans["zeus"]
    assert energy == pytest.approx((17.6, 74.4), abs=2.5)
    time = found["change of time in the last five recurrences"].spans["zeus"]
    assert time == pytest.approx((-63.4, 8.4), abs=2.5)
