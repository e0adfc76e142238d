"""Background sampling of energy counters, each when it has a new value.

On a real clock one daemon thread makes all readings, so that a driver that hangs never hangs the
code being measured; on a virtual clock the clock itself calls.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from joulery.background import PeriodicTask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.clock import Clock
    from joulery.metering.energy._timeline import EnergyTimeline, Knot

# Counters whose refreshes are stamped lose nothing when read late (a closing window has them read
# at once), so their readings share wake-ups: waking up costs more than reading.
_COALESCE_FRACTION = 0.9
_LONGEST_SLEEP_SECONDS = 1.0
_SHORTEST_SLEEP_SECONDS = 1e-4
_STOP_SECONDS = 0.5


class Sampler:
    """Keeps timelines up to date.

    Args:
        timelines: Timelines of the devices to read.
        clock: Real or virtual clock.
        hertz: Highest rate of readings per device, once its refresh period is known.
        on_knot: Callback for each new knot, with its timeline's position.

    Attributes:
        next_refresh_seconds: Earliest moment at which any counter has a new value.
    """

    def __init__(
        self,
        timelines: Sequence[EnergyTimeline],
        clock: Clock,
        hertz: float,
        on_knot: Callable[[int, Knot], None],
    ) -> None:
        self.clock = clock
        self.next_refresh_seconds = math.inf
        self._timelines = tuple(timelines)
        # For each timeline, the latest time of its next reading, and its next refresh.
        self._latest = [math.inf] * len(self._timelines)
        self._refresh = [math.inf] * len(self._timelines)
        self._interval = 1.0 / hertz
        self._on_knot = on_knot
        self._read = threading.Event()
        self._task: PeriodicTask | None = None

    def start(self) -> None:
        """Read everything once, then continue in the background until :meth:`stop`."""
        wait = self.read_due()
        if self._timelines:
            self._task = PeriodicTask(self.read_due, seconds=wait, clock=self.clock)
            self._task.start()

    def stop(self) -> None:
        """Stop reading; waits briefly for a reading under way, but not for a hanging driver."""
        if self._task is not None:
            self._task.stop(_STOP_SECONDS)

    def catch_up(self, now: float, patience_seconds: float) -> None:
        """Have refreshed counters read now, waiting at most ``patience_seconds``."""
        for timeline, refresh in zip(self._timelines, self._refresh, strict=True):
            if refresh <= now:
                timeline.due_seconds = min(now, timeline.due_seconds)
        if self._task is None or not self._task.is_threaded:
            self.read_due()
            return
        self._read.clear()
        self._task.wake()
        self._read.wait(patience_seconds)

    def read_due(self) -> float:
        """Read every counter that is due; seconds until the next one is."""
        now = self.clock.now()
        for position, timeline in enumerate(self._timelines):
            if timeline.due_seconds <= now:
                self._read_one(position, timeline, now)
        self.next_refresh_seconds = min(self._refresh, default=math.inf)
        self._read.set()
        now = self.clock.now()
        return max(
            _SHORTEST_SLEEP_SECONDS, min((now + _LONGEST_SLEEP_SECONDS, *self._latest)) - now
        )

    def _read_one(self, position: int, timeline: EnergyTimeline, now: float) -> None:
        timer = timeline.timer
        # Half a period early, because the refresh nearest to the desired interval is the right
        # one; and earlier by the time that readings of stamped counters wait for each other.
        can_wait = timer.stamps_trusted and timer.period_seconds
        slack = _COALESCE_FRACTION * self._interval if can_wait else 0.0
        early = 0.5 * (timer.period_seconds or 0.0) + slack
        wanted = 0.0 if timeline.reads_every_refresh else self._interval - early
        knot = timeline.read(now + wanted)
        self._latest[position] = timeline.due_seconds + slack
        self._refresh[position] = timer.next_refresh()
        if knot is not None:
            self._on_knot(position, knot)
