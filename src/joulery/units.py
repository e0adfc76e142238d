"""Conversions between SI units and those of vendors and people.

Everything inside Joulery is SI, with the unit in the name. Only this file and the vendor files
convert.
"""

from __future__ import annotations

import math

from joulery.errors import InvalidValueError

JOULES_PER_KILOWATT_HOUR = 3.6e6
HERTZ_PER_MEGAHERTZ = 1e6

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


_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_DURATIONS = {"": 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def count_from_text(text: str, name: str) -> float:
    """A count as people write it: ``count_from_text("2T", "tokens")`` is ``2e12``."""
    return _with_suffix(text, name, _COUNTS)


def seconds_from_text(text: str, name: str) -> float:
    """A duration as people write it: ``seconds_from_text("30d", "deadline")`` is ``2592000.0``."""
    return _with_suffix(text, name, _DURATIONS)


def _with_suffix(text: str, name: str, suffixes: dict[str, float]) -> float:
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    suffix = text.strip()[len(number) :]
    try:
        return finite(float(number) * suffixes[suffix], name, minimum=0.0)
    except (ValueError, KeyError):
        known = ", ".join(word for word in suffixes if word)
        raise InvalidValueError(
            f"{name} {text!r} is no number with a unit", remedy=f"write a number and one of {known}"
        ) from None


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


def human_duration(seconds: float) -> str:
    """A duration in hours, minutes and seconds: ``human_duration(3725)`` is ``"1 h 02 min"``."""
    if not math.isfinite(seconds) or abs(seconds) < 60:
        return human(seconds, "s")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def human_age(seconds: float) -> str:
    """An age in one unit, rounded down: ``human_age(7300)`` is ``"2 h"``."""
    units = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
    size, name = next((one for one in units if seconds >= one[0]), (1.0, "s"))
    return f"{max(0.0, seconds) // size:.0f} {name}"
