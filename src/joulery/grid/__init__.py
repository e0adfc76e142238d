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
    from joulery.grid._events import GridEvent as GridEvent, read_events as read_events
    from joulery.grid._http import request as request
    from joulery.grid._openadr import OpenAdr as OpenAdr
    from joulery.grid._price import (
        ElectricityPrice as ElectricityPrice,
        electricity_price as electricity_price,
    )
    from joulery.grid._providers import (
        Eia as Eia,
        ElectricityMaps as ElectricityMaps,
        Entsoe as Entsoe,
        EntsoeProduction as EntsoeProduction,
        Provider as Provider,
        WattTime as WattTime,
        fetch_signal as fetch_signal,
        provider_signal as provider_signal,
    )
    from joulery.grid._signal import (
        REGIONS as REGIONS,
        Signal as Signal,
        carbon_intensity as carbon_intensity,
        read_rows as read_rows,
        read_signal as read_signal,
        read_table as read_table,
        static_intensity as static_intensity,
    )


__getattr__, __dir__ = lazy(__name__)
