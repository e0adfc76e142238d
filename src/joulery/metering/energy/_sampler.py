"""Background sampling of energy counters, each when it has a new value.

On a real clock a daemon thread makes all readings, so that a driver that hangs never hangs the code
being measured; on a virtual clock the clock itself calls. A board whose reading hangs keeps its
thread to itself, and another one takes over the rest.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from joulery.background import PeriodicTask
from joulery.metering._measurement import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from joulery.clock import Clock
    from joulery.metering.energy._timeline import EnergyTimeline, Knot

# Counters whose refreshes are stamped lose nothing when read late (a closing window has them read
# at once), so their readings share wake-ups: waking up costs more than reading.
_COALESCE_FRACTION = 0.9  # measured: readings of eight boards
_LONGEST_SLEEP_SECONDS = 1.0  # by hand
_SHORTEST_SLEEP_SECONDS = 1e-4  # by hand
_STOP_SECONDS = 0.5  # by hand
# Counters are read at every refresh for this long after a caller waited for them.
_EAGER_SECONDS = 5.0  # by hand
# A reading that takes longer than this hangs.
_HANGING_SECONDS = 0.5  # by hand: five periods of the slowest counter


class Sampler:
    """Keeps timelines up to date.

    Args:
        timelines: Timelines of the devices to read.
        clock: Real or virtual clock.
        hertz: Highest rate of readings per device, once its refresh period is known.
        on_knot: Callback for each new knot, with its timeline's position.

    Attributes:
        next_refresh_seconds: Earliest moment at which any counter has a new value.
        next_quick_seconds: The same among counters that refresh more often than they are read.
    """

    def __init__(
        self,
        timelines: Sequence[EnergyTimeline],
        clock: Clock,
        hertz: float,
        on_knot: Callable[[int, Knot], None],
    ) -> None:
        self.clock = clock
        self.next_refresh_seconds = self.next_quick_seconds = math.inf
        self._timelines = tuple(timelines)
        # For each timeline, the latest time of its next reading, and its next refresh.
        self._latest = [math.inf] * len(self._timelines)
        self._refresh = [math.inf] * len(self._timelines)
        self._quick = [math.inf] * len(self._timelines)
        self._interval = 1.0 / hertz
        self._on_knot = on_knot
        self._read = threading.Event()
        self._eager_until = -math.inf
        # Replaced when a reading hangs; the positions that it leaves behind stay with it.
        self._worker = _Worker(self, range(len(self._timelines)))
        self._hanging: list[_Worker] = []
        self._watch: PeriodicTask | None = None

    def start(self) -> None:
        """Read everything once, then continue in the background until ``stop``."""
        self._worker.read_due()
        if self._timelines:
            self._worker.task.start()
        if self._worker.task.is_threaded and len(self._timelines) > 1:
            self._watch = PeriodicTask(self.isolate_hanging, seconds=_HANGING_SECONDS)
            self._watch.start()

    def stop(self) -> None:
        """Stop reading; waits briefly for a reading under way, but not for a hanging driver."""
        if self._watch is not None:
            self._watch.stop(_STOP_SECONDS)
        for worker in self._hanging:
            worker.task.stop(0.0)
        self._worker.task.stop(_STOP_SECONDS)

    def catch_up(self, now: float, patience_seconds: float) -> None:
        """Have refreshed counters read now, waiting at most ``patience_seconds``."""
        if self.request(now):
            self.wait(patience_seconds)

    def request(self, now: float) -> bool:
        """Have counters that refreshed before ``now`` read; whether that is still to come."""
        for timeline, refresh in zip(self._timelines, self._refresh, strict=True):
            if refresh <= now:
                timeline.due_seconds = min(now, timeline.due_seconds)
        if not self._worker.task.is_threaded:
            self._worker.read_due()
            return False
        self._read.clear()
        self._worker.task.wake()
        return True

    def wait(self, patience_seconds: float) -> None:
        """Wait for the readings that were requested last, at most ``patience_seconds``.

        A caller who waits will do so again: for some time, counters are read as they refresh.
        Those miss a moment at most, which is not waited for.
        """
        now = self.clock.now()
        prompt = now <= self._eager_until and now < self.next_quick_seconds
        self._eager_until = now + _EAGER_SECONDS
        if not prompt:
            self._read.wait(patience_seconds)

    def isolate_hanging(self) -> None:
        """Give the other boards a new thread if the reading of one hangs."""
        worker, now = self._worker, self.clock.now()
        position = worker.reading
        if position is None or now - worker.reading_since < _HANGING_SECONDS:
            return
        remaining = [index for index in worker.positions if index != position]
        worker.positions = (position,)
        self._refresh[position] = self._quick[position] = self._latest[position] = math.inf
        if remaining:
            self._hanging.append(worker)
            self._worker = _Worker(self, remaining)
            self._worker.task.start()

    def flag_hanging(self, now: float) -> None:
        """Flag each board whose reading hangs."""
        for worker in (self._worker, *self._hanging):
            if worker.reading is not None and now - worker.reading_since >= _HANGING_SECONDS:
                self._timelines[worker.reading].add_flag(Flag.HANGING)

    def finish_pass(self) -> None:
        """Note that all counters that were due have been read."""
        self.next_refresh_seconds = min(self._refresh, default=math.inf)
        self.next_quick_seconds = min(self._quick, default=math.inf)
        self._read.set()

    def read_one(self, position: int, now: float) -> float:
        """Read a counter if it is due; the latest time of its next reading."""
        timeline = self._timelines[position]
        if timeline.due_seconds > now:
            return self._latest[position]
        timer = timeline.timer
        period = timer.period_seconds or 0.0
        eager = now <= self._eager_until
        # Half a period early, because the refresh nearest to the desired interval is the right
        # one; and earlier by the time that readings of stamped counters wait for each other.
        can_wait = timer.stamps_trusted and period and not eager
        slack = _COALESCE_FRACTION * self._interval if can_wait else 0.0
        delay = self._interval - 0.5 * period - slack
        if timeline.reads_every_refresh or (eager and period >= self._interval / 2):
            delay = 0.0
        knot = timeline.read(now + delay)
        self._latest[position] = timeline.due_seconds + slack
        self._refresh[position] = timer.next_refresh()
        quick = timer.period_seconds is not None and period < self._interval / 2
        self._quick[position] = self._refresh[position] if quick else math.inf
        if knot is not None:
            self._on_knot(position, knot)
        return self._latest[position]


class _Worker:
    """One thread and the timelines that it reads.

    Attributes:
        positions: Positions of its timelines.
        reading: Position whose reading is under way; None between readings.
        reading_since: Start of that reading, in seconds.
        task: Background task that reads what is due.
    """

    def __init__(self, sampler: Sampler, positions: Iterable[int]) -> None:
        self.positions = tuple(positions)
        self.reading: int | None = None
        self.reading_since = 0.0
        self._sampler = sampler
        self.task = PeriodicTask(
            self.read_due, seconds=_SHORTEST_SLEEP_SECONDS, clock=sampler.clock
        )

    def read_due(self) -> float:
        """Read every counter that is due; seconds until the next one is."""
        sampler = self._sampler
        now = sampler.clock.now()
        due = now + _LONGEST_SLEEP_SECONDS
        for position in self.positions:
            self.reading_since, self.reading = now, position
            due = min(due, sampler.read_one(position, now))
            self.reading = None
            if position not in self.positions:
                break  # it hung meanwhile, and others read the rest
        sampler.finish_pass()
        return max(_SHORTEST_SLEEP_SECONDS, due - sampler.clock.now())
