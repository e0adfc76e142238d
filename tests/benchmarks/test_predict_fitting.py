"""Fits of the predictor's constants: populations, probes, scales of error bars, power."""

import numpy as np
import pytest
from predict_fitting import (
    best_probes,
    conformal_scale,
    kernel_power,
    matmuls,
    population,
    shared_correlation,
)

from joulery.prediction import accelerator
from joulery.prediction.models import NINETY, Belief, fitted_belief, kernel_times


def line(at):
    """Log-predictions of ``exp(a) * x**exp(b)`` at some x."""
    return lambda constants: constants[0] + np.exp(constants[1]) * np.log(at)


def test_a_population_learns_mean_and_spread_of_its_members():
    """A new device is predicted from this; a spread of zero would claim certainty."""
    at, random = np.linspace(1, 10, 30), np.random.default_rng(0)
    truths = [np.array([random.normal(0.5, 0.4), random.normal(0.1, 0.05)]) for _ in range(12)]
    start = Belief.independent(np.zeros(2), np.array([0.1, 0.1]))
    found = population([(line(at), line(at)(truth)) for truth in truths], start, 0.05)
    assert found.mean[0] == pytest.approx(np.mean([truth[0] for truth in truths]), abs=0.1)
    assert 0.2 < found.deviation[0] < 0.8
    assert found.deviation[1] >= start.deviation[1] - 1e-9


def test_the_best_probes_are_the_informative_ones():
    """Probes would be spent on what is known already."""
    known_scale = Belief.independent(np.zeros(2), np.array([0.01, 0.5]))
    covariance = known_scale.covariance_of(line(np.array([1.0, 10.0, 5.0, 20.0])))
    assert 0 not in best_probes(covariance, 2, 0.05)


def groups(count, bias, seed=0, size=400):
    """Groups of errors with a common bias each, all claimed to deviate by 1."""
    draw = np.random.default_rng(seed)
    return [
        (bias * draw.standard_normal() + draw.standard_normal(size), np.ones(size))
        for _ in range(count)
    ]


def test_honest_claims_need_no_scale():
    """Intervals would be wider or narrower than what is known."""
    assert conformal_scale(groups(40, bias=0.0)) == pytest.approx(1.0, abs=0.05)


def test_claims_that_are_too_narrow_are_widened_for_the_next_group():
    """A device whose errors are three times the claim must still be covered."""
    known, new = groups(10, 0.0), groups(1, 0.0, seed=1)[0]
    narrow = [(off, claimed / 3) for off, claimed in known]
    scale = conformal_scale(narrow)
    inside = np.abs(new[0]) <= NINETY * scale * new[1] / 3
    assert 0.88 <= inside.mean() <= 0.94


def test_few_groups_widen_and_no_group_leaves_claims_alone():
    """Two devices say little about a third."""
    many, few = groups(20, 0.0), groups(2, 0.0)
    assert conformal_scale(few) > 1.05 * conformal_scale(many)
    assert conformal_scale([]) == 1.0


@pytest.mark.parametrize(("bias", "low", "high"), [(0.0, 0.0, 0.1), (3.0, 0.75, 1.0)])
def test_correlation_is_what_groups_share(bias, low, high):
    """A sum would be taken as surer than it is."""
    assert low <= shared_correlation(groups(20, bias)) <= high


def test_power_rises_with_use_and_never_exceeds_the_limit():
    """Energy would be wrong by the same factor."""
    board, constants = accelerator("a100"), fitted_belief("kernel power").mean
    shape = [np.array([1.0]), *(np.array([8192.0]) for _ in range(3))]
    busy = matmuls(shape, 2.0, board.rates("bf16"))
    seconds = kernel_times(fitted_belief("kernels").mean, board, busy)[0]
    at_work, slowly = (
        kernel_power(constants, board, busy, taken)[0] for taken in (seconds, 100 * seconds)
    )
    assert slowly < at_work <= board.limit_watts
