"""Plans for a power or a time beyond least energy, and for boards under limits."""

from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import OperatingPoint
from joulery.pipeline import (
    ClockChoices,
    PipelineConfig,
    PipelinePlan,
    build_problem,
    load_rank_plan,
    make_schedule,
    profiles_from_rows,
)
from support.pipelines import replay


def build(throttled=1.0, **settings):
    """Four stages, six microbatches, two boards each, whose least energy is at a middling clock.

    ``throttled`` is how many times as long work takes at the highest clock.
    """
    config = PipelineConfig(devices_per_rank=2, **settings)
    rows = [
        {
            "stage": stage,
            "instruction": kind,
            "frequency": 1400 * speed,
            "time": size * work / speed * (throttled if speed == 1.0 else 1.0),
            "energy": size * work / speed * (150 + 200 * speed**3),
        }
        for stage, size in enumerate((1.0, 1.1, 0.9, 1.2))
        for kind, work in (("forward", 0.05), ("backward", 0.1))
        for speed in np.linspace(1.0, 0.4, 25).tolist()
    ]
    profiles = profiles_from_rows(rows, smooth=False)
    return build_problem(make_schedule("1f1b", 4, 6), profiles, config)


@pytest.fixture(scope="module")
def frontier():
    """Plans of boards that need almost nothing while they wait, so that slow clocks do not pay."""
    return PipelinePlan(build(blocking_watts=5.0))


def test_a_power_is_kept_by_the_fastest_plan_that_does(frontier):
    """If it fails a budget is broken, or met by more time than needed."""
    full = frontier.full_clocks.joules / frontier.full_clocks.seconds
    seconds = 0.0
    for share in (1.0, 0.9, 0.75, 0.6, 0.5):
        plan = frontier.for_power(share * full)
        run = replay(frontier.problem, plan.durations, plan.joules_each)
        assert run.joules <= share * full * run.seconds * (1 + 1e-9)
        assert run.seconds >= seconds * (1 - 1e-9)
        seconds = run.seconds
        if run.seconds > 1.01 * frontier.fastest_seconds:
            faster = frontier.slowed(0.98 * run.seconds).at(0.98 * run.seconds)
            assert faster.joules > share * full * faster.seconds


def test_the_frontier_goes_on_beyond_least_energy(frontier):
    """If it fails the lowest clocks are out of reach of a budget that needs them."""
    lowest = PipelinePlan(frontier.problem.limited(1.0))
    assert lowest.fastest_seconds > 1.2 * frontier.slowest_seconds
    plan = frontier.for_power(1.01 * lowest.lowest_watts)
    assert plan.seconds > frontier.slowest_seconds
    watts = [
        p.joules / p.seconds
        for p in (
            frontier.for_seconds(share * frontier.slowest_seconds)
            for share in (1.0, 1.05, 1.1, 1.15, 1.2)
        )
    ]
    assert watts == sorted(watts, reverse=True)
    assert watts[0] > 1.05 * watts[-1]


def test_plans_for_a_time_are_not_longer(frontier):
    """If it fails a pace that was set is not kept."""
    longest = frontier.longest_seconds / frontier.fastest_seconds
    for share in (1.0, 1.1, 1.4, longest):
        seconds = share * frontier.fastest_seconds
        assert frontier.for_seconds(seconds).seconds <= seconds * (1 + 1e-9)
    assert frontier.for_seconds(seconds).seconds == pytest.approx(seconds)
    with pytest.raises(InfeasibleError, match="no clocks finish"):
        frontier.for_seconds(0.9 * frontier.fastest_seconds)
    with pytest.raises(InfeasibleError, match="no clocks make"):
        frontier.for_seconds(1.01 * frontier.longest_seconds)


def test_a_power_below_all_clocks_is_refused(frontier):
    """If it fails an impossible budget gets a plan that breaks it."""
    with pytest.raises(InfeasibleError, match="no clocks keep the pipeline below 10 W"):
        frontier.for_power(10.0)
    with pytest.raises(InvalidValueError):
        frontier.for_power(float("nan"))


