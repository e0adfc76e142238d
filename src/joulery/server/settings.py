"""How a server is to run."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.server.limits import LIMITS, Limits
from joulery.server.metrics import MOST_WORKERS

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT = 8420


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the command line says.

    Attributes:
        store: ``postgresql://…``, the path of an SQLite file, or None for the user's own.
        host: Address to listen on.
        port: To listen on; 0 for any that is free.
        workers: Processes that serve.
        tls_certificate: File in PEM format; None serves plain HTTP.
        tls_key: Of the certificate.
        insecure: Whether tokens may travel in the clear beyond this machine.
        log_requests: Whether every request is logged.
        drain_seconds: How long a server that is being stopped goes on taking requests, for load
            balancers to notice.
        stop_seconds: How long requests under way may take to end after that.
        expire_seconds: How often silent holders of decisions are looked for.
        limits: On what is taken on.
    """

    store: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    workers: int = 1
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    log_requests: bool = False
    drain_seconds: float = 0.0
    stop_seconds: float = 30.0
    expire_seconds: float = 15.0
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise InvalidValueError(
                f"{self.workers} workers", remedy=f"give 1 to {MOST_WORKERS}; one per core is much"
            )
        if not 0 <= self.port <= 65535:
            raise InvalidValueError(f"no port {self.port}", remedy="give 1 to 65535, or 0 for any")
        if (self.tls_key is None) != (self.tls_certificate is None):
            raise InvalidValueError(
                "TLS needs a certificate and its key", remedy="give --tls-cert and --tls-key"
            )
        if not (self.insecure or self.tls_certificate or is_loopback(self.host)):
            raise InvalidValueError(
                f"tokens would travel in the clear to {self.host}",
                remedy="give --tls-cert and --tls-key; or --insecure-bind behind a proxy that "
                "speaks TLS",
            )

    @property
    def scheme(self) -> str:
        """Of the server's address."""
        return "https" if self.tls_certificate else "http"


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which nobody else reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
