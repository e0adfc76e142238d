"""A task that is repeated in the background, in a thread or on the virtual clock."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from joulery.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock

_log = logging.getLogger("joulery")

_HEARTBEATS_PER_LEASE = 5.0
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0


def heartbeat_seconds(lease_seconds: float) -> float:
    """Interval of heartbeats that keeps a lease alive where a few of them are lost."""
    return min(max(lease_seconds / _HEARTBEATS_PER_LEASE, _SHORTEST_SECONDS), _LONGEST_SECONDS)


class HeartbeatTask:
    """Calls a method now and then until it is stopped, or until the method's object is gone.

    Args:
        method: Bound method; the task does not keep its object alive.
        interval_seconds: Time between two calls.
        clock: Real or virtual clock.
    """

    def __init__(self, method: Callable[[], object], interval_seconds: float, clock: Clock) -> None:
        self._method = weakref.WeakMethod(method)
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._clock = clock

    def start(self) -> None:
        """Begin; the first call is one interval later."""
        if isinstance(self._clock, VirtualClock):
            self._schedule(self._clock)
            return
        thread = threading.Thread(target=self._run, name="joulery-heartbeat", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: the lease will expire
            _log.debug("joulery: no heartbeat: %s", error)

    def stop(self) -> None:
        """Make no more calls; one that is under way may still end."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            if not self._call():
                return

    def _schedule(self, clock: VirtualClock) -> None:
        def wake() -> None:
            if not self._stopped.is_set() and self._call():
                clock.call_at(clock.now() + self._interval_seconds, wake)

        clock.call_at(clock.now() + self._interval_seconds, wake)

    def _call(self) -> bool:
        """Call the method; whether its object is still there."""
        method = self._method()
        if method is None:
            return False
        try:
            method()
        except Exception as error:  # noqa: BLE001 - a later call may succeed, training goes on
            _log.debug("joulery: a heartbeat failed: %s", error)
        return True
