"""Noisy measurements over clocks come closer to the truth, and odd ones stay as they are."""

import numpy as np
import pytest

from joulery.pipeline.profiles._smoothing import ClockSample, smooth_profile, summary

_CLOCKS = np.arange(1410.0, 840.0, -15.0)


def _truth(memory_share=0.1, *, throttled=False):
    """Seconds and joules of a device with a voltage floor, and perhaps a power limit."""
    seconds = memory_share * 0.05 + (1 - memory_share) * 0.05 * 1410 / _CLOCKS
    volts = np.maximum(0.75, 0.75 + 0.3 * (_CLOCKS - 1050) / 360)
    watts = 90 + 0.25 * _CLOCKS * volts**2
    if throttled:
        cap = _CLOCKS == 1350.0
        seconds = np.maximum(seconds, seconds[cap])
        watts = np.minimum(watts, watts[cap])
    return seconds, watts * seconds


def _noisy(seed, noise, truth):
    draw = np.random.default_rng(seed)
    seconds, joules = truth
    return (
        seconds * (1 + noise * draw.standard_normal(len(seconds))),
        joules * (1 + noise * draw.standard_normal(len(joules))),
    )


def _cleaned(seconds, joules, **options):
    samples = [ClockSample(*row) for row in zip(_CLOCKS, seconds, joules, strict=True)]
    return smooth_profile(samples, "a test", **options)


def _columns(cleaned):
    return (
        np.array([point.seconds for point in cleaned.points]),
        np.array([point.joules for point in cleaned.points]),
    )


def _error(values, truth):
    return float(np.sqrt(np.mean((values / truth - 1) ** 2)))


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
@pytest.mark.parametrize("throttled", [False, True])
def test_smoothed_is_closer_to_the_truth(noise, throttled):
    """Smoothing would not remove noise, or put a wrong shape in its place."""
    truth = _truth(throttled=throttled)
    raw, smooth = [], []
    for seed in range(10):
        measured = _noisy(seed, noise, truth)
        columns = _columns(_cleaned(*measured))
        raw.append([_error(a, b) for a, b in zip(measured, truth, strict=True)])
        smooth.append([_error(a, b) for a, b in zip(columns, truth, strict=True)])
    time, energy = np.mean(smooth, axis=0) / np.mean(raw, axis=0)
    assert time < 0.6
    assert energy < 0.85


def test_energy_is_convex_in_time_afterwards():
    """A planner would still meet clocks that only look better than their neighbours."""
    profile = _cleaned(*_noisy(3, 0.02, _truth()))
    assert profile.smoothed == ("times", "energies")
    seconds, joules = _columns(profile)
    assert np.all(np.diff(seconds) > 0)
    slopes = np.diff(joules) / np.diff(seconds)
    assert np.all(np.diff(slopes) >= -1e-6 * np.abs(slopes[:-1]))


def test_clean_measurements_stay():
    """Measurements without noise would be bent into a shape."""
    for throttled in (False, True):
        truth = _truth(throttled=throttled)
        profile = _cleaned(*truth)
        assert np.allclose(_columns(profile), truth, rtol=1e-12)
        assert profile.smoothed == ()
        assert summary({"here": profile}) == []


@pytest.mark.parametrize("noise", [0.0005, 0.001])
def test_a_bend_between_few_clocks_is_no_noise(noise):
    """Curves of few clocks would be taken for noisy and flattened, which makes savings too large.

    Energies of full clocks came out 0.2 % high, and those of low clocks as much too low.
    """
    clocks = np.arange(1410.0, 900.0, -60.0)
    seconds = 0.1 * 1410 / clocks
    joules = seconds * (100 + 300 * (clocks / 1410) ** 3)
    errors, noises = [], []
    for seed in range(20):
        measured = _noisy(seed, noise, (seconds, joules))
        rows = zip(clocks, *measured, strict=True)
        profile = smooth_profile([ClockSample(*row) for row in rows])
        noises.append(profile.joules_noise)
        errors.append(_columns(profile)[1] / joules - 1)
    assert np.median(noises) < 3 * noise
    assert np.all(np.abs(np.mean(errors, axis=0)) < 0.7 * noise)


