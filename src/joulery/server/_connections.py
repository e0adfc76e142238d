"""Connections of a server: bounded in number by address, and in the time that a head may take."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from joulery.errors import UsageError
from joulery.server._problems import MEDIA_TYPE, ProblemError

if TYPE_CHECKING:
    import asyncio

    from joulery.server._config import Limits

_MALFORMED = ProblemError(
    400, UsageError, "the request is not HTTP", "send an HTTP/1.1 request with a complete head"
).response()


class ConnectionGate:
    """Keeps connections without a valid token from locking out those with one.

    Where an address has too many without a token, or there are too many in all, the oldest without
    a token is closed.

    Args:
        limits: Limits of the server.
        most: Connections at the same time; fewer than the process may have files.
    """

    def __init__(self, limits: Limits, most: int) -> None:
        self._limits = limits
        self._most = most
        self._open: dict[Any, HttpConnection] = {}
        self._tokenless: dict[str, OrderedDict[Any, HttpConnection]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, client: Any, connection: HttpConnection) -> None:
        """Add a connection, which has no token yet, and make room for it."""
        address = client[0]
        others = self._tokenless.setdefault(address, OrderedDict())
        if len(others) >= self._limits.address_connections:
            self._close_oldest(address)
        elif len(self._open) >= self._most:
            self._close_oldest(max(self._tokenless, key=lambda one: len(self._tokenless[one])))
        self._open[client] = connection
        self._tokenless.setdefault(address, OrderedDict())[client] = connection

    def _close_oldest(self, address: str) -> None:
        waiting = self._tokenless[address]
        if waiting:
            client, connection = next(iter(waiting.items()))
            self.leave(client)
            connection.abort()

    def trust(self, client: Any) -> None:
        """Note that a connection has sent a valid token."""
        waiting = self._tokenless.get(client[0], OrderedDict()) if client else OrderedDict()
        waiting.pop(client, None)

    def leave(self, client: Any) -> None:
        """Remove a connection; it may be gone already."""
        self._open.pop(client, None)
        waiting = self._tokenless.get(client[0])
        if waiting is not None:
            waiting.pop(client, None)
            if not waiting:
                del self._tokenless[client[0]]


class HttpConnection(H11Protocol):
    """A connection whose request heads arrive in time, and that is refused with a problem document.

    Args:
        gate: Gate of the server.
        head_seconds: Longest time for the head of a request to arrive.
        options: Options of uvicorn.
    """

    def __init__(self, *, gate: ConnectionGate, head_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate
        self._head_seconds = head_seconds
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._gate.enter(self.client or ("", 0), self)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for another connection."""
        self._gate.leave(self.client or ("", 0))
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle data; a head that has begun has to be complete in time."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._time_head()
        else:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Go on with the next request, whose head may have begun behind the last one."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._time_head()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - of the base
        """Refuse what is not HTTP."""
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"connection", b"close")]
        with contextlib.suppress(h11.LocalProtocolError):  # an answer is under way
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(_MALFORMED.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _time_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._head_seconds, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()
