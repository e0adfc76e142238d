"""What a coordinator and its ranks say to each other: JSON objects, one per line."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, NoReturn

from joulery.errors import InvalidValueError

VERSION = 1
# A rank reports figures; a plan of 10,000 instructions fits the other way.
MAX_REPORT_BYTES = 64 * 1024
MAX_PLAN_BYTES = 1024 * 1024

Address = tuple[str, int] | Path


def encode(message: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Takes bytes as they come and gives whole messages.

    Args:
        max_bytes: The longest line accepted; with it the buffer is bounded.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that these bytes complete.

        Raises:
            InvalidValueError: Not such lines; nothing that follows can be trusted either.
        """
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        if len(rest) > self._max_bytes or any(len(line) > self._max_bytes for line in lines):
            raise InvalidValueError(
                f"a line is longer than {self._max_bytes} bytes", remedy="send shorter messages"
            )
        return [_parsed(bytes(line)) for line in lines]


def listening(address: Address) -> socket.socket:
    """A socket that listens there; the system chooses the port if it is 0."""
    if isinstance(address, Path):
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.bind(str(address))
        address.chmod(0o600)
        channel.listen(128)
    else:
        channel = socket.create_server(address, backlog=128)
    channel.setblocking(False)  # noqa: FBT003 - takes no keyword
    return channel


def connected(address: Address, patience_seconds: float) -> socket.socket:
    """A connection there.

    Raises:
        OSError: Nobody listens, or not in time.
    """
    if not isinstance(address, Path):
        channel = socket.create_connection(address, timeout=patience_seconds)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return channel
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(patience_seconds)
    try:
        channel.connect(str(address))
    except OSError:
        channel.close()
        raise
    return channel


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line.decode(), parse_constant=_refuse)
    # Nesting beyond the interpreter's depth is as malformed as a missing brace.
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise InvalidValueError("a line does not hold a JSON object", remedy="send one per line")
    return message


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities are no JSON, though Python would read them."""
    raise ValueError(constant)