def test_a_single_outlier_is_named_and_weighs_little():
    """One bad run would bend the whole curve."""
    seconds, joules = _noisy(1, 0.003, _truth())
    joules[10] *= 1.2
    profile = _cleaned(seconds, joules)
    assert profile.outliers_megahertz == (_CLOCKS[10],)
    assert _error(_columns(profile)[1], _truth()[1]) < 0.003
    assert "outliers that weigh little: 1, the first in here" in summary({"here": profile})


def test_a_jump_in_the_middle_is_no_noise():
    """A device that throttles half way through a sweep would be averaged with one that does not."""
    seconds, joules = _truth()
    seconds, joules = seconds.copy(), joules.copy()
    seconds[:20] *= 1.12
    joules[:20] *= 1.15
    profile = _cleaned(seconds, joules)
    assert profile.smoothed == ()
    assert profile.kept == "times and energies follow no convex curve"
    assert np.allclose(_columns(profile)[0], seconds, rtol=1e-12)
    assert np.allclose(_columns(profile)[1], joules, rtol=1e-12)


def test_as_asked_and_too_few():
    """Measurements would be changed against the user's word, or from three clocks."""
    measured = _noisy(1, 0.02, _truth())
    raw = _cleaned(*measured, enabled=False)
    assert raw.kept == "as asked"
    assert np.array_equal(_columns(raw)[1], measured[1])
    few = smooth_profile([ClockSample(1400, 1.0, 300.0), ClockSample(1000, 1.3, 250.0)])
    assert few.kept == "too few clocks"
    assert [point.seconds for point in few.points] == [1.0, 1.3]


def test_repeats_of_a_clock_are_averaged_by_their_samples():
    """Several rows of one clock would become several choices."""
    profile = smooth_profile([ClockSample(1000, 1.0, 100.0, 3), ClockSample(1000, 2.0, 200.0, 1)])
    assert len(profile.points) == 1
    assert (profile.points[0].seconds, profile.points[0].joules) == (1.25, 125.0)
    assert profile.points[0].setting.clock_hertz == 1e9


def test_poorly_sampled_clocks_count_less():
    """A clock seen once would count as much as one seen a thousand times."""
    truth = _truth()
    errors = {}
    for counted in (True, False):
        slopes = []
        for seed in range(8):
            draw = np.random.default_rng(seed)
            rare = draw.random(len(_CLOCKS)) < 0.4
            spread = np.where(rare, 0.03, 0.003)
            seconds = truth[0] * (1 + spread * draw.standard_normal(len(rare)))
            counts = np.where(rare, 1.0, 100.0) if counted else np.full(len(rare), 30.0)
            rows = zip(_CLOCKS, seconds, truth[1], counts, strict=True)
            cleaned = smooth_profile([ClockSample(*row) for row in rows])
            slopes.append(_error(_columns(cleaned)[0], truth[0]))
        errors[counted] = np.mean(slopes)
    assert errors[True] < 0.8 * errors[False]


def test_points_carry_their_source_and_error():
    """The source of a figure would be lost."""
    point = _cleaned(*_noisy(2, 0.01, _truth())).points[0]
    assert point.provenance.origin == "measured"
    assert point.provenance.source == "a test"
    assert point.provenance.relative_error == pytest.approx(0.01, rel=0.8)


@pytest.mark.parametrize("seed", [7, 16, 27, 35])
def test_a_curve_never_goes_below_zero(seed):
    """If it fails energies that follow no curve are fitted by one with negative power."""
    draw = np.random.default_rng(seed)
    joules = draw.uniform(5, 400, 8).tolist()
    samples = [ClockSample(1400 - 50 * k, 1 + 0.03 * k, joules[k]) for k in range(8)]
    assert all(point.joules > 0 for point in smooth_profile(samples).points)
