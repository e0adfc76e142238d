"""A worker's line to its desk, the process that decides: errands go out, answers come in.

Errands of one turn of the event loop go out together. Should the desk die, whoever waits is told to
ask again, which is safe since every errand may be repeated, and another desk is started.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from joulery.errors import StoreBusyError, StoreError
from joulery.server.desk_start import spawn_desk
from joulery.server.frames import READY, Frames, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.server.desk_start import Started
    from joulery.server.logs import Log

_CAPACITY = 4096  # errands that may wait
_START_SECONDS = 30.0
_PAUSES_SECONDS = (0.0, 0.5, 2.0, 5.0)  # before it is started again, the last for ever


class Office(Protocol):
    """Where errands are done."""

    @property
    def waiting(self) -> int:
        """Errands that have not come back."""

    def ask(self, errand: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """What an errand returns or raises."""


class _Line(asyncio.Protocol):
    """One connection to one desk.

    Args:
        ended: Called when there is nobody at the other end any more.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[tuple[int, Callable[..., Any], tuple[Any, ...]]] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last = READY
        self.ready: asyncio.Future[None] = self._loop.create_future()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def open_store(self, location: str | None) -> None:
        """The first thing that a desk is told."""
        assert self._transport is not None  # noqa: S101 - a connection is made
        self._transport.write(frame_of([location]))

    def ask(self, errand: Callable[..., Any], arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        if self._transport is None:  # the desk has just died
            raise _away()
        if not self._outgoing:
            self._loop.call_soon(self._send)
        self._last += 1
        self._outgoing.append((self._last, errand, arguments))
        answer = self._waiting[self._last] = self._loop.create_future()
        return answer

    def _send(self) -> None:
        going, self._outgoing = self._outgoing, []
        if self._transport is not None:
            self._transport.write(frame_of(going))

    def data_received(self, data: bytes) -> None:
        for number, answer, error in self._frames.feed(data):
            if number == READY:
                self.ready.set_result(None)
                continue
            waiting = self._waiting.pop(number)
            if waiting.done():  # nobody waits any more
                continue
            if error is None:
                waiting.set_result(answer)
            else:
                waiting.set_exception(error)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        for waiting in (self.ready, *self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(_away())
        self._waiting.clear()
        self._ended()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _away() -> StoreBusyError:
    return StoreBusyError(
        "the desk is being started again", remedy="make the same request again in a second"
    )


class DeskLine:
    """Keeps a desk running, within ``async with``.

    Args:
        first: The desk, just started.
        store: That the desk opens.
        number: Of the worker.
        log: Where to say what becomes of the desk.
    """

    def __init__(self, first: Started, store: str | None, number: int, log: Log) -> None:
        self._first = first
        self._store = store
        self._number = number
        self._log = log
        self._desk: Started | None = None
        self._line: _Line | None = None
        self._ended = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start(self._first)
        except BaseException:
            await self._stop()
            raise
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._stop()

    @property
    def waiting(self) -> int:
        """Errands that have not come back."""
        return 0 if self._line is None else self._line.waiting

    def ask(self, errand: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """What an errand of :mod:`joulery.server.errands` returns or raises.

        Raises:
            StoreBusyError: Too many wait, or the desk is being started again.
        """
        line = self._line
        if line is None:
            raise _away()
        if line.waiting >= _CAPACITY:
            raise StoreBusyError(
                f"{_CAPACITY} operations wait for the store already",
                remedy="make the same request again in a second",
            )
        return line.ask(errand, arguments)

    async def _start(self, desk: Started) -> None:
        self._desk = desk
        self._ended.clear()
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(lambda: _Line(self._ended.set), sock=desk.line)
        line.open_store(self._store)
        try:
            await asyncio.wait_for(line.ready, _START_SECONDS)
        except (TimeoutError, StoreBusyError):
            line.close()
            raise StoreError(
                "the process that decides does not start", remedy="its log tells why"
            ) from None
        self._line = line

    async def _keep(self) -> None:
        """Start it again, whenever it ends."""
        while True:
            await self._ended.wait()
            self._line = None
            for pause_seconds in chain(_PAUSES_SECONDS, repeat(_PAUSES_SECONDS[-1])):
                await self._stop()
                self._log.say("desk ended", seconds=pause_seconds)
                await asyncio.sleep(pause_seconds)
                with contextlib.suppress(StoreError):  # the store may be away for a while
                    await self._start(spawn_desk(self._number))
                    break
            self._log.say("desk started")

    async def _stop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()
        desk, self._desk = self._desk, None
        if desk is not None:
            await asyncio.to_thread(desk.end)
