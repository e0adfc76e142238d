"""Time as an argument: the real monotonic clock, and a virtual one for tests and simulations.

No other module calls ``time`` to read the time.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable


@runtime_checkable
class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Seconds on a clock that never steps back (CLOCK_MONOTONIC); for durations."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 UTC; for time stamps, never for durations."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        ...


class RealClock:
    """The machine's own clock."""

    # Bound directly, so that a reading costs no Python frame.
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def __repr__(self) -> str:
        return "REAL_CLOCK"

    def sleep(self, seconds: float) -> None:
        """Block this thread for ``seconds``."""
        if seconds > 0:
            time.sleep(seconds)


class VirtualClock:
    """A clock that moves only in ``sleep``, and makes the calls that fall due meanwhile.

    Examples:
        >>> clock = VirtualClock()
        >>> seen = []
        >>> clock.call_at(1.5, lambda: seen.append(clock.now()))
        >>> clock.sleep(2.0)
        >>> seen, clock.now()
        ([1.5], 2.0)
    """

    def __init__(self, start_seconds: float = 0.0, wall_seconds: float = 1.7e9) -> None:
        self._now = start_seconds
        self._wall_offset = wall_seconds - start_seconds
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._lock = threading.RLock()

    def now(self) -> float:
        """Virtual seconds since the clock's start."""
        return self._now

    def wall(self) -> float:
        """Virtual seconds since 1970, moved along with ``now``."""
        return self._now + self._wall_offset

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP or an administrator would."""
        self._wall_offset += seconds

    def sleep(self, seconds: float) -> None:
        """Move time on by ``seconds``, calling everything that falls due, in order."""
        if not seconds >= 0:
            raise InvalidValueError(
                f"cannot sleep {seconds} s", remedy="time only moves forward; give 0 or more"
            )
        with self._lock:
            end = self._now + seconds
            while self._due and self._due[0][0] <= end:
                due, _, callback = heapq.heappop(self._due)
                self._now = max(self._now, due)
                callback()
            self._now = max(self._now, end)

    def call_at(self, when_seconds: float, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when time reaches ``when_seconds``."""
        with self._lock:
            heapq.heappush(self._due, (when_seconds, next(self._sequence), callback))


REAL_CLOCK = RealClock()


def check_clock_source(clock: object) -> Clock:
    """The clock, or ``InvalidValueError`` where something else was given in its place."""
    if isinstance(clock, Clock):
        return clock
    raise InvalidValueError(
        f"clock={clock!r} is not a clock",
        remedy="leave it out for the machine's own; to measure certain devices, name them: "
        "joulery.Meter(devices=['gpu:0'])",
    )
