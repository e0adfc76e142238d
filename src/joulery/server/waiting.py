"""Futures of other threads, waited for in the event loop, many per wake-up."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

Answer = TypeVar("Answer")


class Bridge:
    """From the store's thread to the event loop.

    A commit ends many futures at once; waking the loop once for all of them costs a fraction of
    what :func:`asyncio.wrap_future` would.

    Args:
        loop: In which answers are waited for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken = False
        self.pending = 0

    def wait(self, future: Future[Answer]) -> asyncio.Future[Answer]:
        """The same future, for this loop."""
        here: asyncio.Future[Answer] = self._loop.create_future()
        self.pending += 1
        future.add_done_callback(lambda ended: self._arrived(here, ended))
        return here

    def _arrived(self, here: asyncio.Future[Any], ended: Future[Any]) -> None:
        self._ended.append((here, ended))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._woken = False  # first, so that whatever comes from now on wakes us again
        while self._ended:
            here, ended = self._ended.popleft()
            self.pending -= 1
            if here.done():  # nobody waits any more
                continue
            error = ended.exception()
            if error is None:
                here.set_result(ended.result())
            else:
                here.set_exception(error)