def test_limits_of_boards_are_upper_clocks():
    """If it fails plans need clocks that capped boards do not reach, and end late."""
    free, limited = build(blocking_watts=5.0), build(blocking_watts=5.0, board_watts=260.0)
    for before, after in zip(free.profiles, limited.profiles, strict=True):
        points = (*after.points, *after.others)
        assert points
        assert all(point.watts <= 2 * 260.0 for point in points)
        clocks = [p.setting.clock_hertz for p in before.points if p.watts <= 2 * 260.0]
        assert after.full_clock.setting.clock_hertz >= max(clocks)
    assert PipelinePlan(limited).fastest_seconds > PipelinePlan(free).fastest_seconds


def test_a_limit_below_all_clocks_is_refused(frontier):
    """If it fails boards throttle below what was profiled, and every planned time is wrong."""
    with pytest.raises(InvalidValueError, match="at its lowest profiled clock"):
        build(blocking_watts=5.0, board_watts=1.0)
    with pytest.raises(InvalidValueError, match="at its lowest profiled clock"):
        frontier.limited(1.0)
    assert frontier.limited(260.0).fastest_seconds > frontier.fastest_seconds


def test_a_throttled_clock_is_not_full_speed():
    """If it fails one bad measurement makes equal time twice as long as boards need."""
    full, slow = PipelinePlan(build()), PipelinePlan(build(throttled=2.0))
    assert slow.full_clocks.seconds == pytest.approx(full.full_clocks.seconds / 0.975)
    assert slow.full_clocks.seconds == pytest.approx(slow.fastest_seconds)
    # A board at its power limit is a little slower at its highest clock, which runs without a plan.
    limit = PipelinePlan(build(throttled=1.05))
    assert limit.full_clocks.seconds == pytest.approx(1.05 * full.full_clocks.seconds)
    assert limit.fastest_seconds < limit.full_clocks.seconds


def test_a_throttled_clock_does_not_let_others_pass_a_limit():
    """If it fails clocks that draw more than a board's limit are planned below a throttled one."""
    limited = build(throttled=2.0, board_watts=260.0)
    points = [p for profile in limited.profiles for p in (*profile.points, *profile.others)]
    assert max(point.watts for point in points) <= 2 * 260.0


def test_work_that_names_no_clock_is_planned_for_a_power_or_a_time():
    """If it fails profiles of other knobs than clocks are refused with a limit nobody gave."""
    problem = build(blocking_watts=5.0)
    plain = [
        ClockChoices(tuple(OperatingPoint(p.seconds, p.joules) for p in choices.points))
        for choices in problem.profiles
    ]
    plans = PipelinePlan(replace(problem, profiles=tuple(plain)))
    assert plans.longest_seconds == plans.slowest_seconds
    assert plans.for_seconds(plans.slowest_seconds).seconds == plans.slowest_seconds
    with pytest.raises(InfeasibleError, match="no clocks keep the pipeline below 10 W"):
        plans.for_power(10.0)


def test_ranks_follow_a_saved_plan_beyond_least_energy(frontier, tmp_path):
    """If it fails ranks load faster clocks than the budget allows."""
    seconds = 1.15 * frontier.slowest_seconds
    frontier.save(tmp_path / "plan.json", seconds)
    plan = load_rank_plan(tmp_path / "plan.json", 0)
    assert frontier.slowest_seconds < plan.seconds <= seconds


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_a_saved_plan_keeps_its_power_with_clocks_held(frontier, tmp_path, share):
    """If it fails ranks that hold clocks for short work draw more than the budget."""
    quick = [profile.scaled(0.1) for profile in frontier.problem.profiles]
    plans = PipelinePlan(replace(frontier.problem, profiles=tuple(quick)))
    watts = share * plans.full_clocks.joules / plans.full_clocks.seconds
    plans.save(tmp_path / "plan.json", watts=watts)
    ranks = [load_rank_plan(tmp_path / "plan.json", rank) for rank in range(4)]
    # A board waits at 5 W; figures of steps are those of one board of two.
    work = [(step.seconds, 2 * (step.watts - 5.0)) for rank in ranks for step in rank.steps]
    joules = sum(seconds * above for seconds, above in work)
    assert 0.9 * watts < joules / ranks[0].seconds + 4 * 2 * 5.0 <= watts * (1 + 1e-9)
    with pytest.raises(InvalidValueError, match="both a time and a power"):
        plans.save(tmp_path / "plan.json", 1.0, watts=watts)
