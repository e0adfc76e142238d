"""How a server runs: address, TLS, store, log and limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.server._limits import LIMITS, Limits

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT = 8420


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
        log_requests: Whether every request is logged.
        drain_seconds: Time that a server which is being stopped goes on accepting requests, for
            load balancers to notice.
        stop_seconds: Time that requests may take to end after that.
        expire_seconds: Interval at which expired leases are released.
        limits: Limits on requests and callers.
    """

    store: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    log_requests: bool = False
    drain_seconds: float = 0.0
    stop_seconds: float = 30.0
    expire_seconds: float = 15.0
    limits: Limits = LIMITS

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
