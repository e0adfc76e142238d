"""Plans whose clocks are held long enough for hardware."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.errors import InvalidValueError
from joulery.frontier import OperatingPoint, Setting
from joulery.pipeline import (
    ClockChoices,
    Instruction,
    PipelineConfig,
    PipelinePlan,
    PipelineProblem,
    build_problem,
    make_schedule,
    plan_pipeline,
    profiles_from_rows,
)
from joulery.pipeline.planning._holding import hold_clocks, rank_orders, run_seconds
from support.pipelines import random_problem, random_rows, replay

problems = st.builds(
    random_problem,
    st.integers(0, 2**32),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 6),
    whole=st.booleans(),
)


def chain(profiles, blocking=0.0):
    """One rank that runs one instruction after the other."""
    count = len(profiles)
    return PipelineProblem(
        tuple(Instruction(0, 0, "forward", i) for i in range(count)),
        tuple(profiles),
        np.arange(count),
        np.arange(count - 1),
        np.arange(1, count),
        np.zeros(max(0, count - 1)),
        np.array([blocking]),
    )


def work(*choices):
    """Choices of (seconds, joules, megahertz)."""
    return ClockChoices(
        tuple(OperatingPoint(t, e, Setting(clock_hertz=f * 1e6)) for t, e, f in choices)
    )


def held_for(problem, plan_):
    """By rank: how long each clock is held."""
    return [
        run_seconds(plan_.clocks_hertz[order].tolist(), plan_.durations[order].tolist())
        for order in rank_orders(problem, plan_)
    ]


@settings(max_examples=60, deadline=None)
@given(problems, st.floats(0.0, 1.2), st.floats(0.0, 6.0))
def test_held_plans_are_never_late_and_hold_their_clocks(problem, share, minimum):
    """If it fails hardware is asked for the impossible, or the iteration gets longer."""
    frontier = PipelinePlan(problem)
    span = frontier.slowest_seconds - frontier.fastest_seconds
    ideal = frontier.at(frontier.fastest_seconds + share * span)
    holding = hold_clocks(frontier, ideal, minimum)
    plan = holding.plan
    run = replay(problem, plan.durations, plan.joules_each)
    assert run.seconds <= ideal.deadline_seconds * (1 + 1e-12)
    assert run.seconds == pytest.approx(plan.seconds, rel=1e-12)
    assert run.joules == pytest.approx(plan.joules, rel=1e-9)
    for rank, runs in enumerate(held_for(problem, plan)):
        if rank not in holding.unheld_ranks and len(runs) > 1:
            assert min(runs) >= minimum * (1 - 1e-9)
    assert plan.joules_until(ideal.deadline_seconds) == pytest.approx(
        ideal.joules_until(ideal.deadline_seconds) + holding.extra_joules, abs=1e-6
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(1.0, 1.2))
def test_every_rank_is_held_where_stages_share_clocks(seed, factor):
    """If it fails measured pipelines keep clocks that no board can follow."""
    profiles = profiles_from_rows(random_rows(3, seed, clocks=8), smooth=False)
    problem = build_problem(
        make_schedule("1f1b", 3, 4), profiles, PipelineConfig(blocking_watts=60.0)
    )
    frontier = PipelinePlan(problem)
    ideal = frontier.for_straggler(factor)
    holding = hold_clocks(frontier, ideal, 0.09)
    assert not holding.unheld_ranks
    assert holding.plan.seconds <= ideal.deadline_seconds
    for runs in held_for(problem, holding.plan):
        assert len(runs) == 1 or min(runs) >= 0.09 * (1 - 1e-9)


def test_enough_time_changes_nothing():
    """If it fails energy is given up for nothing."""
    problem = chain([work((1, 10, 1400), (2, 6, 700)), work((1, 10, 1400))])
    frontier = PipelinePlan(problem)
    ideal = frontier.at(3.0)
    holding = hold_clocks(frontier, ideal, 0.03)
    assert holding.plan.clocks_hertz.tolist() == ideal.clocks_hertz.tolist()
    assert holding.extra_joules == pytest.approx(0.0)
    assert [len(runs) for runs in held_for(problem, holding.plan)] == [2]


def test_a_short_instruction_takes_the_clock_of_its_neighbours():
    """If it fails a clock is set for less time than it takes to set."""
    slow = work((1.0, 20, 1400), (2.0, 12, 700))
    short = work((0.01, 0.21, 1400), (0.02, 0.2, 700))
    problem = chain([slow, short, slow])
    frontier = PipelinePlan(problem)
    ideal = frontier.at(4.015)  # both long ones at 700 MHz, the short one must be fast
    assert ideal.clocks_hertz.tolist() == [7e8, 1.4e9, 7e8]
    holding = hold_clocks(frontier, ideal, 0.5)
    assert holding.plan.seconds <= 4.015
    assert holding.plan.clocks_hertz.tolist() in ([7e8, 1.4e9, 1.4e9], [1.4e9, 1.4e9, 7e8])
    assert holding.extra_joules == pytest.approx(8.0)


def test_time_freed_by_faster_clocks_is_given_back():
    """If it fails merged runs leave energy on the table."""
    fixed = work((0.2, 3.0, 1400))
    short = work((0.2, 3.0, 1400), (0.4, 1.0, 700))
    long = work((1.0, 30.0, 1400), (1.15, 29.0, 1200))
    # The short one had time for 700 MHz, but must be fast with the one before it: the long one
    # can have that time.
    problem = chain([fixed, short, long])
    frontier = PipelinePlan(problem)
    ideal = frontier.at(1.6)
    assert ideal.clocks_hertz.tolist() == [1.4e9, 0.7e9, 1.4e9]
    holding = hold_clocks(frontier, ideal, 0.35)
    assert holding.plan.clocks_hertz.tolist() == [1.4e9, 1.4e9, 1.2e9]
    assert holding.extra_joules == pytest.approx(1.0)


def test_a_single_clock_may_be_held_for_ever():
    """If it fails an iteration shorter than the minimum hold time cannot be planned."""
    problem = chain([work((0.01, 2, 1400), (0.02, 1, 700))] * 3)
    frontier = PipelinePlan(problem)
    holding = hold_clocks(frontier, frontier.at(0.05), 3.0)
    assert [len(runs) for runs in held_for(problem, holding.plan)] == [1]
    assert holding.plan.seconds <= 0.05
    assert not holding.unheld_ranks


def test_work_without_clocks_joins_any_run():
    """If it fails a plan for instructions of fixed time cannot be held."""
    fixed = ClockChoices((OperatingPoint(0.001, 0.1, Setting()),))
    problem = chain([work((1, 10, 1400), (2, 6, 700)), fixed, work((1, 10, 1400), (2, 6, 700))])
    frontier = PipelinePlan(problem)
    holding = hold_clocks(frontier, frontier.at(4.001), 0.3)
    assert [len(runs) for runs in held_for(problem, holding.plan)] == [1]
    assert math.isnan(holding.plan.clocks_hertz[1])


def test_clocks_between_measured_ones_promise_no_more_than_they_hold():
    """If it fails a run's clock that was not measured for some work is taken to be better."""
    a = work((1.0, 10, 1400), (2.0, 6, 700))
    b = work((0.01, 1.0, 1000), (0.02, 0.5, 500))
    problem = chain([a, b])
    frontier = PipelinePlan(problem)
    holding = hold_clocks(frontier, frontier.at(1.01), 0.5)
    assert holding.plan.clocks_hertz.tolist() == [1.4e9, 1.4e9]
    assert holding.plan.durations[1] == 0.01
    assert holding.plan.joules_each[1] > 1.0


