"""Fits of the predictor's constants: populations, and what is left out of them."""

import numpy as np
import pytest
from predict_fit import PLAN_START, fit_plans, names_of, population, steps_of
from predict_runs import published_runs

from joulery.prediction.models import Belief, assume, fitted, fitted_belief


def line(at):
    """Log-predictions of ``exp(a) * x**exp(b)`` at some x."""
    return lambda constants: constants[0] + np.exp(constants[1]) * np.log(at)


def test_a_population_learns_mean_and_spread_of_its_members():
    """A new device is predicted from this; a spread of zero would claim certainty."""
    at, random = np.linspace(1, 10, 30), np.random.default_rng(0)
    truths = [np.array([random.normal(0.5, 0.4), random.normal(0.1, 0.05)]) for _ in range(12)]
    start = Belief.independent(np.zeros(2), np.array([0.1, 0.1]))
    fit = population([(line(at), line(at)(truth)) for truth in truths], start, 0.05)
    assert fit.mean[0] == pytest.approx(np.mean([truth[0] for truth in truths]), abs=0.1)
    assert 0.2 < fit.deviation[0] < 0.8
    assert fit.deviation[1] >= start.deviation[1] - 1e-9


def published_steps():
    """Published trainings as measured steps."""
    from predict_data import Case

    return steps_of(
        [
            Case("published", run.source, run.device, run.model, run.plan, run.seconds)
            for run in published_runs()
        ]
    )


def test_what_is_left_out_leaves_no_trace():
    """A device's own measurements would stand behind its prediction."""
    steps = published_steps()
    name = steps[0].case.system
    without = fit_plans(steps, name)
    kept = fit_plans([step for step in steps if name not in names_of(step.case)])
    assert without["mean"] == kept["mean"]
    assert name not in without["fitted_on"]
    assert fit_plans([])["mean"] == pytest.approx(np.round(PLAN_START.mean, 4).tolist())


def test_other_constants_hold_only_while_they_are_assumed():
    """A benchmark would change what the rest of the process predicts."""
    shipped = fitted_belief("plans").mean.copy()
    document = fitted() | {"beliefs": fitted()["beliefs"] | {"plans": fit_plans([])}}
    with assume(document):
        assert not np.allclose(fitted_belief("plans").mean, shipped)
    assert np.allclose(fitted_belief("plans").mean, shipped)


def test_at_least_thirty_published_trainings_have_a_source():
    """The mean over published trainings would stand on a handful."""
    runs = list(published_runs())
    assert len(runs) >= 30
    assert all(run.source and run.tokens_per_second > 0 for run in runs)
    for run in runs:
        run.plan.check(run.model)
