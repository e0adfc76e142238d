"""Look at every counter when it has something new, in the background.

On a real clock a daemon thread does all the looking, so that a driver that hangs never hangs the
code being measured; on a virtual clock the clock itself calls.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import TYPE_CHECKING

from joulery.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.clock import Clock
    from joulery.metering.track import EnergyTrack, Knot

# Counters whose refreshes are stamped lose nothing when read late (a closing window has them read
# at once), so their looks share wake-ups: waking up costs more than looking.
_COALESCE_FRACTION = 0.9
_LONGEST_SLEEP_SECONDS = 1.0
_SHORTEST_SLEEP_SECONDS = 1e-4


class Sampler:
    """Keeps tracks up to date.

    Args:
        tracks: What to look at.
        clock: Real or virtual.
        hertz: Looks per second and device, at most, once the refresh period is known.
        on_knot: Called with each new knot and its track's position, by whoever looks.

    Attributes:
        next_news_seconds: The earliest moment at which any counter has something new.
    """

    def __init__(
        self,
        tracks: Sequence[EnergyTrack],
        clock: Clock,
        hertz: float,
        on_knot: Callable[[int, Knot], None],
    ) -> None:
        self.clock = clock
        self.next_news_seconds = math.inf
        self._tracks = tuple(tracks)
        # For each track, when it must be read at the latest, and when it has something new.
        self._latest = [math.inf] * len(self._tracks)
        self._news = [math.inf] * len(self._tracks)
        self._interval = 1.0 / hertz
        self._on_knot = on_knot
        self._stopped = False
        self._wake = threading.Event()
        self._looked = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read everything once, then go on in the background until :meth:`stop`."""
        self.look_at_due()
        if isinstance(self.clock, VirtualClock):
            self._schedule(self.clock)
        elif self._tracks:
            # The thread must not keep a forgotten meter alive.
            self._thread = threading.Thread(
                target=_run, args=(weakref.ref(self), self._wake), name="joulery", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop looking. Waits a moment for a look under way, but not for a driver that hangs."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=0.5)

    def catch_up(self, now: float, patience_seconds: float) -> None:
        """Have refreshed counters read now, waiting at most ``patience_seconds``."""
        for track, news in zip(self._tracks, self._news, strict=True):
            if news <= now:
                track.due_seconds = min(now, track.due_seconds)
        if self._thread is None:
            self.look_at_due()
            return
        self._looked.clear()
        self._wake.set()
        self._looked.wait(patience_seconds)

    def look_at_due(self) -> float:
        """Read every track that is due; seconds until the next one is."""
        now = self.clock.now()
        for position, track in enumerate(self._tracks):
            if track.due_seconds <= now:
                self._look(position, track, now)
        self.next_news_seconds = min(self._news, default=math.inf)
        self._looked.set()
        return max(_SHORTEST_SLEEP_SECONDS, self._next_wake() - self.clock.now())

    def _look(self, position: int, track: EnergyTrack, now: float) -> None:
        timer = track.timer
        # Half a period early, because the refresh nearest to the wished interval is the right
        # one; and earlier by the time that looks of stamped counters wait for each other.
        patient = timer.stamps_trusted and timer.period_seconds
        slack = _COALESCE_FRACTION * self._interval if patient else 0.0
        early = 0.5 * (timer.period_seconds or 0.0) + slack
        knot = track.read(now + self._interval - early)
        self._latest[position] = track.due_seconds + slack
        self._news[position] = timer.next_news()
        if knot is not None:
            self._on_knot(position, knot)

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped

    def _next_wake(self) -> float:
        return min((self.clock.now() + _LONGEST_SLEEP_SECONDS, *self._latest))

    def _schedule(self, clock: VirtualClock) -> None:
        def wake() -> None:
            if not self._stopped:
                wait = self.look_at_due()
                clock.call_at(clock.now() + wait, wake)

        clock.call_at(max(self._next_wake(), clock.now()), wake)


def _run(sampler: weakref.ref[Sampler], wake: threading.Event) -> None:
    wait = 0.0
    while True:
        wake.wait(wait)
        wake.clear()
        alive = sampler()
        if alive is None or alive.stopped:
            return
        wait = alive.look_at_due()
        del alive
