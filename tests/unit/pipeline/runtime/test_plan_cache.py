"""Plans for every slowdown, and each rank's share of them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.pipeline import (
    PipelineConfig,
    PipelinePlan,
    PlanCache,
    RankPlan,
    build_problem,
    make_schedule,
    profiles_from_rows,
)
from joulery.pipeline.planning._rank_plan import rank_plans
from support.pipelines import random_rows


@pytest.fixture(scope="module")
def plans():
    """Three stages, four microbatches, two devices each."""
    profiles = profiles_from_rows(random_rows(3, 5, clocks=8), smooth=False)
    config = PipelineConfig(blocking_watts=60.0, devices_per_rank=2)
    problem = build_problem(make_schedule("1f1b", 3, 4), profiles, config)
    return PlanCache(PipelinePlan(problem))


def test_plans_keep_the_pace_asked_for(plans):
    """If it fails a pipeline becomes the straggler that it was slowed down for."""
    for factor in (1.0, 1.003, 1.1, 1.27, 9.0):
        assert plans.held(factor).plan.seconds <= plans.fastest_seconds * factor * (1 + 1e-9)
    assert plans.held(1.1).plan.joules < plans.held(1.0).plan.joules


def test_close_paces_share_a_plan(plans):
    """If it fails a decision costs a plan each time."""
    assert plans.ranks(1.1001) is plans.ranks(1.1002)
    assert plans.ranks(50.0) is plans.ranks(60.0)


def test_preparing_makes_look_ups(plans):
    """If it fails the first straggler waits for planning."""
    plans.prepare(1.03)
    numbers = set(plans._made)
    plans.ranks(1.02)
    assert set(plans._made) == numbers


def test_paces_below_one_are_refused(plans):
    """If it fails an impossible request gets a plan."""
    with pytest.raises(InvalidValueError, match="below 1"):
        plans.ranks(0.9)


def test_each_rank_gets_its_own_steps_in_order(plans):
    """If it fails a rank sets the clocks of another."""
    order = make_schedule("1f1b", 3, 4).ranks
    for rank, share in enumerate(plans.ranks(1.1)):
        assert share.rank == rank
        assert tuple(step.instruction for step in share.steps) == order[rank]


def test_limits_are_the_power_of_one_device(plans):
    """If it fails boards without clock locks get the limit of a whole group."""
    plan = plans.held(1.1).plan
    watts_each = plan.joules_each / plan.durations / 2
    limits = [step.watts for share in plans.ranks(1.1) for step in share.steps]
    assert max(limits) == pytest.approx(watts_each.max())
    # The instruction of most power in a run decides, so that none is slowed down.
    assert all(
        watts >= limit - 1e-9 for watts, limit in zip(limits, watts_each.tolist(), strict=True)
    )


def test_peaks_are_the_power_of_a_device_in_its_hungriest_second(plans):
    """If it fails ranks promise a cluster's agent more, or less, than they draw."""
    problem, plan = plans.problem, plans.held(1.1).plan
    moments = np.arange(0.0, 3.0, 1e-3)
    for rank_plan in plans.ranks(1.1):
        watts = np.full(len(moments), problem.blocking_watts[rank_plan.rank])
        for number, item in enumerate(problem.instructions):
            since = (moments - plan.starts[number]) % plan.seconds
            if item.rank == rank_plan.rank:
                runs = since < plan.durations[number]
                watts[runs] = plan.joules_each[number] / plan.durations[number]
        seconds = np.convolve(watts, np.full(1000, 1e-3), mode="valid")
        assert rank_plan.peak_watts == pytest.approx(1.02 * seconds.max() / 2, rel=0.01)


def test_plans_travel_as_json(plans):
    """If it fails a rank follows another plan than the coordinator sent."""
    share = plans.ranks(1.1)[1]
    assert RankPlan.from_dict(json.loads(json.dumps(share.to_dict()))) == share


@pytest.mark.parametrize(
    "wrong", [{}, {"rank": 0, "seconds": 1.0, "steps": [[1]]}, {"rank": "x"}, {"rank": None}]
)
def test_what_is_no_plan_is_refused(wrong):
    """If it fails a malformed message sets clocks."""
    with pytest.raises(InvalidValueError, match="no plan of a rank"):
        RankPlan.from_dict(wrong)


def test_work_without_a_clock_keeps_the_one_before(plans):
    """If it fails clocks jump to full for instructions that do not care."""
    plan = plans.held(1.0).plan
    clocks = plan.clocks_hertz.copy()
    order = np.argsort(plan.starts)
    first = [i for i in order if plans.problem.instructions[i].rank == 0]
    clocks[first[0]] = clocks[first[2]] = math.nan
    share = rank_plans(plans.problem, replace(plan, clocks_hertz=clocks))[0]
    assert share.steps[0].hertz == clocks[first[1]]
    assert share.steps[2].hertz == clocks[first[1]]
