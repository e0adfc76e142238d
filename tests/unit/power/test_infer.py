"""The rhythm of a signal: found where there is one, not invented where there is none."""

import math

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.power.step_period import advice, rhythm


def power(seconds, period, interval, noise, seed=0):
    """A step with a long busy and a short waiting part, again and again."""
    chance = np.random.default_rng(seed)
    count = int(seconds / interval)
    return [
        (250.0 if (n * interval) % period < 0.7 * period else 120.0)
        + noise * chance.standard_normal()
        for n in range(count)
    ]


@pytest.mark.parametrize("period", [0.35, 1.0, 2.3])
def test_period_is_found_to_two_per_cent(period):
    """Progress counted in wrong steps tunes for the wrong job."""
    found = rhythm(power(60.0, period, 0.05, 15.0), 0.05)
    assert found.seconds == pytest.approx(period, rel=0.02)
    assert found.sure


def test_noise_has_no_rhythm_to_act_on():
    """Acting on noise would change limits at random."""
    for seed in range(20):
        chance = np.random.default_rng(seed)
        found = rhythm([200 + 20 * chance.standard_normal() for _ in range(600)], 0.05)
        assert found is None or not found.sure


def test_constant_and_short_signals_have_none():
    """Division by zero variance, or a guess from ten samples."""
    assert rhythm([200.0] * 100, 0.1) is None
    assert rhythm([1.0, 2.0] * 5, 0.1) is None


def test_trend_is_no_rhythm():
    """A board that warms up draws more and more; that is not a step."""
    found = rhythm([200 + 0.1 * n for n in range(400)], 0.1)
    assert found is None or not found.sure


def test_weak_rhythm_is_advice_only():
    """Unsure means advise, not act."""
    samples = [
        200 + 8 * math.sin(n / 3) + 12 * np.random.default_rng(n).standard_normal()
        for n in range(600)
    ]
    found = rhythm(samples, 0.1)
    assert found is not None
    assert not found.sure
    assert "too unsure" in advice(found)
    assert "no steps" in advice(None)
    assert "confidence" in advice(rhythm(power(60.0, 1.0, 0.05, 1.0), 0.05))


def test_interval_must_be_positive():
    """Samples at the same moment tell no time."""
    with pytest.raises(InvalidValueError):
        rhythm([1.0] * 50, 0.0)
