"""What holds for the plans of every pipeline."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.pipeline import PipelinePlan
from support.pipelines import random_problem

problems = st.builds(
    random_problem,
    st.integers(0, 2**32),
    st.integers(1, 25),
    st.integers(1, 5),
    st.integers(1, 7),
    whole=st.booleans(),
)
shares = st.floats(0.0, 1.2)


def deadline_at(frontier, share):
    """A deadline on the frontier, or a little beyond its slow end."""
    span = frontier.slowest_seconds - frontier.fastest_seconds
    return frontier.fastest_seconds + share * span


def simulate(problem, durations):
    """Start everything as soon as it can, by waiting rounds instead of an order or events."""
    starts = np.zeros(len(problem))
    edges = (problem.edge_from, problem.edge_to, problem.edge_seconds)
    for _ in range(len(problem)):
        later = starts.copy()
        np.maximum.at(later, edges[1], starts[edges[0]] + durations[edges[0]] + edges[2])
        if (later == starts).all():
            break
        starts = later
    return starts


@given(problems, shares)
def test_never_later_than_the_deadline(problem, share):
    """If it fails a plan lengthens the iteration it promised not to."""
    frontier = PipelinePlan(problem)
    deadline = deadline_at(frontier, share)
    found = frontier.at(deadline)
    assert found.seconds <= deadline
    assert found.seconds == pytest.approx(float((found.starts + found.durations).max()))


@given(problems, shares)
def test_nothing_starts_before_what_it_waits_for(problem, share):
    """If it fails instructions overlap their dependencies, or others of their rank."""
    found = PipelinePlan(problem).at(deadline_at(PipelinePlan(problem), share))
    ends = found.starts + found.durations
    ready = ends[problem.edge_from] + problem.edge_seconds
    assert (found.starts[problem.edge_to] >= ready * (1 - 1e-12)).all()


@given(problems, shares)
def test_an_independent_simulation_gives_the_promised_time_and_energy(problem, share):
    """If it fails a plan's figures are not those of running it."""
    frontier = PipelinePlan(problem)
    found = frontier.at(deadline_at(frontier, share))
    clocks = zip(problem.profile_of.tolist(), found.clocks_hertz.tolist(), strict=True)
    chosen = [
        next(p for p in problem.profiles[profile].points if p.setting.clock_hertz == clock)
        for profile, clock in clocks
    ]
    lasts = np.array([point.seconds for point in chosen])
    starts = simulate(problem, lasts)
    seconds = float((starts + lasts).max())
    busy = np.zeros(len(problem.blocking_watts))
    np.add.at(busy, [instruction.rank for instruction in problem.instructions], lasts)
    joules = sum(point.joules for point in chosen)
    joules += float(problem.blocking_watts @ (seconds - busy))
    assert found.seconds == pytest.approx(seconds, rel=1e-12)
    assert found.joules == pytest.approx(joules, rel=1e-9)


@given(problems)
def test_the_continuous_frontier_is_convex_and_falls(problem):
    """If it fails the walk took an augmenting path that was not the longest."""
    relaxed = PipelinePlan(problem).relaxation
    assert (np.diff(relaxed.seconds) > 0).all()
    slopes = np.diff(relaxed.cost) / np.diff(relaxed.seconds)
    assert (slopes < 0).all()
    assert (np.diff(slopes) >= -1e-6 * np.abs(slopes[1:])).all()


@given(problems, shares, shares)
def test_more_time_never_has_a_higher_bound(problem, one, other):
    """If it fails energy is not monotone along the frontier."""
    frontier = PipelinePlan(problem)
    sooner, later = sorted((deadline_at(frontier, one), deadline_at(frontier, other)))
    assert frontier.relaxation.bound(later) <= frontier.relaxation.bound(sooner) + 1e-9


@given(problems, shares)
def test_bounds_hold(problem, share):
    """If it fails a plan beats the bound, so the bound is none."""
    frontier = PipelinePlan(problem)
    found = frontier.at(deadline_at(frontier, share))
    assert found.joules >= found.lower_bound_joules - 1e-7


@given(problems)
@settings(max_examples=30)
def test_exported_energy_falls_with_time(problem):
    """If it fails the exported frontier is none."""
    exported = PipelinePlan(problem).frontier
    joules = [point.joules for point in exported]
    assert joules == sorted(joules, reverse=True)
