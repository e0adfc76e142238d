"""The gains that Koszczał et al. publish for a capped GPU, from their ratios of energy and time.

G. Koszczał, J. Dobrosolski, M. Matuszek, P. Czarnul: Performance and Energy Aware Training of a
Deep Neural Network in a Multi-GPU Environment with Power Capping. Euro-Par 2023 workshops, Table 1.
"""

import pytest

from joulery.frontier import OperatingPoint, Setting
from joulery.objectives import EnergyDelayProduct, EnergyDelaySum, choose, eds_gain, gains

# Row of the 170 W limit: energy −24.38 %, time +9.35 % against the default of 260 W.
DEFAULT = OperatingPoint(100.0, 1000.0, Setting(power_limit_watts=260.0))
CAPPED = OperatingPoint(109.35, 756.2, Setting(power_limit_watts=170.0))

# Half a unit in the last digit that is printed, both in the inputs and in the result.
ROUNDING = 0.011


def test_the_published_ratios_come_back():
    """The inputs of the row, as our own columns show them."""
    won = gains(CAPPED, DEFAULT)
    assert (won.energy, won.time) == (pytest.approx(24.38), pytest.approx(9.35))


def test_difference():
    """Energy saved minus time lost, as published."""
    assert gains(CAPPED, DEFAULT).difference == pytest.approx(15.03, abs=ROUNDING)


def test_energy_delay_product():
    """EDP falls as published."""
    assert gains(CAPPED, DEFAULT).edp == pytest.approx(17.3, abs=0.05)


def test_energy_delay_sum():
    """EDS with k = 2 falls as published."""
    assert eds_gain(CAPPED, DEFAULT, 2.0) == pytest.approx(7.52, abs=ROUNDING)


@pytest.mark.parametrize("objective", [EnergyDelayProduct(), EnergyDelaySum(k=2.0)], ids=str)
def test_both_metrics_prefer_the_cap(objective):
    """A gain in the table is a choice in the program."""
    assert choose(objective, [DEFAULT, CAPPED]) is CAPPED
