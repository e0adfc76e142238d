"""Which plan each pipeline follows, from what its ranks report."""

import itertools
import math
import re

import pytest

from joulery.errors import InfeasibleError, InvalidValueError
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
from joulery.pipeline.runtime._straggler import LatenessTracker
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


def test_ranks_and_paces_that_cannot_be_are_refused(plans):
    """If it fails a wrong number is lost in silence, or a pace is held that no clocks reach."""
    policy = StragglerPolicy(plans, 2)
    for pipeline, rank in ((9, 0), (-1, 0), (0, 9)):
        with pytest.raises(InvalidValueError, match="there is no rank"):
            policy.report(pipeline, rank, IterationTimes(0, 1.0, 1.0, {}))
    for seconds in (-1.0, math.inf, 0.5 * plans.fastest_seconds, 1e9):
        with pytest.raises((InvalidValueError, InfeasibleError)):
            policy.hold(seconds)
    assert policy.held_seconds is None


@pytest.mark.parametrize("copies", [1, 4])
def test_a_refused_power_names_one_that_is_not(copies):
    """If it fails the remedy is in watts of one pipeline, or of fewer than the clocks need."""
    profiles = profiles_from_rows(random_rows(2, 5, clocks=6), smooth=False)
    config = PipelineConfig(blocking_watts=60.0, replicas=copies)
    problem = build_problem(make_schedule("1f1b", 2, 3), profiles, config)
    policy = StragglerPolicy(PlanCache(PipelinePlan(problem)), 4)
    with pytest.raises(
        InfeasibleError, match="no clocks keep all pipelines together below 10 W"
    ) as refusal:
        policy.prepare_hold(None, 10.0)
    lowest = float(re.search(r"draw (\d+) W", refusal.value.remedy)[1])
    with pytest.raises(InfeasibleError):
        policy.prepare_hold(None, lowest - 1.0)
    policy.hold(policy.prepare_hold(None, lowest))
    policy.decide()
    assert lowest - 1.0 < policy.planned_watts() <= lowest


def test_a_power_is_that_of_all_pipelines_however_their_boards_differ(plans):
    """If it fails a budget is shared as if all boards drew what those of the first pipeline do."""
    rows = [row | {"energy": 2 * row["energy"]} for row in random_rows(2, 5, clocks=6)]
    problem = build_problem(
        make_schedule("1f1b", 2, 3),
        profiles_from_rows(rows, smooth=False),
        PipelineConfig(blocking_watts=60.0),
    )
    policy = StragglerPolicy([plans, PlanCache(PipelinePlan(problem))])
    full = policy.planned_watts()
    for share in (0.95, 0.85, 0.75):
        policy.hold(policy.prepare_hold(None, share * full))
        policy.decide()
        assert 0.97 * share * full < policy.planned_watts() <= share * full


def test_pipelines_keep_to_what_others_leave_their_devices(plans):
    """If it fails a cluster's cap throttles ranks one by one, or counts as drift of profiles."""
    policy, full = StragglerPolicy(plans, 2), plans.ranks()
    most_watts = sum(plan.peak_watts for plan in full) / len(full)

    numbers = itertools.count()

    def run(share, ratio=1.0):
        number = next(numbers)
        for pipeline in (0, 1):
            for rank in (0, 1):
                ratios = {(rank, "forward"): (ratio,) * 8}
                times = IterationTimes(number, ratio, 1.0, ratios, share_watts=share)
                policy.report(pipeline, rank, times)

    for _ in range(4):
        run(2 * most_watts)
        assert policy.decide() == []
    assert policy.share_watts > most_watts
    assert policy.pace_under(policy.share_watts) == pytest.approx(plans.fastest_seconds)
    run(0.8 * most_watts, ratio=1.3)
    watts = policy.share_watts
    assert 0.79 * most_watts < watts <= 0.8 * most_watts
    assert not policy.drifted(0), "caps are not drift"
    policy.follow((watts, policy.pace_under(watts)))
    first, second = policy.decide()
    assert first.factor == second.factor > 1
    peaks = [plan.peak_watts for plan in plans.ranks(first.factor, waits=first.waits)]
    assert 0.9 * watts < sum(peaks) / len(peaks) <= watts
    run(0.8 * most_watts, ratio=1.3)
    assert policy.decide() == [], "an iteration under caps is not late"
    for _ in range(5):
        run(2 * most_watts)
        assert policy.share_watts == watts, "until it has lasted"
    run(2 * most_watts)
    assert policy.share_watts > most_watts
    policy.restart()
    assert policy.followed is None


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
        for rank, ratio in ((0, 1.0), (1, 1.3)):
            ratios = {(rank, "forward"): (ratio,), (rank, "backward"): (ratio,)}
            policy.report(0, rank, IterationTimes(number, 1.0, 1.0, ratios))
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


