"""Calls in the background: a daemon thread, or a virtual clock's own schedule."""

from __future__ import annotations

import inspect
import threading
import weakref
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock

T = TypeVar("T")

# A driver that has not answered after so long hangs.
DRIVER_SECONDS = 10.0


class PeriodicTask:
    """Calls a function again and again until it is stopped.

    On a real clock a daemon thread calls it, on a virtual clock the clock does. A bound method is
    held weakly: the task ends with the object that it belongs to.

    Args:
        function: Function to call; it returns the seconds until its next call, or None for
            ``seconds``.
        seconds: Time before the first call and between two calls.
        clock: Real or virtual clock.
        name: Name of the thread.

    Examples:
        >>> clock, seen = VirtualClock(), []
        >>> task = PeriodicTask(lambda: seen.append(clock.now()), seconds=2.0, clock=clock)
        >>> task.start(); clock.sleep(5.0); seen
        [2.0, 4.0]
    """

    def __init__(
        self,
        function: Callable[[], float | None],
        *,
        seconds: float,
        clock: Clock = REAL_CLOCK,
        name: str = "joulery",
    ) -> None:
        self._function: Callable[[], Callable[[], float | None] | None] = (
            weakref.WeakMethod(function) if inspect.ismethod(function) else lambda: function
        )
        self._seconds = seconds
        self._clock = clock
        self._name = name
        self._stopped = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the first call comes after ``seconds``."""
        if isinstance(self._clock, VirtualClock):
            self._schedule(self._clock, self._seconds)
        else:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Have the thread make its next call at once."""
        self._wake.set()

    def stop(self, timeout_seconds: float | None = None) -> None:
        """End after the call under way, and wait for that, at most ``timeout_seconds``."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    @property
    def is_threaded(self) -> bool:
        """Whether a thread makes the calls."""
        return self._thread is not None

    def _run(self) -> None:
        wait: float | None = self._seconds
        while wait is not None:
            self._wake.wait(wait)
            self._wake.clear()
            wait = self._call()

    def _schedule(self, clock: VirtualClock, wait: float) -> None:
        def wake() -> None:
            following = self._call()
            if following is not None:
                self._schedule(clock, following)

        clock.call_at(clock.now() + wait, wake)

    def _call(self) -> float | None:
        """Seconds until the next call; None at the end."""
        function = None if self._stopped else self._function()
        if function is None:
            return None
        wait = function()
        return self._seconds if wait is None else wait


class DriverThread:
    """Makes driver calls in a daemon thread of its own, one after the other.

    A driver that hangs so does not hang the caller. On a virtual clock nothing can hang, and the
    caller makes the calls itself.

    Args:
        clock: Real or virtual clock.
        patience_seconds: Time after which a driver that has not answered hangs.

    Examples:
        >>> thread = DriverThread()
        >>> thread.submit(lambda: 250.0).result()
        250.0
        >>> thread.close()
    """

    def __init__(self, clock: Clock = REAL_CLOCK, patience_seconds: float = DRIVER_SECONDS) -> None:
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._latest: Future[Any] | None = None
        self._began_at: float | None = None  # the call under way

    @property
    def is_busy(self) -> bool:
        """Whether the latest call has not ended."""
        return self._latest is not None and not self._latest.done()

    @property
    def hangs(self) -> bool:
        """Whether the call under way has taken longer than the patience."""
        began_at = self._began_at
        return began_at is not None and self._clock.now() - began_at >= self._patience_seconds

    @property
    def failure(self) -> BaseException | None:
        """Error of the latest call, or that the driver hangs; None while all is well."""
        if self._latest is not None and self._latest.done():
            return self._latest.exception()
        return _hanging() if self.hangs else None

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have a call made after those before it."""
        future: Future[T] = Future()
        self._latest = future
        if isinstance(self._clock, VirtualClock):
            self._make(call, future)
            return future
        self._calls.put((call, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="joulery-driver", daemon=True)
            self._thread.start()
        return future

    def close(self, last: Callable[[], None] | None = None, wait_seconds: float = 0.0) -> None:
        """Make a last call and end.

        Args:
            last: Call to make after all others, once; errors are ignored.
            wait_seconds: Longest time to wait for it; a driver that hangs is not waited for.
        """
        if self._thread is None:
            if last is not None:
                self._make(last, Future())
            return
        hangs = self.hangs
        future = self.submit(last or (lambda: None))
        self._calls.put(None)
        self._thread = None
        if not hangs:
            wait([future], wait_seconds)

    def _work(self) -> None:
        while self._make_next():
            pass

    def _make_next(self) -> bool:
        """Make one call; whether more may follow. Keeps nothing of it while waiting for another."""
        task = self._calls.get()
        if task is not None:
            self._make(*task)
        return task is not None

    def _make(self, call: Callable[[], T], future: Future[T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._began_at = self._clock.now()
        try:
            report = partial(future.set_result, call())
        except Exception as error:  # noqa: BLE001 - the caller sees it as the result
            report = partial(future.set_exception, error)
        self._began_at = None
        report()


def driver_result(call: Callable[[], T], clock: Clock = REAL_CLOCK) -> T:
    """Result of a driver call that is waited for, but not if the driver hangs.

    Raises:
        DeviceError: The driver hangs.
    """
    driver = DriverThread(clock)
    future = driver.submit(call)
    wait([future], DRIVER_SECONDS)
    driver.close()
    if not future.done():
        raise _hanging()
    return future.result()


def _hanging() -> DeviceError:
    return DeviceError(
        "the driver does not return",
        remedy="see its log; the original setting is restored once it answers or this process ends",
    )
