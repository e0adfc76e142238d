"""Wire format of the governor: one JSON object per line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, NotPossibleHereError
from joulery.files import decode_line

if TYPE_CHECKING:
    import ssl

SOCKET_VARIABLE = "JOULERY_GOVERNOR"
VERSION = 1
MAX_REQUEST_BYTES = 4096  # a request has below 500
MAX_REPLY_BYTES = 1024 * 1024  # a status of 16 boards has below 100,000
REMEDY = f"speak version {VERSION} of the governor's protocol"


def default_socket() -> Path:
    """Path of the daemon's socket; an empty variable means that there is no daemon."""
    return Path(os.environ.get(SOCKET_VARIABLE, "/run/joulery/governor.sock") or os.devnull)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidValueError(f"not an address: {text!r}", remedy="write it as HOST:PORT")
    return host, int(port)


def check_secrecy(address: tuple[str, int], tls: ssl.SSLContext | None) -> None:
    """Raise unless tokens stay on this machine or travel over TLS."""
    if tls is None and not address[0].startswith("127."):
        raise InvalidValueError(
            f"{address[0]} is not on this machine: the token needs TLS",
            remedy="give a certificate and its key, and clients their authority",
        )


class LeaseLostError(NotPossibleHereError):
    """The lease has ended: released, expired, or never granted to this holder."""


class FencedError(NotPossibleHereError):
    """A client with a higher epoch leads: this one must not change anything any more."""


def lost_lease() -> LeaseLostError:
    """The error for a lease that has ended or belongs to another client."""
    return LeaseLostError("there is no such lease any more", remedy="take a new one")


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line; anything but a JSON object raises."""
    try:
        return decode_line(line)
    except ValueError:
        raise InvalidValueError("a line does not hold a JSON object", remedy=REMEDY) from None
