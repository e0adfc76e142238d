"""Figures of the server for Prometheus."""

from __future__ import annotations

import math

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from joulery import __version__

_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counters of one server process.

    Attributes:
        in_flight: Gauge of requests that are being handled.
        expired: Counter of decisions whose lease has ended.
        latest: Time of the latest ``text``, and the text.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # of prometheus-client
        self._registry = registry = CollectorRegistry()
        version = Gauge(
            "joulery_build_info", "The version that runs.", ["version"], registry=registry
        )
        version.labels(__version__).set(1)
        self._requests = Counter(
            "joulery_requests",
            "Requests by operation and status.",
            ["operation", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "joulery_request_seconds",
            "Time to answer, by operation.",
            ["operation"],
            registry=registry,
            buckets=_BUCKETS_SECONDS,
        )
        self.in_flight = Gauge(
            "joulery_requests_in_flight", "Requests that are being handled.", registry=registry
        )
        self.expired = Counter(
            "joulery_expired", "Decisions whose lease has ended.", registry=registry
        )
        self._totals = {
            name: Gauge(f"joulery_{name}", words, registry=registry)
            for name, words in (
                ("jobs", "Jobs, all versions."),
                ("events", "Events of all jobs."),
                ("open_decisions", "Decisions whose lease has not ended."),
            )
        }
        self.text(None, -math.inf)

    def observe(self, operation: str, status: int, seconds: float) -> None:
        """Count a request; one whose time is NaN, such as a stream, without its time."""
        self._requests.labels(operation, str(status)).inc()
        if not math.isnan(seconds):
            self._seconds.labels(operation).observe(seconds)

    def text(self, totals: dict[str, int] | None, now: float = 0.0) -> bytes:
        """All figures in the format of Prometheus."""
        for name, gauge in self._totals.items():
            gauge.set(float("nan") if totals is None else totals[name])
        self.latest = now, generate_latest(self._registry)
        return self.latest[1]
