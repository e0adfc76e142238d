"""Assumptions of a recommendation about prices, cooling, carbon and host power."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joulery.errors import InvalidValueError
from joulery.prediction._devices import accelerator
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.prediction._bayes import Array
    from joulery.prediction._devices import Accelerator

_SECONDS_PER_YEAR = 365.25 * 86400.0
# Devices that links join in servers with switches.
_LINKED_DOMAIN = 4


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions beyond the devices' own energy; None means the catalog's.

    Attributes:
        pue: Energy of the building per energy of the machines.
        grams_per_kilowatt_hour: Carbon of the grid.
        rent_per_hour: Dollars per device and hour, of all device types or by name.
        host_watts: Power of a host with its fans and network, without its boards.
    """

    pue: float | None = None
    grams_per_kilowatt_hour: float | None = None
    rent_per_hour: float | Mapping[str, float] | None = None
    host_watts: float | None = None

    def __post_init__(self) -> None:
        leasts = {"pue": 1.0, "grams_per_kilowatt_hour": 0.0, "host_watts": 0.0}
        for name, least in leasts.items():
            if (value := getattr(self, name)) is not None:
                finite(value, name.replace("_", " "), minimum=least)
        rents = self.rent_per_hour
        for rent in rents.values() if isinstance(rents, Mapping) else (rents,):
            if rent is not None:
                finite(rent, "rent per hour", minimum=0.0)

    def overhead(self) -> float:
        """Energy of the building per energy of the machines."""
        return _or_default(self.pue, "pue")

    def grid(self) -> float:
        """Grams of CO2 per kilowatt-hour."""
        return _or_default(self.grams_per_kilowatt_hour, "grid_grams_per_kilowatt_hour")

    def check_rents(self, devices: Iterable[str]) -> None:
        """Refuse a price of a device type that is not among those looked at.

        Raises:
            InvalidValueError: There is one.
            UnknownDeviceError: A price names no device.
        """
        if isinstance(self.rent_per_hour, Mapping):
            names = set(devices)
            for name in self.rent_per_hour:
                if name not in names and accelerator(name).name not in names:
                    raise InvalidValueError(
                        f"a rent of {name} is given, which is not among the devices",
                        remedy=f"leave it out, or look at {name} too",
                    )

    def rent(self, device: Accelerator) -> Rent:
        """Dollars per device and hour."""
        rents = self.rent_per_hour
        if isinstance(rents, Mapping):
            by_device = {
                name if name == device.name else accelerator(name).name: rent
                for name, rent in rents.items()
            }
            rents = by_device.get(device.name)
        if rents is not None:
            return Rent(rents, "as given")
        priced = _document()["rent_per_hour"].get(device.name)
        if priced is None:
            return _guess_rent(device)
        return Rent(float(priced["dollars"]), str(priced["source"]))

    def host_share(self, device: Accelerator, devices: Array) -> Array:
        """Watts of host, fans and network that fall on each of so many devices.

        A host with fewer boards than it has room for is theirs alone, unless links join its boards:
        such a server is rented by the board.
        """
        together = np.minimum(devices, device.host_devices)
        if self.host_watts is not None:
            return np.asarray(self.host_watts / together)
        document = _document()
        if _is_linked(device):
            return np.full(together.shape, document["host_share"] * device.limit_watts)
        return np.asarray(
            document["pcie_host_watts"] * together ** (document["pcie_host_exponent"] - 1)
        )

    def host(self, device: Accelerator) -> str:
        """Power of the hosts of a device type and where it comes from, in words."""
        if self.host_watts is not None:
            return f"hosts of {self.host_watts:g} W beside their boards (as given)"
        document, numbers = _document(), np.array([1.0, device.host_devices])
        single, full = numbers * self.host_share(device, numbers)
        if _is_linked(device):
            return f"hosts of {single:.0f} W per {device.name} ({document['linked_host_source']})"
        more = f", {full:.0f} W with {device.host_devices}" if device.host_devices > 1 else ""
        return f"hosts of {single:.0f} W with one PCIe board{more} ({document['pcie_host_source']})"


def _is_linked(device: Accelerator) -> bool:
    """Whether links join the boards of a server, unlike bridges between two boards."""
    return device.link_domain >= _LINKED_DOMAIN


class Rent(NamedTuple):
    """Dollars per device and hour.

    Attributes:
        dollars: The rent.
        source: Where it comes from, in words.
        guessed: Whether it is a guess.
    """

    dollars: float
    source: str
    guessed: bool = False


def _guess_rent(device: Accelerator) -> Rent:
    """The rent of boards of the same class, by size."""
    rents = _document()["rent_per_hour"]
    boards = [board for board in map(accelerator, rents) if board.consumer == device.consumer]
    per_size = [math.log(rents[board.name]["dollars"] / _size(board)) for board in boards]
    kind = "consumer" if device.consumer else "server and workstation"
    error = 100 * _document()["guess_deviation"]
    source = (
        f"guessed from {len(boards)} {kind} boards by memory, bandwidth and peak, ± {error:.0f} %"
    )
    return Rent(math.exp(math.fsum(per_size) / len(boards)) * _size(device), source, guessed=True)


def _size(device: Accelerator) -> float:
    peak = device.peak(device.sixteen_bits)
    return float((device.memory_bytes * device.bytes_per_second * peak) ** (1 / 3))


def embodied_kilograms(device: str | Accelerator) -> float:
    """Carbon of the manufacture of a device with its share of the server, in kilograms of CO2.

    Raises:
        UnknownDeviceError: No such accelerator; the remedy names the nearest.
    """
    board = accelerator(device)
    document = _document()
    memory = document["embodied_kilograms_per_gigabyte"] * board.memory_bytes / 1e9
    return float(
        document["embodied_board_kilograms"] + memory + document["embodied_host_kilograms"]
    )


def embodied_grams(device: str | Accelerator, device_seconds: float) -> float:
    """Carbon of manufacture that so many seconds of use of a device carry, in grams of CO2.

    A device is taken to serve four years around the clock.
    """
    lifetime = _document()["lifetime_years"] * _SECONDS_PER_YEAR
    return 1000 * embodied_kilograms(device) * device_seconds / float(lifetime)


def embodied_source() -> str:
    """Source of the carbon of manufacture, in words."""
    return str(_document()["embodied_source"])


def waiting_share() -> float:
    """Power of a waiting node relative to a busy one."""
    return float(_document()["waiting_share"])


@dataclass(frozen=True, slots=True)
class LostTime:
    """Time of a training beyond its steps: start, restarts, checkpoints, evaluations.

    Attributes:
        factor: Time of the training relative to that of its steps, without its start, at the
            default power limit; lower ones stretch the steps alone.
        deviation: Standard deviation of the factor's logarithm.
        start_seconds: Seconds until the first step.
        source: Where they come from, in words.
    """

    factor: float
    deviation: float
    start_seconds: float
    source: str

    def seconds(self, of_steps: Array) -> Array:
        """Seconds beyond those of the steps."""
        return np.asarray((self.factor - 1) * of_steps + self.start_seconds)


@cache
def lost_time() -> LostTime:
    """What trainings are assumed to lose."""
    document = _document()
    return LostTime(
        float(document["lost_factor"]),
        float(document["lost_deviation"]),
        float(document["start_seconds"]),
        str(document["lost_source"]),
    )


def _or_default(value: float | None, name: str) -> float:
    return float(_document()[name]) if value is None else value


@cache
def _document() -> dict[str, Any]:
    text = files(__package__).joinpath("economics.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
