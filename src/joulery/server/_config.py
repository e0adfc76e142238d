"""Configuration of a server: address, TLS, store, log and limits."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.grid import ElectricityPrice

DEFAULT_PORT = 8420


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server process.

    Attributes:
        body_bytes: Largest body of a request.
        head_bytes: Largest request line with headers.
        waiting_requests: Most requests in flight; more get 503.
        team_requests: Most requests in flight of one team; more get 429.
        connections: Most open connections; then the oldest without a token is closed.
        address_connections: Most open connections without a token from one address, likewise.
        calls_per_second: Mean rate of calls of one team.
        burst_calls: Most calls of one team at once.
        team_bytes_per_second: Mean rate of bytes in bodies of one team.
        burst_bytes: Most bytes in bodies of one team at once.
        failures_per_second: Mean rate of calls with invalid tokens from one address.
        head_seconds: Longest time for the head of a request to arrive.
        body_seconds: Longest time for a body to arrive.
        answer_seconds: Longest time that a request takes; then it gets 503.
        idle_seconds: Longest time that a connection stays open without a request.
        team_workers: Most pages, lists and large bodies of one team that are worked on at once.
        team_work_share: Share of a processor that those of one team may use in the long run.
        burst_work_seconds: Processor time that they may use at once.
        work_wait_seconds: Longest time that they wait for their share; then they get 429.
        heavy_bytes: Size from which a body is read in a thread.
        remembered: Number of tokens, of addresses and of jobs that are cached.
    """

    body_bytes: int = 262_144
    head_bytes: int = 16_384
    waiting_requests: int = 4000
    team_requests: int = 1000
    connections: int = 8000
    address_connections: int = 1000
    calls_per_second: float = 5000.0
    burst_calls: float = 10_000.0
    team_bytes_per_second: float = 1e6
    burst_bytes: float = 4e6
    failures_per_second: float = 20.0
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    answer_seconds: float = 20.0
    idle_seconds: float = 75.0
    team_workers: int = 1
    team_work_share: float = 0.2
    burst_work_seconds: float = 1.0
    work_wait_seconds: float = 10.0
    heavy_bytes: int = 4096
    remembered: int = 10_000


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The configuration of a server.

    Attributes:
        store: ``postgresql://…``, the path of an SQLite file, or None for the user's own.
        host: Address to listen on.
        port: Port to listen on; 0 for any that is free.
        tls_certificate: Certificate in PEM format; None serves plain HTTP.
        tls_key: Key of the certificate.
        insecure: Whether tokens may travel unencrypted beyond this machine.
        log_level: Level from which the log has records, as of ``logging``.
        log_requests: Whether every request is logged.
        drain_seconds: Time that a server which is being stopped still accepts requests, for
            load balancers to notice.
        expire_seconds: Interval at which expired leases are released.
        limits: Limits on requests and callers.
        electricity: Carbon and price of a kWh on the dashboard; None for the world's mean.
        cluster_state: State folder of a cluster's agent, to be shown on the dashboard.
        plans: Folder of pipeline plans and recommendations, to be shown on the dashboard.
        notice: Sentence at the head of every page of the dashboard; empty for none.
    """

    store: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    log_level: int = logging.INFO
    log_requests: bool = False
    drain_seconds: float = 0.0
    expire_seconds: float = 15.0
    limits: Limits = LIMITS
    electricity: ElectricityPrice | None = None
    cluster_state: Path | None = None
    plans: Path | None = None
    notice: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidValueError(f"no port {self.port}", remedy="give 1 to 65535, or 0 for any")
        if (self.tls_key is None) != (self.tls_certificate is None):
            raise InvalidValueError(
                "TLS needs a certificate and its key", remedy="give --tls-cert and --tls-key"
            )
        if not (self.insecure or self.tls_certificate or is_loopback(self.host)):
            raise InvalidValueError(
                f"tokens would travel unencrypted to {self.host}",
                remedy="give --tls-cert and --tls-key; or --insecure-bind behind a proxy that "
                "speaks TLS",
            )

    @property
    def scheme(self) -> str:
        """Scheme of the server's address."""
        return "https" if self.tls_certificate else "http"


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
