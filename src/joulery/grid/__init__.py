"""Signals of the power grid: carbon intensity, price, and demand-response events.

Examples:
    >>> from joulery.grid import static_intensity
    >>> static_intensity("FR").at(0.0) < static_intensity("DE").at(0.0)
    True

Nothing here calls a network unless a provider is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.grid._events import GridEvent, read_events
    from joulery.grid._openadr import OpenAdr
    from joulery.grid._providers import (
        Eia,
        ElectricityMaps,
        Entsoe,
        Provider,
        WattTime,
        fetch_signal,
    )
    from joulery.grid._signal import REGIONS, Signal, read_signal, read_table, static_intensity

__all__ = [
    "REGIONS",
    "Eia",
    "ElectricityMaps",
    "Entsoe",
    "GridEvent",
    "OpenAdr",
    "Provider",
    "Signal",
    "WattTime",
    "fetch_signal",
    "read_events",
    "read_signal",
    "read_table",
    "static_intensity",
]

__getattr__ = lazy(__name__)
