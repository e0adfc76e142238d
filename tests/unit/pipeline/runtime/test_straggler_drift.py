"""Profiles that no longer fit are noticed, and put right."""

import math

import numpy as np
import pytest

from joulery.pipeline import (
    IterationTimes,
    PipelinePlan,
    PlanCache,
    StragglerPolicy,
    build_problem,
    make_schedule,
    profiles_from_rows,
)
from support.pipelines import random_rows


@pytest.fixture
def policy():
    """One pipeline of three stages."""
    profiles = profiles_from_rows(random_rows(3, 1, clocks=6), smooth=False)
    return StragglerPolicy(
        PlanCache(PipelinePlan(build_problem(make_schedule("1f1b", 3, 3), profiles)))
    )


def report(policy, number, ratios):
    """An iteration of rank 0 with measured over planned seconds of its work."""
    policy.report(0, 0, IterationTimes(number, 1.0, 1.0, ratios))


def test_drift_beyond_noise_is_found_and_noise_is_not(policy):
    """If it fails plans rest on times that are not true, or are made anew all the time."""
    draw = np.random.default_rng(2)
    for number in range(30):
        for kind in ("forward", "backward"):
            report(policy, number, {(0, kind): [draw.normal(1.0, 0.02)]})
            report(policy, number, {(2, kind): [draw.normal(1.05, 0.5)]})
        report(policy, number, {(1, "forward"): [draw.normal(1.10, 0.02)]})
    # What was not measured is taken to be as slow as the rest of its stage.
    assert set(policy.drifted(0)) == {(1, "forward"), (1, "backward")}
    assert policy.drifted(0)[1, "forward"] == pytest.approx(1.1, abs=0.02)


def test_work_without_measurements_is_not_slowed_down(policy):
    """If it fails ranks that report late are planned as if they were fast, and end late."""
    report(policy, 0, {(0, "forward"): [1.25] * 12})
    assert policy.drifted(0) == {
        (stage, kind): 1.25 for stage in range(3) for kind in ("forward", "backward")
    }


def test_few_samples_and_invalid_ratios_are_no_drift(policy):
    """If it fails one slow instruction changes the plan."""
    report(policy, 0, {(0, "forward"): [1.5] * 11})
    report(policy, 1, {(0, "forward"): [math.nan, math.inf, -1.0, 0.0]})
    assert policy.drifted(0) == {}
    report(policy, 2, {(0, "forward"): [1.5]})
    assert policy.drifted(0)[0, "forward"] == 1.5


def test_rescaled_work_takes_that_much_longer():
    """If it fails the new plan is for other times than the measured ones."""
    profiles = profiles_from_rows(random_rows(3, 1, clocks=6), smooth=False)
    problem = build_problem(make_schedule("1f1b", 3, 3), profiles)
    changed = problem.rescaled({(1, "forward"): 1.2, (1, "backward"): 1.2})
    for item, number in zip(problem.instructions, problem.profile_of, strict=True):
        before, after = problem.profiles[number].points[0], changed.profiles[number].points[0]
        assert after.seconds == pytest.approx(before.seconds * (1.2 if item.stage == 1 else 1.0))
        assert after.watts == pytest.approx(before.watts)
    assert PipelinePlan(changed).fastest_seconds > PipelinePlan(problem).fastest_seconds
    assert problem.rescaled({}).profiles == problem.profiles
