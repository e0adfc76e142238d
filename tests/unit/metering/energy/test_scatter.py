"""Spread of readings: bursts show, a new load and noise do not."""

import math
import random

import pytest

from joulery.metering.energy._scatter import Scatter

PERIOD = 0.1


def amplitude(readings):
    """Amplitude after a series of readings."""
    scatter = Scatter()
    for number, watts in enumerate(readings):
        scatter.add(watts, PERIOD * number)
    return scatter.amplitude


def test_noise_is_no_scatter():
    """Every smooth training would have the bars of bursts."""
    chance = random.Random(0)  # noqa: S311 - noise
    assert amplitude([300.0 * chance.gauss(1.0, 0.01) for _ in range(50)]) < 0.02


@pytest.mark.parametrize("between", [[], [180.0]], ids=["sharp", "within a span"])
def test_a_new_load_is_no_scatter(between):
    """The first seconds of a training would have the bars of bursts."""
    assert amplitude([60.0] * 20 + between + [300.0] * 5) < 0.02


@pytest.mark.parametrize("idle", range(1, 12))
def test_a_new_load_is_no_slow_beat(idle):
    """A board that was measured for a moment before its training would seem to come in bursts."""
    scatter = Scatter()
    for number, watts in enumerate([60.0] * idle + [300.0] * 20):
        scatter.add(watts, PERIOD * number)
    assert scatter.slow_amplitude == 0.0


def test_readings_that_jump_are_scatter():
    """A sensor that sees bursts now and then would be trusted."""
    assert amplitude([300.0, 60.0] * 10) > 0.7


def test_a_slow_beat_is_scatter():
    """Bursts almost in step with the sensor would pass for a load that moves slowly."""
    beat = [180, 177, 171, 160, 145, 121, 95, 76, 64, 63, 66, 72, 80, 93, 121, 150, 172, 180]
    assert amplitude(beat * 2) > 0.3


def test_scatter_is_forgotten():
    """Bursts of long ago would widen the bars of a smooth training."""
    assert amplitude([300.0, 60.0] * 10 + [300.0] * 250) < 0.05


def test_phases_of_a_step_are_no_slow_beat():
    """Trainings whose steps have phases would have the bars of bursts in step with the sensor."""
    chance = random.Random(1)  # noqa: S311 - phases
    training, beat, largest = Scatter(), Scatter(), 0.0
    for number in range(100):
        training.add(300.0 * chance.choice((0.6, 0.9, 1.0, 1.0)), PERIOD * number)
        beat.add(120.0 + 60.0 * math.sin(PERIOD * number * 2.0), PERIOD * number)
        largest = max(largest, beat.slow_amplitude)
    assert training.slow_amplitude < 0.4 < largest
