"""Sums over trainings, and the beliefs that follow from them."""

import numpy as np
import pytest

from joulery.jobs.policies.bayesian._beliefs import NOISE_SD, Evidence
from joulery.jobs.policies.bayesian._gaussian import GaussianCurve

ROW = np.zeros(1, dtype=np.int64)
FIRST, SECOND = np.array([0]), np.array([1])


def fresh():
    """Two batch sizes of one job."""
    return Evidence(*np.zeros((4, 1, 2)), *np.zeros((2, 1)))


def reach(evidence, arm, *epochs):
    """Runs that took so many epochs."""
    for count in epochs:
        evidence.reach(ROW, arm, np.log([count]))


def test_noise_starts_as_expected():
    """Before two runs can be compared the expectation is all there is."""
    evidence = fresh()
    reach(evidence, FIRST, 10.0)
    reach(evidence, SECOND, 90.0)
    assert evidence.noise_variance(ROW) == pytest.approx([NOISE_SD**2])


def test_noise_is_pooled_over_batch_sizes():
    """Each batch size alone has too few runs to tell its scatter."""
    evidence = fresh()
    reach(evidence, FIRST, 10.0, 12.0)
    reach(evidence, SECOND, 5.0, 5.0)
    within = 2 * (np.log(1.2) / 2) ** 2
    assert evidence.noise_variance(ROW) == pytest.approx([(4 * NOISE_SD**2 + within) / 6])


def test_early_runs_are_read_again_with_later_noise():
    """A lucky first run must not be trusted once runs turn out to scatter."""
    evidence = fresh()
    reach(evidence, FIRST, 10.0)
    before = evidence.observations(ROW)[1][0, 0]
    reach(evidence, SECOND, 4.0, 12.0, 4.0, 12.0)
    assert evidence.observations(ROW)[1][0, 0] < before / 4


def test_observations_average_runs():
    """The value is the mean logarithm, its precision grows with runs."""
    evidence = fresh()
    reach(evidence, FIRST, 4.0, 16.0)
    value, precision = evidence.observations(ROW)
    assert value[0, 0] == pytest.approx(np.log(8.0))
    assert precision[0, 0] == pytest.approx(2.0 / evidence.noise_variance(ROW)[0])
    assert precision[0, 1] == 0.0


def believed(mean, sd):
    """Independent beliefs about two batch sizes."""
    return GaussianCurve(np.full((1, 2), mean), np.diag([sd**2, sd**2])[None])


def test_a_stopped_run_lifts_the_belief_to_the_truncated_mean():
    """Stopped runs are a third of the bill; they must teach what they can."""
    prior = believed(2.0, 0.5)
    evidence = fresh()
    evidence.fall_short(prior, ROW, FIRST, np.array([2.5]))
    after = prior.given(*evidence.observations(ROW))
    rng = np.random.default_rng(2)
    curve = rng.normal(2.0, 0.5, 400_000)
    # Twice the noise of a run that reached its target: runs have tails.
    kept = curve[curve + rng.normal(0.0, 2 * NOISE_SD, curve.size) > 2.5]
    assert after.mean[0, 0] == pytest.approx(kept.mean(), abs=0.005)
    assert np.sqrt(after.variance[0, 0]) == pytest.approx(kept.std(), abs=0.005)


def test_a_run_stopped_at_once_says_nothing():
    """A ceiling far below expectation must not count against a batch size."""
    prior = believed(3.0, 0.3)
    evidence = fresh()
    evidence.fall_short(prior, ROW, FIRST, np.array([0.0]))
    assert prior.given(*evidence.observations(ROW)).mean[0, 0] == pytest.approx(3.0, abs=1e-3)


def test_repeated_stops_keep_lifting():
    """A batch size that never gets there must look worse and worse, so others get their turn."""
    evidence, prior, means = fresh(), believed(2.0, 0.5), []
    now = prior
    for _ in range(5):
        evidence.fall_short(now, ROW, FIRST, np.array([2.5]))
        now = prior.given(*evidence.observations(ROW))
        means.append(now.mean[0, 0])
    assert np.all(np.diff(means) > 0)


def test_forgetting_keeps_means_and_loses_weight():
    """After a change the old values are hints, not facts."""
    evidence = fresh()
    reach(evidence, FIRST, 4.0, 16.0)
    value, precision = evidence.observations(ROW)
    evidence.forget(ROW, 0.1)
    later, weaker = evidence.observations(ROW)
    assert later[0, 0] == pytest.approx(value[0, 0])
    assert weaker[0, 0] == pytest.approx(0.1 * precision[0, 0])


def test_one_outlier_tells_little_of_the_scatter():
    """The first run after a change must not make all others look like noise."""
    evidence = fresh()
    reach(evidence, FIRST, *[10.0] * 20)
    before = evidence.noise_variance(ROW)[0]
    reach(evidence, FIRST, 1000.0)
    assert evidence.noise_variance(ROW)[0] < 2 * before


def test_shift_moves_every_batch_size_alike():
    """When all need twice the epochs the shape of the curve is still good."""
    evidence = fresh()
    reach(evidence, FIRST, 4.0, 16.0)
    evidence.fall_short(believed(2.0, 0.5), ROW, SECOND, np.array([2.5]))
    value, _ = evidence.observations(ROW)
    noise = evidence.noise_variance(ROW)
    evidence.shift(ROW, np.log([2.0]))
    assert evidence.observations(ROW)[0] == pytest.approx(value + np.log(2.0))
    assert evidence.noise_variance(ROW) == pytest.approx(noise)
