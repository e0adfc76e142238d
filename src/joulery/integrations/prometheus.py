"""Energy and power of this machine's devices for Prometheus."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from joulery.hardware import Capability, PowerLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from joulery.hardware import Device, PowerLimitRange
    from joulery.metering import Meter

_LABELS = ("device", "name", "kind", "provenance")


class DeviceCollector(Collector):
    """Collector of ``joulery_device_joules_total``, ``_watts``, ``_limit_watts`` and errors.

    A scrape reads no counter: it takes what the meter's sampler has seen. A device that cannot be
    read has no sample, rather than a zero.

    Args:
        meter: Meter of the devices, started here.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter.start()
        self._since_start = meter.begin("export")

    def collect(self) -> Iterator[Metric]:
        """Samples of all devices."""
        joules = CounterMetricFamily(
            "joulery_device_joules", "Energy since the exporter started.", labels=_LABELS
        )
        errors = GaugeMetricFamily(
            "joulery_device_relative_error",
            "One standard error of the energy, relative to it.",
            labels=_LABELS,
        )
        watts = GaugeMetricFamily("joulery_device_watts", "Power now.", labels=_LABELS)
        limits = GaugeMetricFamily(
            "joulery_device_limit_watts", "Power limit in force.", labels=_LABELS
        )
        defaults = GaugeMetricFamily(
            "joulery_device_default_limit_watts", "Power limit without a cap.", labels=_LABELS
        )
        latest = self._meter.watts()
        devices = {device.info.id: device for device in self._meter.devices}
        for measured in self._since_start.devices:
            info = measured.info
            labels = [info.id, info.name, info.kind.value, measured.provenance.origin.value]
            _add(joules, labels, measured.joules)
            _add(errors, labels, measured.relative_error)
            _add(watts, labels, latest.get(info.id))
            if (limit := _limit(devices[info.id])) is not None:
                _add(limits, labels, limit.current_watts)
                _add(defaults, labels, limit.default_watts)
        yield from (joules, errors, watts, limits, defaults)


def serve(meter: Meter, port: int, address: str = "127.0.0.1") -> Callable[[], None]:
    """Serve the devices' metrics over HTTP in a thread.

    Args:
        meter: Meter of the devices.
        port: TCP port.
        address: Address to listen on.

    Returns:
        Function that stops serving.

    Raises:
        OSError: The port is taken or not allowed.
    """
    registry = CollectorRegistry()
    registry.register(DeviceCollector(meter))
    server, thread = start_http_server(port, address, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _add(
    family: CounterMetricFamily | GaugeMetricFamily, labels: list[str], value: float | None
) -> None:
    if value is not None and math.isfinite(value):
        family.add_metric(labels, value)


def _limit(device: Device) -> PowerLimitRange | None:
    """The power limits of a device; None where there is none, or they cannot be read."""
    if Capability.POWER_LIMIT not in device.capabilities or not isinstance(device, PowerLimit):
        return None
    try:
        return device.power_limits()
    except Exception:  # noqa: BLE001 - a scrape does without it
        return None
