"""Wire format of the governor: frames of four bytes of length and one JSON object."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from joulery.errors import InvalidValueError, NotPossibleHereError

if TYPE_CHECKING:
    import ssl

SOCKET_VARIABLE = "JOULERY_GOVERNOR"
VERSION = 1
MAX_REQUEST_BYTES = 64 * 1024
MAX_REPLY_BYTES = 1024 * 1024
HEADER = struct.Struct(">I")
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
    """The frame of one message."""
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


class Decoder:
    """Decoder of frames from bytes that arrive in any portions; ``max_bytes`` bounds the buffer."""

    def __init__(self, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def room(self) -> int:
        """Number of bytes that may be fed before a message is taken."""
        return HEADER.size + self._max_bytes - len(self._buffer)

    @property
    def waiting(self) -> bool:
        """Whether :meth:`take` would return a message or raise."""
        if len(self._buffer) < HEADER.size:
            return False
        (length,) = HEADER.unpack_from(self._buffer)
        return bool(length > self._max_bytes or len(self._buffer) >= HEADER.size + length)

    def feed(self, data: bytes) -> None:
        """Add bytes that were read; at most :attr:`room`."""
        self._buffer += data

    def take(self) -> dict[str, Any] | None:
        """The next message; None until it is whole. Bytes that are no frame raise."""
        if not self.waiting:
            return None
        (length,) = HEADER.unpack_from(self._buffer)
        if length > self._max_bytes:
            flaw = f"a frame of {length} bytes is longer than {self._max_bytes}"
            raise InvalidValueError(flaw, remedy=REMEDY)
        body = self._buffer[HEADER.size : HEADER.size + length]
        del self._buffer[: HEADER.size + length]
        try:
            message = json.loads(body.decode(), parse_constant=_refuse)
        # Nesting beyond the interpreter's depth is as malformed as a missing brace.
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise InvalidValueError("a frame does not hold a JSON object", remedy=REMEDY)
        return message


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities are no JSON, though Python would read them."""
    raise ValueError(constant)
