"""Connections of uvicorn, with bounds that it lacks: on heads, on patience, on their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from joulery.errors import InvalidValueError
from joulery.server.limits import LIMITS
from joulery.server.problems import MEDIA_TYPE, Problem, later

if TYPE_CHECKING:
    import asyncio

    from joulery.server.limits import Limits

_LARGEST_REQUEST_BYTES = 2**28  # what is too large is read to its end only so far
_MALFORMED = Problem(400, InvalidValueError, "this is not HTTP/1.1", "send a valid request")
_HEAD_TOO_LARGE = Problem(
    431, InvalidValueError, "the request line and headers are too long", "send shorter ones"
)
_TOO_MANY = later("too many connections are open")


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    limits: Limits = LIMITS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = False
        self._head_bytes = 0
        self._request_bytes = 0
        self._since = self.loop.time()
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse what is too much; watch the rest."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._end_with(_TOO_MANY)
            return
        self._watch = self.loop.call_later(self.limits.body_seconds, self._check_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count, then parse."""
        self._request_bytes += len(data)
        if self._request_bytes > _LARGEST_REQUEST_BYTES:
            self.transport.abort()
            return
        if self.transport.is_closing():
            return
        if self._in_head:
            # A head that goes on in another packet may go on for ever.
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._end_with(_HEAD_TOO_LARGE)
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes, self._request_bytes = True, 0, 0
        self._since = self.loop.time()

    def on_headers_complete(self) -> None:
        """Its head is complete; go on unless it is too large."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._in_head = False
        if size > self.limits.head_bytes:
            self._end_with(_HEAD_TOO_LARGE)
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Part of a body, of a request that was let in."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is there as a whole."""
        self._since = 0.0
        if not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - in our words
        """What came is not HTTP."""
        if not self.transport.is_closing():
            self._end_with(_MALFORMED)

    def _end_with(self, problem: Problem) -> None:
        body = problem.body()
        more = b"".join(b"%s: %s\r\n" % header for header in problem.headers)
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: %s\r\n%scontent-length: %d\r\nconnection: close\r\n\r\n"
            % (problem.status, MEDIA_TYPE, more, len(body))
            + body
        )
        self.transport.close()

    def _check_patience(self) -> None:
        """Close where nothing was asked yet, or a request does not get to its end."""
        waited = self.loop.time() - self._since
        if self._since and waited >= self.limits.body_seconds:
            self.transport.close()
            return
        self._watch = self.loop.call_later(self.limits.body_seconds, self._check_patience)


def protocol_with(limits: Limits) -> type[BoundedProtocol]:
    """Connections under these limits."""
    return type("LimitedProtocol", (BoundedProtocol,), {"limits": limits})
