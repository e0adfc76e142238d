"""Energy and power of this machine's devices and of served models for OpenTelemetry."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from joulery.hardware import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.frontier import Origin
    from joulery.hardware import DeviceInfo
    from joulery.metering import Meter
    from joulery.serving import EngineState, LedgerAccount, ServiceWatch


# Buckets of latencies in seconds, those of the semantic conventions for generative AI.
_BUCKETS = {
    "time_to_first_token": [
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    ],
    "time_per_output_token": [
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    ],
}  # fmt: skip


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
                yield Observation(
                    measured.joules, _attributes(measured.info, measured.provenance.origin)
                )

    def _power(self) -> Iterator[Observation]:
        watts = self._meter.watts()
        for measured in self._since_start.devices:
            value = watts.get(measured.info.id)
            if value is not None and measured.info.kind is not DeviceKind.NODE:
                yield Observation(value, _attributes(measured.info, measured.provenance.origin))


def _attributes(info: DeviceInfo, origin: Origin) -> dict[str, str]:
    return {
        "hw.id": info.id,
        "hw.name": info.name,
        "hw.type": info.kind.value,
        "joulery.provenance": origin.value,
    }


class ServingMetrics:
    """Instruments ``gen_ai.*`` of a served model, beside ``hw.*`` of its boards.

    Latencies have the names of OpenTelemetry's semantic conventions for generative AI; these have
    none for energy, which is ``gen_ai.server.token.energy`` by type of token.

    Args:
        watch: The service.
        provider: Provider of the instruments; the global one unless given.
    """

    def __init__(self, watch: ServiceWatch, provider: Any = None) -> None:
        HardwareMetrics(watch.meter, provider)
        self._watch = watch
        self._account: LedgerAccount | None = None
        self._attributes = {"gen_ai.provider.name": watch.metrics.engine.lower()}
        instruments = metrics.get_meter("joulery", meter_provider=provider)
        self._ttft, self._tpot = (
            instruments.create_histogram(
                f"gen_ai.server.{name}", unit="s", explicit_bucket_boundaries_advisory=bounds
            )
            for name, bounds in _BUCKETS.items()
        )
        for name, error in (("", False), (".error", True)):
            instruments.create_observable_gauge(
                f"gen_ai.server.token.energy{name}",
                [lambda _, error=error: self._energy(error=error)],
                unit="J/{token}",
                description="Energy above waiting" + (", standard error." if error else "."),
            )
        instruments.create_observable_counter(
            "gen_ai.server.token.usage", [lambda _: self._tokens()], unit="{token}"
        )

    def write(self, state: EngineState | None, account: LedgerAccount) -> None:
        """Take a reading and the account until then."""
        self._account = account
        if state is not None:
            for instrument, latencies in (
                (self._ttft, state.ttft_seconds),
                (self._tpot, state.tpot_seconds),
            ):
                for seconds in latencies:
                    instrument.record(seconds, self._attributes)

    def _energy(self, *, error: bool) -> Iterator[Observation]:
        account = self._account
        if account is None:
            return
        for kind, figure in (
            ("input", account.prefill_joules_per_token),
            ("output", account.decode_joules_per_token),
        ):
            value = figure.error if error else figure.value
            if math.isfinite(value):
                yield Observation(value, self._attributes | {"gen_ai.token.type": kind})

    def _tokens(self) -> Iterator[Observation]:
        for model, counts in list(self._watch.reader.tokens_by_model.items()):
            for kind, count in zip(("input", "output"), counts, strict=True):
                labels = {"gen_ai.token.type": kind, "gen_ai.response.model": model}
                yield Observation(count, self._attributes | labels)


def otlp_provider() -> Any:
    """A provider that sends to the collector that ``OTEL_EXPORTER_OTLP_ENDPOINT`` names.

    Raises:
        ImportError: The SDK or its exporter for OTLP over HTTP is not installed.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    name = os.environ.get("OTEL_SERVICE_NAME", "joulery")
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return MeterProvider([reader], resource=Resource.create({"service.name": name}))
