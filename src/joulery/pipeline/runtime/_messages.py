"""Shared code of a coordinator and its ranks: an event loop in the background, messages.

Messages are JSON objects, one per line.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from joulery.errors import InvalidValueError, JouleryError, cannot_listen
from joulery.files import decode_line, encode_line
from joulery.pipeline.runtime._controller import IterationTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Self

VERSION = 2
# A rank reports figures; a plan of 10,000 instructions fits the other way; by hand.
MAX_REPORT_BYTES = 64 * 1024
MAX_PLAN_BYTES = 1024 * 1024
REMEDY = "speak version 2 of the coordinator's protocol"
# Ratios per kind of work in a report; by hand.
_MAX_RATIOS = 8
# Longest wait for a peer to close; by hand.
_CLOSE_SECONDS = 2.0
# Longest wait for a greeting, and connections beyond one per member; by hand.
_GREETING_SECONDS = 5.0
_SPARE_CONNECTIONS = 64
# Different warnings of a server; by hand.
_MAX_WARNINGS = 100

_log = logging.getLogger("joulery")


class Endpoint(ABC):
    """One end of the protocol: an event loop in a daemon thread, from ``start`` to ``close``."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def start(self) -> Self:
        """Begin in the background."""

    def close(self) -> None:
        """End all connections. May be called twice."""
        self._call(self._stopped.set)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, main: Coroutine[Any, Any, None], name: str) -> None:
        self._loop = loop = asyncio.new_event_loop()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(main)

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Run a function in the background thread; nothing if that is not there."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)


class TokenServer(Endpoint):
    """An endpoint that others connect to with a token.

    Args:
        token: Secret that others must send.
        address: Host and port to listen at; the system chooses a port for 0.
        members: Number of members that may be connected.

    Attributes:
        address: Address at which it listens, once started.
    """

    def __init__(self, token: str, address: tuple[str, int], members: int) -> None:
        if not token:
            raise InvalidValueError("a coordinator needs a token", remedy="secrets.token_hex()")
        super().__init__()
        self.address = address
        self._token = token
        self._limit = members
        self._connections: set[asyncio.StreamWriter] = set()
        self._warnings: set[str] = set()

    def start(self) -> Self:
        """Listen, and serve in the background.

        Raises:
            InvalidValueError: There is no such address.
            NotPossibleHereError: It is taken, or this user may not listen there.
        """
        try:
            listener = socket.create_server(self.address, backlog=1024)
        except OSError as error:
            raise cannot_listen("{}:{}".format(*self.address), error) from None
        self.address = listener.getsockname()[:2]
        self._run(self._serve(listener), f"joulery-{type(self).__name__}")
        return self

    @abstractmethod
    async def _converse(
        self, message: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection whose first message had the token, until it ends, which raises."""

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._handle, sock=listener, limit=MAX_REPORT_BYTES)
        await self._stopped.wait()
        server.close()
        for writer in self._connections:
            writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) >= self._limit + _SPARE_CONNECTIONS:
                return
            self._connections.add(writer)
            async with asyncio.timeout(_GREETING_SECONDS):
                message = await read_message(reader)
            token = str(message.get("token")).encode()
            if message.get("version") != VERSION:
                raise InvalidValueError("another version", remedy=REMEDY)
            if not hmac.compare_digest(token, self._token.encode()):
                raise InvalidValueError("a wrong token", remedy="share the coordinator's token")
            await self._converse(message, reader, writer)
        except JouleryError as error:
            # A client that sends nonsense is cut off; it can connect again.
            self._refuse(writer, error)
            self._warn(f"refused a connection: {error}")
        except (OSError, asyncio.CancelledError):
            return  # it hung up, or the loop ends
        finally:
            self._connections.discard(writer)
            writer.close()

    def _refuse(self, writer: asyncio.StreamWriter, error: JouleryError) -> None:
        """Tell the peer why, and close its connection."""
        self._send(writer, encode_line(refusal(error)))
        writer.close()

    def _warn(self, text: str) -> None:
        """Log a line, once, and not without end if peers send ever different nonsense."""
        if text not in self._warnings and len(self._warnings) < _MAX_WARNINGS:
            self._warnings.add(text)
            _log.warning("pipeline coordinator: %s", text)

    def _send(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        if writer.transport.get_write_buffer_size() > 2 * MAX_PLAN_BYTES:
            writer.transport.abort()  # it does not read
        elif not writer.is_closing():
            writer.write(line)


def refusal(error: JouleryError) -> dict[str, Any]:
    """The message that says why something is refused."""
    return {"op": "refused", "message": error.message, "remedy": error.remedy}


def refused(message: dict[str, Any]) -> InvalidValueError:
    """The inverse of ``refusal``."""
    return InvalidValueError(str(message.get("message")), remedy=str(message.get("remedy")))


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message; errors as for ``read_line``."""
    return read_line(await _next_line(reader))


async def read_report(reader: asyncio.StreamReader) -> IterationTimes:
    """The next message, which must be a report; errors as for ``parse_report``."""
    return parse_report(await _next_line(reader))


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except ValueError:
        raise InvalidValueError("a line is too long", remedy=REMEDY) from None
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the connection was closed")
    return line


def read_line(line: bytes) -> dict[str, Any]:
    """The message of a line.

    Raises:
        ConnectionResetError: The peer closed the connection.
        InvalidValueError: The line holds no JSON object.
    """
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the connection was closed")
    try:
        return decode_line(line)
    except ValueError:
        raise InvalidValueError(
            "a line does not hold a JSON object", remedy="send one per line"
        ) from None


def report_message(times: IterationTimes) -> dict[str, Any]:
    """The report of an iteration."""
    return {
        "op": "done",
        "iteration": times.iteration,
        "seconds": times.seconds,
        "planned": times.planned_seconds,
        "ratios": [
            [stage, kind, [ratio for ratio in ratios if math.isfinite(ratio)][-_MAX_RATIOS:]]
            for (stage, kind), ratios in times.ratios.items()
        ],
        "share": times.share_watts,
    }


class _Report(msgspec.Struct, tag_field="op", tag="done"):
    """A report as it is sent."""

    iteration: Annotated[int, msgspec.Meta(ge=0, lt=2**40)]
    seconds: Annotated[float, msgspec.Meta(ge=1e-9)]
    planned: Annotated[float, msgspec.Meta(ge=1e-9)]
    ratios: list[tuple[int, str, tuple[float, ...]]] = []
    share: Annotated[float, msgspec.Meta(gt=0.0)] | None = None


# Every rank of every pipeline reports every iteration: typed reading takes a seventh of the time.
_reports = msgspec.json.Decoder(_Report)


def parse_report(line: bytes) -> IterationTimes:
    """The inverse of ``report_message``; an InvalidValueError for anything else."""
    try:
        report = _reports.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidValueError(f"a malformed report: {error}", remedy=REMEDY) from None
    ratios = {(stage, kind): values for stage, kind, values in report.ratios}
    return IterationTimes(report.iteration, report.seconds, report.planned, ratios, report.share)


def whole_number(value: Any, name: str) -> int:
    """A value of a message that must be a whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise InvalidValueError(f"{name} {value!r} is no whole number", remedy=REMEDY)
    return value
