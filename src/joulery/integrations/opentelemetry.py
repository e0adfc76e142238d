"""Energy and power of this machine's devices for OpenTelemetry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from joulery.hardware import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.hardware import DeviceInfo
    from joulery.metering import Meter


class HardwareMetrics:
    """Instruments ``hw.energy`` and ``hw.power`` per device, ``hw.host.energy`` for whole nodes.

    Names, units and attributes are those of OpenTelemetry's semantic conventions for hardware.

    Args:
        meter: Meter of the devices, started here.
        provider: Provider of the instruments; the global one unless given.

    Examples:
        >>> HardwareMetrics(joulery.Meter())  # doctest: +SKIP
    """

    def __init__(self, meter: Meter, provider: Any = None) -> None:
        self._meter = meter.start()
        self._since_start = meter.begin("export")
        instruments = metrics.get_meter("joulery", meter_provider=provider)
        instruments.create_observable_counter(
            "hw.energy", [lambda _: self._energy(whole=False)], unit="J", description="Energy used."
        )
        instruments.create_observable_gauge(
            "hw.power", [lambda _: self._power()], unit="W", description="Power now."
        )
        instruments.create_observable_counter(
            "hw.host.energy",
            [lambda _: self._energy(whole=True)],
            unit="J",
            description="Energy used by the whole host.",
        )

    def _energy(self, *, whole: bool) -> Iterator[Observation]:
        for measured in self._since_start.devices:
            is_node = measured.info.kind is DeviceKind.NODE
            if is_node is whole and math.isfinite(measured.joules):
                attributes = {
                    **_attributes(measured.info),
                    "joulery.provenance": measured.provenance.origin.value,
                }
                yield Observation(measured.joules, attributes)

    def _power(self) -> Iterator[Observation]:
        watts = self._meter.watts()
        for device in self._meter.devices:
            value = watts.get(device.info.id)
            if value is not None and device.info.kind is not DeviceKind.NODE:
                yield Observation(value, _attributes(device.info))


def _attributes(info: DeviceInfo) -> dict[str, str]:
    return {"hw.id": info.id, "hw.name": info.name, "hw.type": info.kind.value}
