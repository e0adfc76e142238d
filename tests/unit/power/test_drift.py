"""Effects of settings on a job whose pace changes by itself, and steps that repeat."""

import numpy as np
import pytest

from joulery.power._drift import TimedSlices, find_period, separate

REFERENCE = 9


def slices(levels, effects, error=0.001, seed=0):
    """The reference and another position in turn, at a level that is given for each slice."""
    chance = np.random.default_rng(seed)
    positions = np.array([REFERENCE if n % 2 == 0 else 4 for n in range(len(levels))])
    values = np.where(positions == REFERENCE, 0.0, effects) + levels
    noise = error * chance.standard_normal(len(levels))
    times = 10.0 * np.arange(len(levels))
    return TimedSlices(times, positions, values + noise, np.full(len(levels), error))


def test_a_steady_job_has_its_slices_counted_together():
    """Each pair alone would be less exact than all of them."""
    effects = separate(slices(np.zeros(21), 0.05), REFERENCE)
    assert effects.means[4] == pytest.approx(0.05, abs=0.0015)
    assert effects.errors[4] < 0.0008
    assert effects.means[REFERENCE] == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_a_fading_job_does_not_make_a_setting_look_fast(seed):
    """A slower start would pass for the pace of the reference, and break the bound."""
    levels = 0.3 * np.exp(-np.arange(41) / 6.0)
    effects = separate(slices(levels, 0.05, seed=seed), REFERENCE)
    assert abs(effects.means[4] - 0.05) < max(0.003, 3 * effects.errors[4])
    assert effects.errors[4] < 0.004
    assert effects.level == pytest.approx(0.0, abs=0.003)


def test_a_hot_board_does_not_hide_what_a_setting_does():
    """While a ceiling binds every limit above it looks free."""
    hot = np.arange(24) % 12 >= 6
    effects = separate(slices(np.where(hot, 0.08, 0.0), np.where(hot, -0.03, 0.05)), REFERENCE)
    assert effects.means[4] == pytest.approx(0.05, abs=0.01)
    assert effects.level == pytest.approx(0.0, abs=0.003)


@pytest.mark.parametrize("period", [2, 3, 5, 8, 12])
def test_lengths_that_repeat_have_their_period_found(period):
    """TimedSlices of other lengths would hold more long steps at one setting than at another."""
    chance = np.random.default_rng(period)
    lengths = 0.5 * (np.arange(40) % period == 0) + 0.01 * chance.standard_normal(40)
    assert find_period(lengths) == period


def test_noise_trends_and_stalls_have_no_period():
    """A period that is none would make every slice longer for nothing."""
    chance = np.random.default_rng(1)
    noise = 0.05 * chance.standard_normal(40)
    assert find_period(noise) == 1
    assert find_period(0.01 * np.arange(40) + 0.1 * noise) == 1
    assert find_period(np.where(np.arange(40) == 17, 2.0, 0.1 * noise)) == 1
    assert find_period([0.0, 1.0]) == 1
