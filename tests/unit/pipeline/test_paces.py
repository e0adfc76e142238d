"""Plans for every pace, and each rank's share of them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.pipeline.build import Surroundings, build
from joulery.pipeline.dwell import Dwell
from joulery.pipeline.paces import Paces
from joulery.pipeline.profiles import profiles_of
from joulery.pipeline.rank_plan import RankPlan, rank_plans
from joulery.pipeline.schedules import schedule
from joulery.testing.pipelines import random_rows


@pytest.fixture(scope="module")
def paces():
    """Three stages, four microbatches, two devices each."""
    profiles = profiles_of(random_rows(3, 5, clocks=8), smooth=False)
    around = Surroundings(blocking_watts=60.0, devices_per_rank=2)
    return Paces(build(schedule("1f1b", 3, 4), profiles, around), Dwell(0.01), devices=2)


def test_plans_keep_the_pace_asked_for(paces):
    """If it fails a pipeline becomes the straggler that it was slowed down for."""
    for factor in (1.0, 1.003, 1.1, 1.27, 9.0):
        assert paces.held(factor).plan.seconds <= paces.fastest_seconds * factor * (1 + 1e-9)
    assert paces.held(1.1).plan.joules < paces.held(1.0).plan.joules


def test_close_paces_share_a_plan(paces):
    """If it fails a decision costs a plan each time."""
    assert paces.ranks(1.1001) is paces.ranks(1.1002)
    assert paces.ranks(50.0) is paces.ranks(60.0)


def test_preparing_makes_look_ups(paces):
    """If it fails the first straggler waits for planning."""
    paces.prepare(1.03)
    known = dict(paces._ranks)
    paces.ranks(1.02)
    assert paces._ranks == known


def test_paces_below_one_are_refused(paces):
    """If it fails somebody asks for the impossible and gets a plan."""
    with pytest.raises(InvalidValueError, match="too fast"):
        paces.ranks(0.9)


def test_each_rank_gets_its_own_steps_in_order(paces):
    """If it fails a rank sets the clocks of another."""
    order = schedule("1f1b", 3, 4).ranks
    for rank, share in enumerate(paces.ranks(1.1)):
        assert share.rank == rank
        assert tuple(step.instruction for step in share.steps) == order[rank]


def test_limits_are_the_power_of_one_device(paces):
    """If it fails boards without clock locks get the limit of a whole group."""
    made = paces.held(1.1).plan
    each = made.joules_each / made.durations / 2
    found = [step.watts for share in paces.ranks(1.1) for step in share.steps]
    assert max(found) == pytest.approx(each.max())
    # The hungriest instruction of a run decides, so that none is slowed down.
    assert all(watts >= own - 1e-9 for watts, own in zip(found, each.tolist(), strict=True))


def test_plans_travel_as_json(paces):
    """If it fails a rank follows another plan than the coordinator sent."""
    share = paces.ranks(1.1)[1]
    assert RankPlan.from_dict(json.loads(json.dumps(share.to_dict()))) == share


@pytest.mark.parametrize(
    "wrong", [{}, {"rank": 0, "seconds": 1.0, "steps": [[1]]}, {"rank": "x"}, {"rank": None}]
)
def test_what_is_no_plan_is_refused(wrong):
    """If it fails nonsense on the wire sets clocks."""
    with pytest.raises(InvalidValueError, match="no plan of a rank"):
        RankPlan.from_dict(wrong)


def test_work_without_a_clock_keeps_the_one_before(paces):
    """If it fails clocks jump to full for instructions that do not care."""
    made = paces.held(1.0).plan
    clocks = made.clocks_hertz.copy()
    order = np.argsort(made.starts)
    first = [i for i in order if paces.problem.instructions[i].rank == 0]
    clocks[first[0]] = clocks[first[2]] = math.nan
    share = rank_plans(paces.problem, replace(made, clocks_hertz=clocks))[0]
    assert share.steps[0].hertz == clocks[first[1]]
    assert share.steps[2].hertz == clocks[first[1]]
