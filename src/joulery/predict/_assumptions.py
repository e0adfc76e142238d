"""What a recommendation assumes about prices, cooling, carbon and host power."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from joulery.units import finite

if TYPE_CHECKING:
    from joulery.predict._devices import Accelerator

_SECONDS_PER_YEAR = 365.25 * 86400.0


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a recommendation assumes beyond the devices' own energy; None means the catalog's.

    Attributes:
        pue: Energy of the building per energy of the machines.
        grams_per_kilowatt_hour: Carbon of the grid.
        rent_per_hour: Dollars per device and hour.
        host_share: Watts of host, fans and network per watt of the devices' default limits.
    """

    pue: float | None = None
    grams_per_kilowatt_hour: float | None = None
    rent_per_hour: float | None = None
    host_share: float | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("pue", 1.0),
            ("grams_per_kilowatt_hour", 0.0),
            ("rent_per_hour", 0.0),
            ("host_share", 0.0),
        ):
            if (value := getattr(self, name)) is not None:
                finite(value, name.replace("_", " "), minimum=least)

    def overhead(self) -> float:
        """Energy of the building per energy of the machines."""
        return _given(self.pue, "pue")

    def grid(self) -> float:
        """Grams of CO2 per kilowatt-hour."""
        return _given(self.grams_per_kilowatt_hour, "grid_grams_per_kilowatt_hour")

    def rent(self, device: Accelerator) -> float:
        """Dollars per device and hour."""
        if self.rent_per_hour is not None:
            return self.rent_per_hour
        priced = _document()["rent_per_hour"].get(device.name)
        if priced is None:
            return float(_document()["rent_per_watt"] * device.limit_watts)
        return float(priced["dollars"])

    def rent_source(self, device: Accelerator) -> str:
        """Where the rent comes from, in words."""
        if self.rent_per_hour is not None:
            return "as given"
        priced = _document()["rent_per_hour"].get(device.name)
        return "guessed from its power limit" if priced is None else str(priced["source"])

    def host_watts(self, device: Accelerator) -> float:
        """Watts of host, fans and network per device."""
        return _given(self.host_share, "host_share") * device.limit_watts

    def embodied_grams(self, device_seconds: float) -> float:
        """Carbon of manufacture that so much use of a device carries."""
        document = _document()
        lifetime = document["lifetime_years"] * _SECONDS_PER_YEAR
        return float(1000 * document["embodied_kilograms"] * device_seconds / lifetime)


def waiting_share() -> float:
    """Power of a waiting node relative to a busy one."""
    return float(_document()["waiting_share"])


def _given(value: float | None, name: str) -> float:
    return float(_document()[name]) if value is None else value


@cache
def _document() -> dict[str, Any]:
    text = files(__package__).joinpath("economics.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
