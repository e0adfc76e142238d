"""Carbon and price of a kilowatt-hour, as a region's table or the user states them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from joulery.grid._signal import carbon_intensity
from joulery.units import finite, grams_co2, money


@dataclass(frozen=True, slots=True)
class ElectricityPrice:
    """Carbon and price of a kilowatt-hour.

    Attributes:
        grams: Carbon intensity in gCO2/kWh.
        grams_source: Source of that figure.
        price: Money per kWh; None where it is unknown.
        currency: Name of the money.
    """

    grams: float
    grams_source: str
    price: float | None = None
    currency: str = ""

    def carbon_grams(self, joules: float) -> float:
        """Emissions of some energy."""
        return grams_co2(joules, self.grams)

    def cost(self, joules: float) -> float | None:
        """Money for some energy; None where the price is unknown."""
        return None if self.price is None else money(joules, self.price)


def electricity_price(
    source: str | None = None, price: float | None = None, currency: str = ""
) -> ElectricityPrice:
    """Carbon and price of a kilowatt-hour.

    Args:
        source: Carbon intensity, as ``carbon_intensity`` takes it: gCO2/kWh, a region, or the
            path of a series, whose mean counts; the world's mean unless given.
        price: Money per kWh; None where it is unknown.
        currency: Name of the money.

    Examples:
        >>> electricity_price("FR", price=0.2).cost(3.6e6)
        0.2
    """
    if price is not None:
        finite(price, "price per kWh", minimum=0.0)
    signal = carbon_intensity(source or "WORLD")
    return ElectricityPrice(fmean(signal.values), signal.source, price, currency)
