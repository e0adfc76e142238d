"""Error bars on a second emulator, whose assumptions differ from the simulated boards'."""

from functools import cache
from statistics import fmean

import pytest

from support.power_sensors import draw

LENGTHS = (0.1, 0.3, 1.0)
COUNT = 120


@cache
def drawn(*, bursts, mixture):
    """Windows of every length, each on a board of its own."""
    return [
        draw(seed, LENGTHS[seed % 3], bursts=bursts, mixture=mixture, calibrated=seed % 2 == 0)
        for seed in range(COUNT)
    ]


def held(figure):
    """Whether the bar of 95 % holds the truth."""
    ratio, error = figure
    return abs(ratio - 1.0) <= 1.96 * error


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("bursts", [False, True])
def test_the_bar_of_95_per_cent_holds(bursts, mixture):
    """Bars would hold only where the product's own emulator is right about sensors."""
    found = drawn(bursts=bursts, mixture=mixture)
    assert fmean(held(one.at_once) for one in found) >= 0.93
    assert fmean(held(one.settled) for one in found) >= 0.93


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("bursts", [False, True])
def test_energy_is_possible_for_the_board(bursts, mixture):
    """A window would cost nothing, or more than the board can draw."""
    for one in drawn(bursts=bursts, mixture=mixture):
        for ratio, error in (one.at_once, one.settled):
            assert 0.0 < ratio <= one.most * (1 + 1e-9)
            assert error > 0.0


@pytest.mark.parametrize("mixture", [False, True])
def test_settling_is_never_worse(mixture):
    """Waiting would make a figure worse than the one at once."""
    found = [*drawn(bursts=False, mixture=mixture), *drawn(bursts=True, mixture=mixture)]
    at_once = fmean(abs(one.at_once[0] - 1.0) for one in found)
    assert fmean(abs(one.settled[0] - 1.0) for one in found) <= at_once
