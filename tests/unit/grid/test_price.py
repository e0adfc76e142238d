"""Carbon and price of a kilowatt-hour."""

import pytest

from joulery.errors import InvalidValueError
from joulery.grid import electricity_price


def test_electricity_is_checked():
    """If this fails, a typo makes savings negative or unknown."""
    assert electricity_price("de").grams == 346.0
    assert electricity_price("10").grams_source == "as given"
    for wrong in ({"source": "nowhere"}, {"source": "-1"}, {"price": float("nan")}):
        with pytest.raises(InvalidValueError):
            electricity_price(**wrong)


def test_energy_becomes_carbon_and_money():
    """If this fails, savings are stated in wrong grams or money."""
    price = electricity_price("500", price=0.3)
    assert price.carbon_grams(7.2e6) == 1000.0
    assert price.cost(7.2e6) == pytest.approx(0.6)
    assert electricity_price("de").cost(7.2e6) is None
