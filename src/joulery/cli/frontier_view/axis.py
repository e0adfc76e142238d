"""Axes with round ticks in units that people read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Space between the outermost points and the frame, as a share of the range.
_MARGIN = 0.08
# A range narrower than this share of its values is shown as if all were the same.
_NARROWEST = 0.005


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that people read, for all figures of one table or axis.

    Attributes:
        name: Such as ``kJ``.
        size: SI units in one of it.
        from_size: Used once the largest figure reaches this many SI units.
    """

    name: str
    size: float
    from_size: float

    def text(self, value: float) -> str:
        """An SI value in this unit, such as ``12.3 kJ``."""
        return f"{value / self.size:.1f} {self.name}"


_JOULES = (
    Unit("GJ", 1e9, 2e9),
    Unit("MJ", 1e6, 2e6),
    Unit("kJ", 1e3, 2e3),
    Unit("J", 1.0, 2.0),
    Unit("mJ", 1e-3, 0.0),
)
_SECONDS = (
    Unit("d", 86400.0, 3 * 86400.0),
    Unit("h", 3600.0, 3 * 3600.0),
    # Runs of some minutes compare better in seconds.
    Unit("min", 60.0, 30 * 60.0),
    Unit("s", 1.0, 2.0),
    Unit("ms", 1e-3, 0.0),
)


def joules_unit(values: Iterable[float]) -> Unit:
    """One unit of energy for all of ``values``."""
    return _unit_for(values, _JOULES)


def seconds_unit(values: Iterable[float]) -> Unit:
    """One unit of time for all of ``values``."""
    return _unit_for(values, _SECONDS)


def _unit_for(values: Iterable[float], units: tuple[Unit, ...]) -> Unit:
    largest = max(values)
    return next((unit for unit in units if largest >= unit.from_size), units[-1])


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis, in a unit of its own.

    Attributes:
        low: Left or lower end, in the unit.
        high: The other end.
        ticks: Round values between them, ascending.
        unit: The unit.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    unit: Unit

    def share(self, value: float) -> float:
        """Where an SI value lies: 0 at the low end, 1 at the high end."""
        return (value / self.unit.size - self.low) / (self.high - self.low)

    def tick_share(self, tick: float) -> float:
        """Where a tick lies."""
        return (tick - self.low) / (self.high - self.low)


def seconds_axis(values: Iterable[float], most_ticks: int = 6) -> Axis:
    """An axis of time around the given seconds."""
    found = list(values)
    return _axis(found, seconds_unit(found), most_ticks)


def joules_axis(values: Iterable[float], most_ticks: int = 6) -> Axis:
    """An axis of energy around the given joules."""
    found = list(values)
    return _axis(found, joules_unit(found), most_ticks)


def _axis(values: list[float], unit: Unit, most_ticks: int) -> Axis:
    low, high = min(values) / unit.size, max(values) / unit.size
    # A single point still needs some room on both sides, and rounding is not to be magnified.
    margin = _MARGIN * (high - low)
    if high - low < _NARROWEST * high:
        margin = 0.1 * high
    margin = margin or 1.0
    low, high = low - margin, high + margin
    return Axis(low, high, round_ticks(low, high, most_ticks), unit)


def round_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """At most ``most`` multiples of 1, 2 or 5 times a power of ten between two values."""
    magnitude = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20):
        step = factor * magnitude
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            break
    # Rounded, so that 3 × 0.1 reads 0.3; adding 0.0 turns -0.0 into 0.0.
    digits = max(0, 1 - math.floor(math.log10(step)))
    return tuple(round(count * step, digits) + 0.0 for count in range(first, last + 1))
