"""Conversions between SI units and those of vendors and people.

Everything inside Joulery is SI, with the unit in the name. Only this file and the vendor files
convert.
"""

from __future__ import annotations

import math
import re

from joulery.errors import InvalidValueError

JOULES_PER_KILOWATT_HOUR = 3.6e6  # by definition
HERTZ_PER_MEGAHERTZ = 1e6  # by definition
SECONDS_PER_DAY = 86_400.0  # by definition

_SCALES = (
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
)


def joules_from_millijoules(millijoules: float) -> float:
    """Millijoules, as NVML counts energy, to joules."""
    return millijoules * 1e-3


def joules_from_microjoules(microjoules: float) -> float:
    """Microjoules, as powercap counts energy, to joules."""
    return microjoules * 1e-6


def watts_from_milliwatts(milliwatts: float) -> float:
    """Milliwatts, as NVML states power, to watts."""
    return milliwatts * 1e-3


def watts_from_microwatts(microwatts: float) -> float:
    """Microwatts, as hwmon and AMD SMI state power, to watts."""
    return microwatts * 1e-6


def hertz_from_megahertz(megahertz: float) -> float:
    """Megahertz, as drivers state clocks, to hertz."""
    return megahertz * HERTZ_PER_MEGAHERTZ


def kilowatt_hours(joules: float) -> float:
    """Joules to kilowatt-hours, as bills and grid intensities count."""
    return joules / JOULES_PER_KILOWATT_HOUR


def grams_co2(joules: float, grams_per_kilowatt_hour: float) -> float:
    """Carbon of ``joules`` at a grid intensity in gCO2/kWh."""
    return kilowatt_hours(joules) * grams_per_kilowatt_hour


def money(joules: float, price_per_kilowatt_hour: float) -> float:
    """Cost of ``joules`` at a price per kWh, in the price's currency."""
    return kilowatt_hours(joules) * price_per_kilowatt_hour


def finite(value: float, name: str, *, minimum: float | None = None) -> float:
    """Return ``value`` as a float, or raise an error that names it.

    Args:
        value: Number to check.
        name: Name of the number, with its unit, for the message.
        minimum: Smallest allowed value, itself included.
    """
    try:
        math.isfinite(value)  # unlike float(), refuses text
        number = float(value)
    except OverflowError:  # a whole number beyond what a float holds
        number = math.inf
    except TypeError:
        raise InvalidValueError(
            f"{name} must be a number, not {value!r}", remedy="give a plain number"
        ) from None
    if not math.isfinite(number):
        raise InvalidValueError(
            f"{name} must be finite, not {number}", remedy="give a number other than nan and inf"
        )
    if minimum is not None and number < minimum:
        raise InvalidValueError(
            f"{name} must be at least {minimum:g}, not {number:g}",
            remedy=f"give a value of {minimum:g} or more",
        )
    return number


# Units that people may write, by what they measure; each table's value 1.0 is the SI unit.
_UNITS: tuple[dict[str, float], ...] = (
    {"s": 1.0, "us": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0},
    {"W": 1.0, "mW": 1e-3, "kW": 1e3, "MW": 1e6, "GW": 1e9},
    {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    | {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
    {"1": 1.0, "%": 0.01},
    {"#": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12},
)
_QUANTITY = re.compile(r"\s*([-+]?[\d._]*(?:[eE][+-]?\d+)?)\s*([a-zA-Z]*|%)\s*")


def quantity(text: str, name: str, unit: str) -> float:
    """A quantity as people write it, in SI: ``quantity("3kW", "budget", "W")`` is ``3000.0``.

    Args:
        text: Number and unit; a number alone is in ``unit``.
        name: Name of the quantity, for the message.
        unit: Unit of a number alone, which also tells what is measured; ``1`` for shares, which
            may be written ``5%``, and ``#`` for counts, which may be written ``2T``.

    Raises:
        InvalidValueError: The text is not a quantity of that kind, or is negative.
    """
    units = next(table for table in _UNITS if unit in table)
    parts = _QUANTITY.fullmatch(text)
    try:
        number, suffix = parts.groups() if parts else ("", "")
        value = float(number) * units[suffix or unit]
    except (ValueError, KeyError):
        words = ", ".join(word for word in units if word not in ("1", "#"))
        raise InvalidValueError(
            f"{name} {text!r} is not a number with a unit",
            remedy=f"write a number, alone or with one of {words}",
        ) from None
    return finite(value, name, minimum=0.0)


def per_cent(fraction: float) -> str:
    """A fraction in per cent, to two digits: ``per_cent(0.0512)`` is ``"5.1 %"``."""
    return f"{float(f'{100 * fraction:.2g}'):g} %"


def human(value: float, unit: str, digits: int = 3) -> str:
    """A quantity with an SI prefix: ``human(12345.6, "J")`` is ``"12.3 kJ"``."""
    if math.isnan(value):
        return "unknown"
    if value == 0 or math.isinf(value):
        return f"{value:g} {unit}"
    magnitude = float(f"{abs(value):.{digits - 1}e}")
    scale, prefix = next((pair for pair in _SCALES if magnitude >= pair[0]), _SCALES[-1])
    scaled = value / scale
    decimals = max(0, digits - 1 - math.floor(math.log10(magnitude / scale)))
    return f"{scaled:.{decimals}f} {prefix}{unit}"


def human_money(value: float) -> str:
    """Money of any currency, without an exponent: ``human_money(1.91e-5)`` is ``"0.0000191"``."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{float(f'{value:.3g}'):,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def human_dollars(value: float) -> str:
    """Dollars with a prefix of thousands: ``human_dollars(0.878)`` is ``"$0.88"``."""
    return f"${value:.2f}" if abs(value) < 10 else f"${human(value, '')}".strip()


def human_duration(seconds: float) -> str:
    """A duration in hours, minutes and seconds: ``human_duration(3725)`` is ``"1 h 02 min"``."""
    if not math.isfinite(seconds) or abs(seconds) < 60:
        return human(seconds, "s")
    minutes, odd_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {odd_seconds:02d} s"


def human_age(seconds: float) -> str:
    """An age in one unit, rounded down: ``human_age(7300)`` is ``"2 h"``."""
    units = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
    size, name = next((unit for unit in units if seconds >= unit[0]), (1.0, "s"))
    return f"{max(0.0, seconds) // size:.0f} {name}"
