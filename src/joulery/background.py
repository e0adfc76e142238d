"""Calls in the background: a daemon thread, or a virtual clock's own schedule."""

from __future__ import annotations

import inspect
import threading
import weakref
from concurrent.futures import Future, wait
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

    Examples:
        >>> thread = DriverThread()
        >>> thread.submit(lambda: 250.0).result()
        250.0
        >>> thread.close()
    """

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        self._clock = clock
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._latest: Future[Any] | None = None
        self._since = 0.0  # when the thread was last given something to do while it had nothing

    @property
    def is_busy(self) -> bool:
        """Whether the latest call has not ended."""
        return self._latest is not None and not self._latest.done()

    @property
    def failure(self) -> BaseException | None:
        """Error of the latest call, or that the driver hangs; None while all is well."""
        if self._latest is None:
            return None
        if self._latest.done():
            return self._latest.exception()
        if self._clock.now() - self._since < DRIVER_SECONDS:
            return None
        return _hanging()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have a call made after those before it."""
        future: Future[T] = Future()
        if not self.is_busy:
            self._since = self._clock.now()
        self._latest = future
        if isinstance(self._clock, VirtualClock):
            _make(call, future)
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
                _make(last, Future())
            return
        hangs = self.is_busy and self.failure is not None
        done = self.submit(last or (lambda: None))
        self._calls.put(None)
        self._thread = None
        if not hangs:
            wait([done], wait_seconds)

    def _work(self) -> None:
        while self._make_next():
            pass

    def _make_next(self) -> bool:
        """Make one call; whether more may follow. Keeps nothing of it while waiting for another."""
        task = self._calls.get()
        if task is not None:
            _make(*task)
        return task is not None


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


def _make(call: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - the caller sees it as the result
        future.set_exception(error)


def _hanging() -> DeviceError:
    return DeviceError(
        "the driver does not return",
        remedy="see its log; what was found is restored once it answers or this process ends",
    )
