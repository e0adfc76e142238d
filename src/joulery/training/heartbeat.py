"""A sign of life now and then, from a thread of its own or on the virtual clock."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from joulery.clock import VirtualClock

if TYPE_CHECKING:
    from joulery.clock import Clock

_log = logging.getLogger("joulery")


_BEATS_PER_LEASE = 5.0
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0


def beat_seconds(lease_seconds: float) -> float:
    """Between two beats, so that a lease does not end where a few of them are lost."""
    return min(max(lease_seconds / _BEATS_PER_LEASE, _SHORTEST_SECONDS), _LONGEST_SECONDS)


class Alive(Protocol):
    """Who gives the sign."""

    def beat(self) -> None:
        """Say that the work goes on."""
        ...


class Heartbeat:
    """Calls ``beat`` of somebody, whom it does not keep alive, until it is stopped.

    Args:
        who: Whose heart it is.
        interval_seconds: Between two beats.
        clock: Real or virtual.
    """

    def __init__(self, who: Alive, interval_seconds: float, clock: Clock) -> None:
        self._who = weakref.ref(who)
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._clock = clock

    def start(self) -> None:
        """Begin beating."""
        if isinstance(self._clock, VirtualClock):
            self._schedule(self._clock)
            return
        thread = threading.Thread(target=self._run, name="joulery-heartbeat", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: the lease will tell
            _log.debug("joulery: no heartbeat: %s", error)

    def stop(self) -> None:
        """Beat no more; a beat under way may still end."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            if not self._beat():
                return

    def _schedule(self, clock: VirtualClock) -> None:
        def wake() -> None:
            if not self._stopped.is_set() and self._beat():
                clock.call_at(clock.now() + self._interval_seconds, wake)

        clock.call_at(clock.now() + self._interval_seconds, wake)

    def _beat(self) -> bool:
        alive = self._who()
        if alive is None:
            return False
        # The edge to somebody's training: whatever goes wrong in here must not end it.
        try:
            alive.beat()
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            _log.debug("joulery: a heartbeat failed: %s", error)
        return True
