"""Periodic calls in the background: a daemon thread, or a virtual clock's own schedule."""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock


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
