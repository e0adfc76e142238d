"""Carbon and price of a kilowatt-hour, as a region's table or the user states them."""

from __future__ import annotations

from dataclasses import dataclass

from joulery.grid._signal import static_intensity
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
    region: str | None = None,
    grams: float | None = None,
    price: float | None = None,
    currency: str = "",
) -> ElectricityPrice:
    """Carbon and price of a kilowatt-hour.

    Args:
        region: Region whose yearly mean carbon intensity applies; the world unless given.
        grams: Carbon intensity in gCO2/kWh, in place of a region's.
        price: Money per kWh; None where it is unknown.
        currency: Name of the money.

    Examples:
        >>> electricity_price("FR", price=0.2).cost(3.6e6)
        0.2
    """
    if price is not None:
        finite(price, "price per kWh", minimum=0.0)
    if grams is not None:
        grams = finite(grams, "carbon intensity in g/kWh", minimum=0.0)
        return ElectricityPrice(grams, "as given", price, currency)
    signal = static_intensity(region or "WORLD")
    return ElectricityPrice(signal.at(0.0), signal.source, price, currency)