def test_a_pipeline_that_vanishes_no_longer_slows_the_others(plans):
    """If it fails a job that lost a late replica stays slow for good."""
    policy = StragglerPolicy(plans, 3)
    for number in range(8):
        iteration(policy, number, 1.0, 1.0, 1.3)
    assert policy.factors == pytest.approx((1.3, 1.3, 1.0))
    for number in range(8, 13):
        iteration(policy, number, 1.0, 1.0)
    assert policy.factors == (1.0, 1.0, 1.0)
    for number in range(13, 18):
        iteration(policy, number, 1.0, 1.0, 1.3)  # it is back, and late as before
    assert policy.factors == pytest.approx((1.3, 1.3, 1.0))


def test_iterations_may_be_counted_from_zero_again(plans):
    """If it fails a restarted job keeps the pace of a straggler that it no longer has."""
    policy = StragglerPolicy(plans, 2)
    for number in range(1000, 1008):
        iteration(policy, number, 1.0, 1.3)
    assert max(policy.factors) > 1.2
    (assignment,) = [a for number in range(5) for a in iteration(policy, number, 1.0, 1.0)]
    assert (assignment.pipeline, assignment.factor) == (0, 1.0)
    assert assignment.from_iteration <= 3


def test_one_absurd_number_silences_nobody(plans):
    """If it fails a single report of iteration 10⁹ ends all decisions."""
    policy = StragglerPolicy(plans, 2)
    policy.report(0, 0, IterationTimes(10**9, 1.0, 1.0, {}))
    decisions = [a for number in range(6) for a in iteration(policy, number, 1.0, 1.2)]
    assert [(a.pipeline, a.from_iteration < 8) for a in decisions] == [(0, True)]


def test_decisions_are_made_once_per_iteration(plans, monkeypatch):
    """If it fails the work per iteration grows with the square of the pipelines."""
    updates = []
    plain = LatenessTracker._update
    monkeypatch.setattr(
        LatenessTracker, "_update", lambda self: (updates.append(1), plain(self))[1]
    )
    policy = StragglerPolicy(plans, 64)
    for number in range(4):
        for rank in (0, 1):
            for pipeline in range(64):
                policy.report(pipeline, rank, IterationTimes(number, 1.0, 1.0, {}))
                policy.decide()
    assert len(updates) <= 4


def test_a_new_run_begins_with_first_plans(plans):
    """If it fails a restarted job starts at the pace of a straggler of the run before."""
    policy = StragglerPolicy(plans, 2)
    policy.notice(0, 1.3)
    policy.decide()
    policy.restart()
    assert policy.factors == (1.0, 1.0)
    assert policy.newest_iteration == -1
    assert policy.decide() == []


def test_replicas_may_have_profiles_of_their_own(plans):
    """If it fails boards of two kinds follow plans of one of them."""
    factors = {(stage, kind): 1.1 for stage in (0, 1) for kind in ("forward", "backward")}
    policy = StragglerPolicy([plans, plans.rescaled(factors)])
    policy.hold(None)
    (assignment,) = policy.decide()
    assert (assignment.pipeline, assignment.factor) == (0, pytest.approx(1.1))


def test_a_pace_from_outside_holds_until_it_is_released(plans):
    """If it fails a power budget does not slow the pipelines, or they stay slow after it."""
    policy = StragglerPolicy(plans, 2)
    iteration(policy, 0, 1.0, 1.0)
    fast = policy.planned_watts()
    watts = 0.8 * fast
    policy.hold(policy.prepare_hold(None, watts))
    changes = policy.decide()
    assert [a.pipeline for a in changes] == [0, 1]
    assert policy.planned_watts() <= watts
    assert not any(a.waits for a in changes)
    # A straggler slower than that sets the pace, and gives it back.
    policy.notice(1, 2.0)
    assert [a.pipeline for a in policy.decide()] == [0, 1]
    policy.notice(1, 1.0)
    policy.decide()
    assert policy.planned_watts() <= watts
    policy.hold(None)
    assert [a.factor for a in policy.decide()] == [1.0, 1.0]
    with pytest.raises(InfeasibleError, match="no clocks keep all pipelines together below 1 W"):
        policy.prepare_hold(None, 1.0)
    with pytest.raises(InvalidValueError, match="both a time and a power"):
        policy.prepare_hold(1.0, 1.0)
