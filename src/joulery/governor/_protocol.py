"""Wire format of the governor: one JSON object per line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from joulery.errors import InvalidValueError, NotPossibleHereError

if TYPE_CHECKING:
    import ssl

SOCKET_VARIABLE = "JOULERY_GOVERNOR"
VERSION = 1
MAX_REQUEST_BYTES = 4096
MAX_REPLY_BYTES = 1024 * 1024
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


def lost_lease() -> LeaseLostError:
    """The error for a lease that has ended or belongs to another client."""
    return LeaseLostError("there is no such lease any more", remedy="take a new one")


def encode(message: dict[str, Any]) -> bytes:
    """The line of one message."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line; anything but a JSON object raises."""
    try:
        message = json.loads(line.decode(), parse_constant=_refuse)
    # Nesting beyond the interpreter's depth is as malformed as a missing brace.
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise InvalidValueError("a line does not hold a JSON object", remedy=REMEDY)
    return message


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities are no JSON, though Python would read them."""
    raise ValueError(constant)
