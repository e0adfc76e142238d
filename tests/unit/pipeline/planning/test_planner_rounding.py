"""Clocks near wanted durations: in time always, and near the least energy."""

import itertools

import numpy as np
import pytest

from joulery.frontier import OperatingPoint
from joulery.pipeline import (
    ClockChoices,
    Instruction,
    PipelineConfig,
    PipelinePlan,
    PipelineProblem,
    build_problem,
    make_schedule,
    profiles_from_rows,
)
from joulery.pipeline.planning._network import network
from joulery.pipeline.planning._planner import PlanSweep
from joulery.pipeline.planning.native.library import THOROUGH
from support.pipelines import random_problem, random_rows


def deadlines(frontier, count=9):
    """Evenly from the fastest to the slowest."""
    return np.linspace(frontier.fastest_seconds, frontier.slowest_seconds, count).tolist()


def least_by_trying_all(problem, deadline):
    """The least joules above waiting over every combination of clocks, by brute force."""
    arrays = network(problem)
    ranks = [instruction.rank for instruction in problem.instructions]
    choices = [problem.profiles[profile].points for profile in problem.profile_of.tolist()]
    best = np.inf
    for combination in itertools.product(*choices):
        cost = sum(
            point.joules - problem.blocking_watts[rank] * point.seconds
            for point, rank in zip(combination, ranks, strict=True)
        )
        if cost < best:
            lasts = np.array([point.seconds for point in combination])
            if arrays.end_seconds(lasts) <= deadline:
                best = cost
    return best


@pytest.mark.parametrize("seed", range(8))
def test_close_to_the_best_of_all_combinations(seed):
    """If it fails the bound is wrong, or rounding throws away what clocks can do."""
    problem = random_problem(seed, 6, 2, points=4)
    frontier = PipelinePlan(problem)
    watts = float(problem.blocking_watts.sum())
    for deadline in deadlines(frontier, 5):
        plan = frontier.at(deadline)
        best = least_by_trying_all(problem, deadline) + watts * plan.seconds
        assert plan.lower_bound_joules <= best * (1 + 1e-9)
        assert best <= plan.joules * (1 + 1e-9)
        # Six instructions of four coarse clocks leave little room to even out.
        assert plan.joules <= best * 1.08


def test_a_short_instruction_makes_way_for_a_long_one():
    """If it fails a little slack is given away that a large saving needs."""
    long, short = ((1.0, 20.0), (2.0, 12.0)), ((0.01, 0.3), (0.02, 0.2))
    problem = PipelineProblem(
        instructions=tuple(Instruction(0, 0, "work", i) for i in range(3)),
        profiles=tuple(
            ClockChoices(tuple(OperatingPoint(t, e) for t, e in points)) for points in (long, short)
        ),
        profile_of=np.array([0, 1, 0]),
        edge_from=np.array([0, 1]),
        edge_to=np.array([1, 2]),
        edge_seconds=np.zeros(2),
        blocking_watts=np.zeros(1),
    )
    plan = PipelinePlan(problem).at(4.015)
    assert plan.durations.tolist() == [2.0, 0.01, 2.0]
    assert plan.joules == pytest.approx(24.3)


def test_small_graphs_lie_close_to_the_best_on_average():
    """If it fails rounding got worse where every combination of clocks can be tried."""
    excess = []
    for seed in range(30):
        problem = random_problem(300 + seed, 5, 2, points=4)
        frontier = PipelinePlan(problem)
        watts = float(problem.blocking_watts.sum())
        for deadline in deadlines(frontier, 6):
            plan = frontier.at(deadline)
            best = least_by_trying_all(problem, deadline) + watts * plan.seconds
            assert plan.seconds <= deadline
            excess.append(plan.joules / best - 1.0)
    assert np.mean(np.array(excess) < 1e-9) > 0.95
    assert np.mean(excess) < 0.001
    assert max(excess) < 0.07


def test_thorough_plans_never_cost_more():
    """If it fails the cheapest of what was tried is not the one that is kept."""
    frontier = PipelinePlan(random_problem(2, 40, 4, points=8))
    for deadline in deadlines(frontier):
        quick = frontier.at(deadline)
        thorough = PlanSweep(frontier, np.array([deadline]), THOROUGH)[0]
        assert thorough.joules_until(deadline) <= quick.joules_until(deadline) * (1 + 1e-12)


def test_more_effort_never_costs_more_in_sum():
    """If it fails the core does not keep the cheapest of its ways."""
    frontier = PipelinePlan(random_problem(2, 40, 4, points=8))
    times = deadlines(frontier)
    quick, usual = frontier.sweep(times), [frontier.at(deadline) for deadline in times]
    until = [plan.joules_until(t) for plan, t in zip(quick, times, strict=True)]
    assert sum(plan.joules_until(t) for plan, t in zip(usual, times, strict=True)) <= sum(until)


def test_swept_plans_are_in_time_and_close_to_the_bound():
    """If it fails many plans at once are late, or much worse than single ones."""
    profiles = profiles_from_rows(random_rows(4, 3), smooth=False)
    config = PipelineConfig(blocking_watts=80.0)
    frontier = PipelinePlan(build_problem(make_schedule("1f1b", 4, 8), profiles, config))
    plans = frontier.sweep(deadlines(frontier, 101))
    assert np.all(plans.seconds <= plans.deadlines)
    assert [plan.joules for plan in plans] == plans.joules.tolist()
    assert np.mean([plan.gap for plan in plans]) < 0.005


@pytest.mark.parametrize("seed", [1, 2])
def test_gap_of_a_pipeline_is_small(seed):
    """If it fails realised plans lose more than 0.3 % of energy to the steps of clocks."""
    profiles = profiles_from_rows(random_rows(4, seed), smooth=False)
    frontier = PipelinePlan(
        build_problem(make_schedule("1f1b", 4, 8), profiles, PipelineConfig(blocking_watts=80.0))
    )
    gaps = [frontier.at(deadline).gap for deadline in deadlines(frontier, 41)]
    assert np.mean(gaps) <= 0.003
    assert max(gaps) <= 0.01


def test_nothing_is_faster_than_it_needs_to_be():
    """If it fails slack is left that the next slower clock of some instruction would fit."""
    problem = random_problem(4, 20, 3, points=5)
    frontier, arrays = PipelinePlan(problem), network(problem)
    for deadline in deadlines(frontier, 5):
        plan = frontier.at(deadline)
        for i in range(len(problem)):
            curve = arrays.curves[arrays.curve_of[i]]
            slower = curve.seconds[curve.seconds > plan.durations[i]]
            if len(slower):
                lasts = plan.durations.copy()
                lasts[i] = slower[0]
                assert arrays.end_seconds(lasts) > deadline * (1 - 1e-12)
