"""The rhythm of a signal: found where there is one, not invented where there is none."""

import math
import time

import numpy as np
import pytest

from joulery.errors import DeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware import Capability, DeviceInfo, DeviceKind
from joulery.power import ObservedSteps, PowerObserver
from joulery.power._step_period import find_step_period

CERTAIN = 0.6


def power(seconds, period, interval, noise, seed=0):
    """A step with a long busy and a short waiting part, again and again."""
    chance = np.random.default_rng(seed)
    count = int(seconds / interval)
    return [
        (250.0 if (n * interval) % period < 0.7 * period else 120.0)
        + noise * chance.standard_normal()
        for n in range(count)
    ]


@pytest.mark.parametrize("seconds", [0.35, 1.0, 2.3])
def test_period_is_found_to_two_per_cent(seconds):
    """Progress counted in wrong steps tunes for the wrong job."""
    period = find_step_period(power(60.0, seconds, 0.05, 15.0), 0.05)
    assert period[0] == pytest.approx(seconds, rel=0.02)
    assert period[1] >= CERTAIN


def test_noise_has_no_rhythm_to_act_on():
    """Acting on noise would change limits at random."""
    for seed in range(20):
        chance = np.random.default_rng(seed)
        period = find_step_period([200 + 20 * chance.standard_normal() for _ in range(600)], 0.05)
        assert period is None or period[1] < CERTAIN


def test_constant_and_short_signals_have_none():
    """Division by zero variance, or a guess from ten samples."""
    assert find_step_period([200.0] * 100, 0.1) is None
    assert find_step_period([1.0, 2.0] * 5, 0.1) is None


def test_a_trend_is_no_period():
    """A board that warms up draws more and more; that is not a step."""
    period = find_step_period([200 + 0.1 * n for n in range(400)], 0.1)
    assert period is None or period[1] < CERTAIN


def test_weak_rhythm_is_advice_only():
    """Unsure means advise, not act."""
    samples = [
        200 + 8 * math.sin(n / 3) + 12 * np.random.default_rng(n).standard_normal()
        for n in range(600)
    ]
    period = find_step_period(samples, 0.1)
    assert period is not None
    assert period[1] < CERTAIN


class Sensor:
    """A GPU whose power the test decides."""

    def __init__(self, watts, kind=DeviceKind.GPU):
        self.watts = watts
        self.info = DeviceInfo("gpu-x", "GPU X", kind, "fake")
        self.provenance = Provenance(Origin.SIMULATED)
        self.capabilities = frozenset({Capability.POWER})

    def read_power(self):
        """What the test says."""
        return self.watts()


def failing():
    """A sensor that is out of order."""
    raise DeviceError("no answer", remedy="none")


@pytest.mark.parametrize("watts", [lambda: 200.0, failing, lambda: math.nan])
def test_power_without_a_rhythm_gives_advice_and_no_error(watts):
    """If this fails, a flat or broken sensor ends `joulery run` with an error."""
    with PowerObserver([Sensor(watts)]) as observer:
        time.sleep(0.2)
    (finding,) = observer.steps()
    assert finding.step_seconds is None
    assert "no period" in finding.advice
    assert finding.to_dict()["confidence"] == 0.0


def test_only_accelerators_are_watched():
    """If this fails, the processor's power is taken for the rhythm of training."""
    with PowerObserver([Sensor(lambda: 1.0, DeviceKind.CPU)]) as observer:
        assert observer.steps() == []


def test_advice_says_how_certain_it_is():
    """If this fails, a guess reads like a fact."""
    assert "(certain: 90 %" in ObservedSteps("a", 0.5, 0.9).advice
    assert "(uncertain: 30 %" in ObservedSteps("a", 0.5, 0.3).advice
