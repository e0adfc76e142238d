"""Noticing that a job has changed."""

import numpy as np
import pytest

from joulery.jobs.policies.bayesian._beliefs import detect_changes

ROW = np.zeros(1, dtype=np.int64)


def runs_until_alarm(residuals, spread=0.1):
    """How many runs it takes, and the shift that is found; None without an alarm."""
    deviations = np.zeros((1, 2, 3))
    for count, residual in enumerate(residuals, start=1):
        alarm, shift = detect_changes(deviations, ROW, np.array([residual]), np.array([spread]))
        if len(alarm):
            return count, shift[0]
    return None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_doubling_is_noticed_within_a_few_runs(sign):
    """Stale beliefs stop every run; the change must be seen quickly, in either direction."""
    count, shift = runs_until_alarm([sign * np.log(2.0)] * 10)
    assert count <= 4
    assert shift == pytest.approx(sign * np.log(2.0))


def test_noise_rarely_raises_an_alarm():
    """A false alarm throws away what was learned."""
    rng = np.random.default_rng(4)
    jobs = np.arange(200)
    deviations = np.zeros((len(jobs), 2, 3))
    alarmed = np.zeros(len(jobs), dtype=bool)
    for _ in range(100):
        residuals = 0.1 * rng.standard_normal(len(jobs))
        alarmed[detect_changes(deviations, jobs, residuals, np.full(len(jobs), 0.1))[0]] = True
    assert alarmed.mean() <= 0.02


def test_one_outlier_is_not_a_change():
    """Heavy-tailed jobs have them."""
    assert runs_until_alarm([5.0, 0.0, 0.0, 0.0, 5.0, 0.0]) is None


def test_the_shift_counts_only_since_it_began():
    """Runs before the change must not dilute its size."""
    _, shift = runs_until_alarm([-0.1] * 20 + [0.5] * 20)
    assert shift == pytest.approx(0.5)


def test_after_an_alarm_the_detector_starts_anew():
    """Otherwise the next run would raise it again."""
    deviations = np.zeros((1, 2, 3))
    for _ in range(4):
        detect_changes(deviations, ROW, np.array([1.0]), np.array([0.1]))
    assert deviations[:, :, 0].max() < 5.0
