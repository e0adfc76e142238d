"""Which plan each pipeline follows, from what its ranks report."""

import pytest

from joulery.pipeline import (
    IterationTimes,
    PipelineConfig,
    PipelinePlan,
    PlanCache,
    StragglerPolicy,
    build_problem,
    make_schedule,
    profiles_from_rows,
)
from support.pipelines import random_rows


@pytest.fixture(scope="module")
def plans():
    """Two stages, three microbatches."""
    profiles = profiles_from_rows(random_rows(2, 5, clocks=6), smooth=False)
    config = PipelineConfig(blocking_watts=60.0)
    return PlanCache(PipelinePlan(build_problem(make_schedule("1f1b", 2, 3), profiles, config)))


def iteration(policy, number, *factors, ratios=None):
    """Both ranks of every pipeline report; the first rank ends last."""
    for pipeline, factor in enumerate(factors):
        for rank in (0, 1):
            seconds = factor * (1.0 - 0.1 * rank)
            policy.report(pipeline, rank, IterationTimes(number, seconds, 1.0, ratios or {}))
    return policy.decide()


def test_all_others_move_to_the_pace_of_a_late_pipeline_and_back(plans):
    """If it fails extrinsic bloat stays, or the job stays slow."""
    policy = StragglerPolicy(plans, 3)
    decisions = [iteration(policy, number, 1.0, 1.0, 1.0) for number in range(4)]
    assert not any(decisions)
    decisions = [iteration(policy, number, 1.0, 1.2, 1.0) for number in range(4, 9)]
    (first,) = [assignments for assignments in decisions if assignments]
    assert [(a.pipeline, pytest.approx(a.factor)) for a in first] == [(0, 1.2), (2, 1.2)]
    # All switch two iterations after the newest report.
    assert {a.from_iteration for a in first} == {4 + decisions.index(first) + 2}
    assert policy.current(0).factor == pytest.approx(1.2)
    assert policy.current(1) is None
    decisions = [iteration(policy, number, 1.0, 1.0, 1.0) for number in range(9, 14)]
    (last,) = [assignments for assignments in decisions if assignments]
    assert [(a.pipeline, a.factor) for a in last] == [(0, 1.0), (2, 1.0)]


def test_a_notice_decides_at_once(plans):
    """If it fails a known straggler costs iterations of waiting at full power."""
    policy = StragglerPolicy(plans, 2)
    iteration(policy, 0, 1.0, 1.0)
    policy.notice(1, 1.15)
    (assignment,) = policy.decide()
    assert (assignment.pipeline, assignment.factor) == (0, pytest.approx(1.15))
    assert policy.decide() == []
    policy.notice(1, 1.0)
    assert [a.factor for a in policy.decide()] == [1.0]


def test_an_iteration_counts_once_all_ranks_have_reported(plans):
    """If it fails the first rank to end decides how long its pipeline took."""
    policy = StragglerPolicy(plans, 2)
    for number in range(6):
        policy.report(0, 0, IterationTimes(number, 2.0, 1.0, {}))
        policy.report(1, 0, IterationTimes(number, 1.0, 1.0, {}))
    assert policy.decide() == []
    for number in range(200):
        policy.report(0, 0, IterationTimes(number, 2.0, 1.0, {}))
    assert len(policy._all[0].open) <= 64


def test_a_drifted_pipeline_is_planned_anew_and_leads_the_others(plans):
    """If it fails a throttled stage is seen as a straggler only, and its own pipeline hurries."""
    policy = StragglerPolicy(plans, 2)
    for number in range(12):
        ratios = {(1, "forward"): (1.3,), (1, "backward"): (1.3,)}
        policy.report(0, 1, IterationTimes(number, 1.0, 1.0, ratios))
    factors = policy.drifted(0)
    assert factors == {(1, "forward"): 1.3, (1, "backward"): 1.3}
    assert policy.drifted(1) == {}
    slower = policy.plans_of(0).rescaled(factors)
    update = policy.replace_plans(0, slower)
    assert (update.pipeline, update.factor, update.from_iteration) == (0, 1.0, 13)
    assert policy.drifted(0) == {}
    (assignment,) = policy.decide()
    assert assignment.pipeline == 1
    assert assignment.factor == pytest.approx(slower.fastest_seconds / plans.fastest_seconds)
    assert policy.current(0).plans is slower
