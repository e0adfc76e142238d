"""Profiles that no longer fit are noticed, and put right."""

import math

import numpy as np
import pytest

from joulery.pipeline import build_problem, make_schedule, plan_problem, profiles_from_rows
from joulery.pipeline.runtime._straggler import ProfileDriftDetector
from support.pipelines import random_rows


def test_drift_beyond_noise_is_found_and_noise_is_not():
    """If it fails plans rest on times that are not true, or are made anew all the time."""
    draw = np.random.default_rng(2)
    detector = ProfileDriftDetector()
    for _ in range(30):
        detector.observe((0, "forward"), [draw.normal(1.0, 0.02)])
        detector.observe((1, "forward"), [draw.normal(1.10, 0.02)])
        detector.observe((2, "forward"), [draw.normal(1.05, 0.5)])
    assert set(detector.factors()) == {(1, "forward")}
    assert detector.factors()[1, "forward"] == pytest.approx(1.1, abs=0.02)


def test_few_samples_and_invalid_ratios_are_no_drift():
    """If it fails one slow instruction changes the plan."""
    detector = ProfileDriftDetector()
    detector.observe((0, "forward"), [1.5] * 11)
    detector.observe((0, "forward"), [math.nan, math.inf, -1.0, 0.0])
    assert detector.factors() == {}
    detector.observe((0, "forward"), [1.5])
    assert detector.factors() == {(0, "forward"): 1.5}


def test_rescaled_work_takes_that_much_longer():
    """If it fails the new plan is for other times than the measured ones."""
    profiles = profiles_from_rows(random_rows(3, 1, clocks=6), smooth=False)
    problem = build_problem(make_schedule("1f1b", 3, 3), profiles)
    changed = problem.rescaled({(1, "forward"): 1.2, (1, "backward"): 1.2})
    for item, number in zip(problem.instructions, problem.profile_of, strict=True):
        before, after = problem.profiles[number].points[0], changed.profiles[number].points[0]
        assert after.seconds == pytest.approx(before.seconds * (1.2 if item.stage == 1 else 1.0))
        assert after.watts == pytest.approx(before.watts)
    assert plan_problem(changed).fastest_seconds > plan_problem(problem).fastest_seconds
    assert problem.rescaled({}).profiles == problem.profiles
