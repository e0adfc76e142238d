"""Connections of a server: bounded in number by address, and in the time that a head may take."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
        most_connections: Connections at the same time; fewer than the process may have files.
    """

    def __init__(self, limits: Limits, most_connections: int) -> None:
        self._limits = limits
        self._most = most_connections
        self._open: dict[Any, HttpConnection] = {}
        self._tokenless: dict[str, OrderedDict[Any, HttpConnection]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, client: Any, connection: HttpConnection) -> None:
        """Add a connection, which has no token yet, and make room for it."""
        address = client[0]
        connections = self._tokenless.setdefault(address, OrderedDict())
        if len(connections) >= self._limits.address_connections:
            self._close_oldest(address)
        elif len(self._open) >= self._most:
            self._close_oldest(
                max(self._tokenless, key=lambda address: len(self._tokenless[address]))
            )
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


class HttpConnection(HttpToolsProtocol):
    """A connection whose request heads are small and arrive in time; others are refused."""

    def __init__(self, *, gate: ConnectionGate, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate
        self._limits = limits
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None  # while a head is to arrive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._gate.enter(self.client or ("", 0), self)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for another connection."""
        self._gate.leave(self.client or ("", 0))
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle data; a head that does not end is refused."""
        super().data_received(data)
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        self._begin_head()

    def on_headers_complete(self) -> None:
        """Handle a request, unless its head is too large."""
        self._end_head()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.head_bytes:
            raise ValueError("the head is too large")  # which the parser passes on as its own
        super().on_headers_complete()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - of the base
        """Refuse what is not HTTP."""
        self._end_head()
        if self.cycle is None or self.cycle.response_complete:  # else an answer is under way
            head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(_MALFORMED.body)}\r\n"
            line = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n"
            self.transport.write(line + head.encode() + b"\r\n" + bytes(_MALFORMED.body))
        self.transport.close()

    def _begin_head(self) -> None:
        if self._deadline is None:
            self._head_bytes = 0
            self._deadline = self.loop.call_later(self._limits.head_seconds, self._head_is_late)

    def _end_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:  # it follows a request that is being answered
            self._begin_head()
