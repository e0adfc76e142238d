"""A thread per device, so that a driver call that hangs keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from joulery.errors import DeviceError, JouleryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock

    Errand = Callable[[], Any]
    Undo = Callable[[Future[Any]], object]


@dataclass(eq=False)
class DeviceWorker:
    """Does the errands of one device, in order.

    Attributes:
        clock: Tells how long an errand takes.
        patience_seconds: After how long the device counts as stuck.
    """

    clock: Clock
    patience_seconds: float
    _began_at: float | None = None
    _errands: SimpleQueue[tuple[Errand, Future[Any]]] = field(default_factory=SimpleQueue)
    _thread: threading.Thread | None = None

    @property
    def stuck(self) -> bool:
        """Whether the driver has not answered for too long."""
        began_at = self._began_at
        return began_at is not None and self.clock.now() - began_at >= self.patience_seconds

    @property
    def busy(self) -> bool:
        """Whether there is something to do."""
        return self._began_at is not None or not self._errands.empty()

    def start(self, errand: Errand) -> Future[Any]:
        """Queue an errand."""
        if self._thread is None:
            # Not waited for at the end of the process, as it may hang for ever.
            self._thread = threading.Thread(target=self._work, name="joulery-device", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._errands.put((errand, future))
        return future

    async def ask(self, errand: Errand, undo: Undo = lambda _: None) -> Any:
        """What comes of an errand.

        Args:
            errand: Refused while the device is stuck, and forgotten if it has not begun in time.
            undo: Told how the errand ended if nobody waits for that any more.
        """
        if self.stuck:
            raise _silence()
        future = self.start(errand)
        try:
            async with asyncio.timeout(self.patience_seconds):
                return await asyncio.wrap_future(future)
        except (TimeoutError, asyncio.CancelledError) as error:
            future.add_done_callback(undo)
            raise _silence() if isinstance(error, TimeoutError) else error from None

    def _work(self) -> None:
        while True:
            errand, future = self._errands.get()
            if not future.set_running_or_notify_cancel():
                continue
            self._began_at = self.clock.now()
            try:
                tell = partial(future.set_result, errand())
            except JouleryError as error:
                tell = partial(future.set_exception, error)
            except BaseException:  # noqa: BLE001 - a mistake of ours: end, and a successor repairs
                sys.excepthook(*sys.exc_info())
                os._exit(70)  # EX_SOFTWARE of sysexits.h
            self._began_at = None
            tell()


def _silence() -> DeviceError:
    remedy = "try again later; what was changed is given back once it does"
    return DeviceError("the device's driver does not answer", remedy=remedy)