@pytest.mark.parametrize("wrong", [-1.0, math.inf])
def test_senseless_hold_times_are_refused(wrong):
    """If it fails a plan is held forever."""
    frontier = PipelinePlan(chain([work((1, 10, 1400))]))
    with pytest.raises(InvalidValueError):
        hold_clocks(frontier, frontier.at(1.0), wrong)


@pytest.mark.parametrize("seed", range(4))
def test_runs_take_the_time_that_was_measured_at_their_clock(seed):
    """If it fails a clock at which a device throttles is promised the time of another clock."""
    draw = np.random.default_rng(seed)
    rows = random_rows(4, seed, clocks=18)
    for row in rows:
        # Noise, and now and then a clock at which the device throttles.
        row["time"] *= (1 + 0.01 * draw.standard_normal()) * draw.choice([1.0, 1.05], p=[0.9, 0.1])
    measured = {
        (row["stage"], row["instruction"], round(1e6 * row["frequency"])): row["time"]
        for row in rows
    }
    profiles = profiles_from_rows(rows, smooth=False)
    config = PipelineConfig(blocking_watts=75.0, communication_seconds=0.001)
    frontier = plan_pipeline(profiles, microbatches=8, config=config)
    for factor in (1.0, 1.03, 1.1):
        plan = frontier.for_straggler(factor)
        for minimum in (0.03, 0.1, 0.3):
            holding = hold_clocks(frontier, plan, minimum).plan
            lasts = [
                measured[item.stage, item.kind, round(clock)]
                for item, clock in zip(
                    frontier.problem.instructions, holding.clocks_hertz.tolist(), strict=True
                )
            ]
            ran = replay(frontier.problem, lasts, holding.joules_each)
            assert ran.seconds <= plan.deadline_seconds * (1 + 1e-9)
