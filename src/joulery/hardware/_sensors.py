"""Power sensors as they are: behaviour by chip, field and driver, from ``sensors.toml``.

Examples:
    >>> round(sensor_of("NVIDIA A100-SXM4-40GB").duty, 4)
    0.2475
    >>> sensor_of("NVIDIA H100 PCIe", field="plain").window_seconds
    1.0
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from joulery.errors import FileError, JouleryError, flaw_text
from joulery.units import finite

# File of a self-test whose sensor goes before those of the catalog.
SENSORS_VARIABLE = "JOULERY_SENSORS"
_TIMES = ("period_seconds", "window_seconds", "lag_seconds")
_SIGMAS_95 = 1.96  # half the interval of 95 % of a normal distribution


@dataclass(frozen=True, slots=True)
class PowerSensor:
    """Expected behaviour of a board's power sensor.

    Attributes:
        name: Chip, field and driver.
        period_seconds: Time between two refreshes of the value.
        window_seconds: Time before a refresh that the value averages over; above the period for a
            running mean, below it for a sensor that misses the rest.
        lag_seconds: Time constant with which it follows beyond that.
        lag_error_seconds: Longest further delay, where nothing is known about the sensor.
        gain_error: One sigma of watts read per true watt.
        offset_error_watts: One sigma of watts read at zero.
        correlation: Correlation of gain and offset.
        gains: Lowest and highest gain that were measured; 1 where none was.
        offsets_watts: Lowest and highest offset that were measured; 0 where none was.
        source: Document behind the numbers.
    """

    name: str
    period_seconds: float
    window_seconds: float
    lag_seconds: float = 0.0
    lag_error_seconds: float = 0.0
    gain_error: float = 0.0
    offset_error_watts: float = 0.0
    correlation: float = 0.0
    gains: tuple[float, float] = (1.0, 1.0)
    offsets_watts: tuple[float, float] = (0.0, 0.0)
    source: str = ""

    @property
    def duty(self) -> float:
        """Fraction of the time that the sensor looks at."""
        return min(1.0, self.window_seconds / self.period_seconds)

    def error_joules(self, joules: float, seconds: float) -> float:
        """One sigma of an energy by the errors of gain and offset."""
        gain, offset = self.gain_error * joules, self.offset_error_watts * seconds
        return math.sqrt(gain**2 + offset**2 + 2.0 * self.correlation * gain * offset)

    @property
    def is_prompt(self) -> bool:
        """Whether a reading is known to cover only the time since the one before."""
        late = self.lag_seconds + self.lag_error_seconds > 0
        return not late and self.window_seconds <= 1.2 * self.period_seconds


def sensor_of(board: str, *, field: str = "instant", driver: str = "") -> PowerSensor:
    """Expected sensor of a board.

    Args:
        board: Name that the driver reports.
        field: ``instant`` or ``plain``, the call whose value is used.
        driver: Version of the driver, such as ``535.54.03``.
    """
    major = int(digits[0]) if (digits := re.match(r"\d+", driver)) else None
    try:
        entries = _own_entries(os.environ.get(SENSORS_VARIABLE, ""))
    except FileError:  # which ``check_sensor_file`` reports
        entries = ()
    for entry in (*entries, *_document()["sensor"]):
        first, last = entry.get("drivers", (0, 10**6))
        fits = entry.get("field", field) == field
        in_range = "drivers" not in entry or (major is not None and first <= major <= last)
        if fits and in_range and re.search(entry["boards"], board, re.IGNORECASE):
            return _sensor(entry)
    return _sensor({"name": "unknown", **_document()["unknown"]})


def check_sensor_file() -> None:
    """Raise ``FileError`` where JOULERY_SENSORS names a file that is not of a self-test."""
    _own_entries(os.environ.get(SENSORS_VARIABLE, ""))


def known_sensors() -> tuple[PowerSensor, ...]:
    """Every sensor of the catalog."""
    return tuple(_sensor(entry) for entry in _document()["sensor"])


def _sensor(entry: dict[str, Any]) -> PowerSensor:
    document = _document()
    gains = tuple(entry.get("gains", (1.0, 1.0)))
    offsets = tuple(entry.get("offsets_watts", (0.0, 0.0)))
    # At least what was seen on boards of this kind, as the outer end of a bar of 95 %.
    gain_seen = max(abs(gain - 1.0) for gain in gains) / _SIGMAS_95
    offset_seen = max(map(abs, offsets)) / _SIGMAS_95
    values = {key: value for key, value in entry.items() if key in PowerSensor.__dataclass_fields__}
    errors = {
        "gain_error": max(document["gain_error"], gain_seen),
        "offset_error_watts": max(document["offset_error_watts"], offset_seen),
        "correlation": document["correlation"],
    }
    ranges = {"gains": gains, "offsets_watts": offsets}
    return PowerSensor(**values | errors | ranges, source=document["source"])


@cache
def _own_entries(path: str) -> tuple[dict[str, Any], ...]:
    """The sensor that a self-test of a board found, as an entry of the catalog."""
    if not path:
        return ()
    import json

    try:
        entry = json.loads(Path(path).read_bytes())["sensor"]
        re.compile(entry["boards"])
        times = {name: finite(entry[name], name, minimum=0.0) for name in _TIMES}
        if not times["period_seconds"] * times["window_seconds"]:
            raise ValueError("a sensor has a period and a window above 0")  # noqa: TRY301
        return ({"name": str(entry["name"]), "boards": entry["boards"], **times},)
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        re.error,
        RecursionError,
        JouleryError,
    ) as error:
        raise FileError(
            f"{SENSORS_VARIABLE}: cannot read {path!r}: {flaw_text(error)}",
            remedy="name a file that `joulery doctor --selftest` wrote, or leave it out",
        ) from None


@cache
def _document() -> dict[str, Any]:
    # Costs some 40 ms, so it is imported only here.
    import tomllib
    from importlib.resources import files

    text = files("joulery.hardware").joinpath("sensors.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
