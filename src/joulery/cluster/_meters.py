"""Meters of racks, feeders and halls: the power that a budget is about, as the agent reads it.

``[meters]`` in the agent's settings names one for any part of the cluster: a Prometheus query, a
node meter of ``joulery.hardware``, or a class of another package under the entry point group
``joulery.power_meters``.
"""

from __future__ import annotations

import json
import math
import os
import urllib.parse
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from joulery.clock import REAL_CLOCK, Clock
from joulery.cluster._draws import Correction
from joulery.errors import InvalidValueError, JouleryError, NotPossibleHereError, flaw_text
from joulery.grid import request

if TYPE_CHECKING:
    from collections.abc import Mapping

ENTRY_POINTS = "joulery.power_meters"
# A meter that answers in time counts in the same tick; by hand.
_PATIENCE_SECONDS: float | None = 0.2
# Hosts may draw so much more than was stated, until a meter shows; by hand.
_HOST_DOUBT = 0.2
# A value that has not changed for so many times the age of an old one is frozen; by hand.
_FROZEN = 10.0
_REMEDY = (
    'write "prometheus+http://HOST:9090/?query=sum(feeder_watts)", "redfish:URL", "ipmi:HOST", '
    "or NAME:ADDRESS of an installed plug-in"
)


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Power of a part of the cluster.

    Attributes:
        watts: Power with hosts, network and everything behind the meter.
        at: Unix time at which it was measured.
    """

    watts: float
    at: float


class FeederMeter(Protocol):
    """A meter of a rack, a feeder or a hall."""

    def read(self) -> MeterReading:
        """The newest reading.

        Raises:
            NotPossibleHereError: The meter does not answer.
        """
        ...


class PrometheusMeter:
    """The sum of what a Prometheus query returns.

    Prometheus repeats the last sample of a silent exporter for some minutes, so that the agent
    takes a value that never changes for an old one.

    Args:
        url: Address of Prometheus.
        query: Expression in watts, such as ``sum(pdu_active_power_watts)``.
    """

    def __init__(self, url: str, query: str) -> None:
        self._url, self._query = url.rstrip("/"), query

    def read(self) -> MeterReading:
        """The newest reading."""
        samples = self._ask(self._query)
        return MeterReading(sum(value for _, value in samples), min(at for at, _ in samples))

    def _ask(self, query: str) -> list[tuple[float, float]]:
        body = request(f"{self._url}/api/v1/query", query={"query": query})
        try:
            results = json.loads(body)["data"]["result"]
            if isinstance(results[0], dict):
                pairs = [result["value"] for result in results]
            else:
                pairs = [results]  # a scalar
            samples = [(float(at), float(value)) for at, value in pairs]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise NotPossibleHereError(
                f"{self._url} gives no watts for {query!r}: {flaw_text(error)}",
                remedy="try the query in Prometheus; it must return a number",
            ) from None
        if not all(math.isfinite(value) for _, value in samples):
            raise NotPossibleHereError(f"{query!r} is not finite", remedy="check the exporter")
        return samples


class _NodeMeter:
    """A node meter of ``joulery.hardware`` as a feeder meter."""

    def __init__(self, specification: str, environ: Mapping[str, str], clock: Clock) -> None:
        self._specification, self._environ, self._clock = specification, environ, clock
        self._device: object | None = None

    def read(self) -> MeterReading:
        """The newest reading."""
        from joulery.hardware import open_node_meter

        if self._device is None:
            self._device = open_node_meter(self._specification, self._environ, self._clock)
        watts = self._device.read_power()  # type: ignore[attr-defined]
        return MeterReading(float(watts), self._clock.wall())


def open_feeder_meter(
    text: str, environ: Mapping[str, str] | None = None, clock: Clock = REAL_CLOCK
) -> FeederMeter:
    """The meter that a text such as ``prometheus+http://…/?query=…`` names.

    Raises:
        InvalidValueError: There is no such kind of meter.
    """
    kind, separator, address = text.partition(":")
    if kind in ("prometheus+http", "prometheus+https"):
        parts = urllib.parse.urlsplit(text.removeprefix("prometheus+"))
        query = urllib.parse.parse_qs(parts.query).get("query", [""])[0]
        if not query or not parts.netloc:
            raise InvalidValueError(f"no address and query in meter {text!r}", remedy=_REMEDY)
        return PrometheusMeter(f"{parts.scheme}://{parts.netloc}{parts.path}", query)
    if separator and kind in ("visa", "ipmi", "redfish"):
        return _NodeMeter(text, os.environ if environ is None else environ, clock)
    from importlib import metadata

    for point in metadata.entry_points(group=ENTRY_POINTS, name=kind):
        meter: FeederMeter = point.load()(address)
        return meter
    raise InvalidValueError(f"unknown meter {text!r}", remedy=_REMEDY)


class PartMeters:
    """Readings of the meters of parts, and by how much they differ from what is expected.

    Args:
        meters: Meter of each part.
        host_watts: Power of hosts and network of each part, as stated.
        whole: Name of the whole cluster, whose power is the sum of boards without a meter.
        trim: Share of the power that is handed out again at most, see ``Correction``.
        stale_seconds: Age at which a reading is too old.
        clock: Clock of readings.

    Attributes:
        by_part: Correction of each part.
    """

    def __init__(
        self,
        meters: Mapping[str, FeederMeter],
        host_watts: Mapping[str, float],
        whole: str,
        trim: float,
        stale_seconds: float,
        clock: Clock,
    ) -> None:
        self._meters, self._whole, self._clock = meters, whole, clock
        self._stale_seconds = stale_seconds
        self.by_part = {
            part: Correction(trim, _HOST_DOUBT * host_watts[part] * (part in meters))
            for part in {whole, *meters}
        }
        self._pending: dict[str, Future[MeterReading]] = {}
        # Time of the monotonic clock, watts, and the time since which they have not changed.
        self._readings: dict[str, tuple[float, float, float]] = {}
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(meters)))

    def read(self, messages: list[str], seconds: float) -> None:
        """Take new readings; a meter that hangs is not waited for."""
        for part, meter in self._meters.items():
            patience = 0.0 if part in self._pending else _PATIENCE_SECONDS
            if part not in self._pending:
                self._pending[part] = self._pool.submit(meter.read)
            try:
                reading = self._pending[part].result(patience)
                del self._pending[part]
                self._take(part, reading, seconds)
            except TimeoutError:
                pass
            except JouleryError as error:
                del self._pending[part]
                messages.append(f"meter of {part}: {error.message}")
            if self.watts(part) is None:
                messages.append(f"the meter of {part} gives no new readings: its last is not used")

    def _take(self, part: str, reading: MeterReading, seconds: float) -> None:
        now = self._clock.now()
        at = now - max(0.0, self._clock.wall() - reading.at)
        before = self._readings.get(part)
        changed_at = at if before is None or before[1] != reading.watts else before[2]
        self._readings[part] = at, reading.watts, changed_at
        # A value that has not changed may be an old one, as Prometheus repeats it between scrapes.
        if self.watts(part) is not None and changed_at == at:
            self.by_part[part].note(at, reading.watts, seconds)

    def watts(self, part: str) -> float | None:
        """Power of a part as its meter reads it; None where there is no new reading."""
        at, watts, changed_at = self._readings.get(part, (-math.inf, 0.0, -math.inf))
        age, now = self._stale_seconds, self._clock.now()
        return watts if now - at <= age and now - changed_at <= _FROZEN * age else None

    def note_boards(self, watts: float, seconds: float) -> None:
        """Take the sum of boards and hosts for the whole, where it has no meter."""
        if self._whole not in self._meters:
            self.by_part[self._whole].note(self._clock.now(), watts, seconds)

    def expect(self, least: Mapping[str, float], most: Mapping[str, float]) -> None:
        """Note between which powers each part is expected to draw now."""
        for part, correction in self.by_part.items():
            correction.expect(self._clock.now(), least[part], most[part])

    def corrections(self) -> dict[str, float]:
        """Watts that each part draws beyond what is expected."""
        return {
            part: correction.watts(is_stale=part in self._meters and self.watts(part) is None)
            for part, correction in self.by_part.items()
        }
