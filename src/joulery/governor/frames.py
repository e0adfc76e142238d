"""Frames on the wire: four bytes of length, then one JSON object."""

from __future__ import annotations

import json
import struct
from typing import Any, NoReturn

from joulery.errors import InvalidValueError, NotPossibleHereError

VERSION = 1
MAX_REQUEST_BYTES = 64 * 1024
MAX_REPLY_BYTES = 1024 * 1024
HEADER = struct.Struct(">I")
REMEDY = f"speak version {VERSION} of the governor's protocol"


class LeaseLostError(NotPossibleHereError):
    """The lease has ended: released, expired, or never granted to this holder."""


def lost_lease() -> LeaseLostError:
    """What to tell whoever names a lease that is not his."""
    return LeaseLostError("there is no such lease any more", remedy="take a new one")


def encode(message: dict[str, Any]) -> bytes:
    """One frame."""
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


class Decoder:
    """Takes bytes as they come and gives whole messages.

    Args:
        max_bytes: The longest body accepted; with it the buffer is bounded.
    """

    def __init__(self, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def room(self) -> int:
        """How many more bytes may be fed before a message is taken."""
        return HEADER.size + self._max_bytes - len(self._buffer)

    @property
    def waiting(self) -> bool:
        """Whether :meth:`take` has something to give, or to complain about."""
        if len(self._buffer) < HEADER.size:
            return False
        (length,) = HEADER.unpack_from(self._buffer)
        return bool(length > self._max_bytes or len(self._buffer) >= HEADER.size + length)

    def feed(self, data: bytes) -> None:
        """Add what was read; at most :attr:`room` bytes."""
        self._buffer += data

    def take(self) -> dict[str, Any] | None:
        """The next message; None until it is whole.

        Raises:
            InvalidValueError: Not a frame; nothing that follows can be trusted either.
        """
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
