"""Mean carbon intensity by region, for use without a network."""

from __future__ import annotations

from joulery.errors import InvalidValueError
from joulery.grid._signal import Signal

# gCO2/kWh over a year. CISO, ERCO, PJM, DE, ES and SE: lifecycle means of 2021, computed from
# CarbonCast's published series. All others: lifecycle, about 2023, rounded to tens, as remembered
# from Ember's Yearly Electricity Data and not checked against it. Good enough to compare places.
REGIONS = {
    "AT": 110.0, "AU": 550.0, "BE": 140.0, "BR": 100.0, "CA": 170.0, "CH": 40.0, "CN": 580.0,
    "DE": 346.0, "DK": 150.0, "ES": 168.0, "FI": 80.0, "FR": 60.0, "GB": 240.0, "IE": 290.0,
    "IN": 710.0, "IS": 30.0, "IT": 330.0, "JP": 490.0, "KR": 430.0, "NL": 270.0, "NO": 30.0,
    "PL": 660.0, "SE": 39.0, "SG": 470.0, "TW": 640.0, "US": 370.0, "ZA": 710.0,
    "CISO": 268.0, "ERCO": 361.0, "PJM": 375.0, "WORLD": 480.0,
}  # fmt: skip


def static_intensity(region: str) -> Signal:
    """A constant carbon intensity in gCO2/kWh, from the built-in table."""
    name = region.strip().upper()
    if name not in REGIONS:
        raise InvalidValueError(
            f"no built-in carbon intensity for {region!r}",
            remedy=f"use one of {', '.join(sorted(REGIONS))}, or give a series",
        )
    century = 100 * 365.25 * 86400.0
    return Signal(0.0, century, (REGIONS[name],), f"built-in yearly mean of {name}")
