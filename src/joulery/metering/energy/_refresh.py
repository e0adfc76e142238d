"""Times at which a counter refreshes, learned from its readings.

Boards update their energy counter every 20-100 ms. Some drivers stamp the update, some stamp the
call, some nothing. A stamp is trusted only once it stood still together with the value. Without
stamps an update is known to lie between the last reading of the old value and the first reading
of the new one, and readings are timed so that this bracket shrinks.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

# A counter faster than this needs no phase: each reading is as good as its refresh.
_CONTINUOUS_SECONDS = 0.005  # by hand: powercap refreshes every 1 ms
# … and is not read again before this much later.
_CONTINUOUS_PERIOD_SECONDS = 0.01  # by hand
# While the period is unknown, readings come at this fraction of the time waited so far.
_CALIBRATION_FRACTION = 0.01  # on simulated boards
_CALIBRATION_STEP_SECONDS = 0.001  # on simulated boards
_STAMPED_STEP_SECONDS = 0.005  # on simulated boards
_REFRESHES_TO_CALIBRATE = 4  # on simulated boards
# No change for this long means frozen, or a value that repeats: read less often.
_PATIENCE_SECONDS = 3.0  # by hand
_REPEATING_STEP_SECONDS = 0.02  # the period of V100s and P100s
# No sensor refreshes less often than this.
_LONGEST_PERIOD_SECONDS = 0.15  # the longest of the recordings is 0.104 s
# Largest relative error of a gap between two refreshes from which the period is learned.
_SHARP_FRACTION = 0.1  # on simulated boards
# A shortest gap below this fraction of the mean one means that refreshes were missed.
_MISSED = 0.8  # on simulated boards
# Read a stamped counter this long after its refresh is due: the driver needs a moment.
_READ_DELAY_SECONDS = 0.001  # by hand
# Width down to which a bracket is narrowed.
_BRACKET_SECONDS = 0.001  # by hand
# Boards of one kind differ by this much in their period; one further off, as a factor, is of
# another kind.
_SPREAD = 0.05  # boards of one type in the recordings differ by 3 %
_LIKELY = (0.5, 1.5)  # by hand
# Jitter of refreshes around their grid: a constant, and a fraction of the time since a reading.
_JITTER_SECONDS = 0.0002  # on simulated boards
# … which grows with each board that turns out to be less regular, up to this.
_MOST_JITTER_SECONDS = 0.01  # by hand
_JITTER_FRACTION = 2e-4  # on simulated boards
# An unchanged stamp older than this was not merely the previous call's.
_STILL_SECONDS = 0.002  # by hand
_MISSES_TO_RESTART = 3  # by hand
# Refreshes over which the period is averaged before the baseline starts anew.
_LONGEST_BASELINE = 1000  # by hand: a minute or two


class Refresh(NamedTuple):
    """Time at which a counter changed, on the reader's clock, give or take ``half_width``."""

    at_seconds: float
    half_width_seconds: float = 0.0


class RefreshTimer:
    """Schedule of one counter's refreshes, learned from its readings.

    Args:
        repeats: Whether a refresh may leave the value as it was, as that of a power sensor.
        expected_seconds: Period by the catalog; None when unknown.

    Attributes:
        period_seconds: Time between refreshes; None while unknown, 0 for continuous counters.
        stamps_trusted: Whether the driver's stamps mark refreshes; None while unknown.
    """

    def __init__(self, *, repeats: bool = False, expected_seconds: float | None = None) -> None:
        self._repeats = repeats
        self._expected = expected_seconds
        self.period_seconds: float | None = None
        self.stamps_trusted: bool | None = None
        self._last_reading: float | None = None
        self._last_stamp: float | None = None
        self._last_change = 0.0
        self._seen: list[tuple[float, float]] = []
        self._jitter = _JITTER_SECONDS
        self._grid: _Grid | None = None

    def observe(self, read_at: float, stamp: float | None, *, changed: bool) -> Refresh | None:
        """Learn from one reading; the refresh that it revealed, or None when nothing changed."""
        previous = self._last_reading
        if previous is not None and not changed:
            self._judge_stamp(read_at, stamp)
        self._last_reading, self._last_stamp = read_at, stamp
        if previous is None:
            self._last_change = read_at
            return None
        if not changed:
            if self._grid is not None and not self.stamps_trusted and not self._repeats:
                self._grid.add_unchanged(read_at)
                self._give_up_if_lost(self._grid)
            return None
        self._last_change = read_at
        return self._place(previous, read_at, stamp if self.stamps_trusted else None)

    def next_refresh(self) -> float:
        """Earliest moment at which a reading would show a new value."""
        if self._last_reading is None or self.period_seconds is None:
            return math.inf  # readings come frequently anyway until the period is known
        if self._grid is None:
            return self._last_reading + _CONTINUOUS_PERIOD_SECONDS
        return self._grid.high + self._grid.period

    def next_due(self, not_before: float) -> float:
        """Time of the next reading that shows a new value, if possible not before the given."""
        if self._last_reading is None:
            return not_before
        if self.period_seconds is None:
            return self._last_reading + self._calibration_step(not_before)
        if self._grid is None:
            return not_before
        if self.stamps_trusted:
            return self._grid.after(not_before, self._last_reading) + _READ_DELAY_SECONDS
        return self._grid.next_reading(not_before, self._last_reading)

    def _place(self, previous: float, read_at: float, stamp: float | None) -> Refresh:
        low, high = (previous, read_at) if stamp is None else (stamp, stamp)
        if self.period_seconds is None:
            self._calibrate(low, high)
        elif self._grid is None:
            return Refresh(read_at)  # continuous: refreshed within the last few milliseconds
        elif stamp is None:
            low, high = self._grid.add_change(previous, read_at)
            if not self._repeats:
                low = max(low, read_at - self._grid.period)  # it refreshes that often
        else:
            low, high = self._grid.add_stamp(stamp)
        if self._grid is not None:
            self.period_seconds = self._grid.period
            self._give_up_if_lost(self._grid)
        return Refresh((low + high) / 2, (high - low) / 2)

    def _calibrate(self, low: float, high: float) -> None:
        self._seen = [*self._seen, (low, high)][-2 * _REFRESHES_TO_CALIBRATE :]
        if len(self._seen) < _REFRESHES_TO_CALIBRATE and not self._repeats:
            return
        gap = shortest = _shortest_gap(self._seen)
        if not self._repeats:
            gap = _mean_gap(self._seen)
            if shortest is not None and shortest[0] < _MISSED * gap[0]:
                gap = shortest  # on a busy machine some refreshes pass between two readings
        if gap is None:
            return
        period, error = gap
        self._seen = []
        limits = self._limits(period)
        period = min(max(period, limits[0]), limits[1])
        if period > _CONTINUOUS_SECONDS:
            self.period_seconds = period
            self._grid = _Grid((low, high), period, error, self._jitter, limits)
        else:
            self.period_seconds = 0.0

    def _limits(self, period: float) -> tuple[float, float]:
        """Limits of the period: those of the catalog, unless this is another kind of sensor."""
        expected = self._expected
        if expected is None or not _LIKELY[0] < period / expected < _LIKELY[1]:
            return 0.0, math.inf
        return (1 - _SPREAD) * expected, (1 + _SPREAD) * expected

    def _give_up_if_lost(self, grid: _Grid) -> None:
        blurred = not self._repeats and grid.high - grid.low > grid.period
        if grid.misses >= _MISSES_TO_RESTART or blurred:
            self.period_seconds = self._grid = None
            self._jitter = min(4 * self._jitter, _MOST_JITTER_SECONDS)

    def _calibration_step(self, not_before: float) -> float:
        assert self._last_reading is not None  # noqa: S101 - only called after a first reading
        waited = self._last_reading - self._last_change
        if waited > _PATIENCE_SECONDS:
            step = max(not_before - self._last_reading, _STAMPED_STEP_SECONDS)
            return min(step, _REPEATING_STEP_SECONDS) if self._repeats else step
        least = _STAMPED_STEP_SECONDS if self.stamps_trusted else _CALIBRATION_STEP_SECONDS
        return max(least, _CALIBRATION_FRACTION * waited)

    def _judge_stamp(self, read_at: float, stamp: float | None) -> None:
        """The value stood still: a stamp that moved marks calls, one that stood marks refreshes."""
        if stamp is None or self._last_stamp is None:
            return
        # Converting between two clocks costs some microseconds: that is no movement.
        if abs(stamp - self._last_stamp) > 2e-4:
            self.stamps_trusted = False
        elif self.stamps_trusted is None and read_at - stamp > _STILL_SECONDS:
            self.stamps_trusted = True


def _mean_gap(brackets: list[tuple[float, float]]) -> tuple[float, float]:
    """Period of refreshes of which none was missed, and its largest error."""
    (low, high), (last_low, last_high) = brackets[0], brackets[-1]
    count = len(brackets) - 1
    period = (last_low + last_high - low - high) / 2 / count
    return period, (last_high - last_low + high - low) / 2 / count


def _shortest_gap(brackets: list[tuple[float, float]]) -> tuple[float, float] | None:
    """Period of refreshes that may have been missed, from two in a row that were seen sharply."""
    gaps = [_mean_gap([early, late]) for early, late in pairwise(brackets)]
    sharp = [
        gap
        for gap in gaps
        if gap[1] <= _SHARP_FRACTION * gap[0] and 0 < gap[0] <= _LONGEST_PERIOD_SECONDS
    ]
    if not sharp:
        return None
    shortest = min(sharp)[0]
    near = [gap for gap in sharp if gap[0] < 1.6 * shortest]
    return sum(gap[0] for gap in near) / len(near), max(gap[1] for gap in near)


class _Grid:
    """The regular moments at which a counter refreshes: a period, and a bracket for the phase.

    The n-th refresh after the last one placed lies within ``low + n·period`` and
    ``high + n·period``.
    """

    def __init__(
        self,
        bracket: tuple[float, float],
        period: float,
        error: float,
        jitter: float,
        limits: tuple[float, float],
    ) -> None:
        low, high = bracket
        self.low, self.high, self.period = low, high, period
        self._jitter = jitter
        self._limits = limits
        self.misses = 0
        self._period_error = error
        self._anchor = (low + high) / 2
        self._anchor_width = high - low
        self._steps_since_anchor = 0
        self._probing: int | None = None

    def after(self, not_before: float, last_reading: float) -> float:
        """The first refresh expected after both moments."""
        return self.high + self._periods_to(max(not_before, last_reading)) * self.period

    def next_reading(self, not_before: float, last_reading: float) -> float:
        """Time of the next reading: right after a refresh, or the middle of a wide bracket.

        A reading inside a bracket is informative only if another one came between the refresh
        before and the bracket, so probing starts there.
        """
        if self._probing is None or last_reading > self._bracket(self._probing)[1]:
            steps = self._periods_to(max(not_before, last_reading))
            low, high = self._bracket(steps)
            if high - low <= max(_BRACKET_SECONDS, 4 * self._jitter):
                self._probing = None
                return high + self._jitter
            self._probing = steps
        low, high = self._bracket(self._probing)
        earlier = high - self.period
        if last_reading <= earlier:
            return (earlier + low) / 2
        middle = (low + high) / 2
        return middle if last_reading < middle else high + self._jitter

    def add_unchanged(self, read_at: float) -> None:
        """Learn from a reading that still had the old value."""
        if read_at > self._bracket(1)[1]:
            self.misses += 1
            self.low, self.high = self.low - self.period / 20, self.high + self.period / 20

    def add_change(self, previous: float, read_at: float) -> tuple[float, float]:
        """Learn from a reading with a new value, the one at ``previous`` having had the old."""
        steps = max(1, math.floor((read_at - self.low) / self.period))
        low, high = self._bracket(steps)
        if read_at < high and previous < high - self.period and steps > 1:
            # The last refresh may have come or not: only the one before is sure, and the grid
            # learns nothing from this reading.
            self.low, self.high = self._bracket(steps - 1)
            return self.low, read_at
        low, high = max(low, previous), min(high, read_at)
        if low > high:
            self.misses += 1
            return self._placed(max(previous, read_at - self.period), read_at, None)
        self.misses = 0
        return self._placed(low, high, steps)

    def add_stamp(self, stamp: float) -> tuple[float, float]:
        """Learn from a refresh that the driver stamped."""
        steps = max(1, round((stamp - self.high) / self.period))
        if abs(stamp - self.high - steps * self.period) > 0.25 * self.period:
            # Off the grid: the board is irregular, or the wall clock was set.
            self.misses += 1
            self._placed(stamp, stamp, None)
            return stamp - self.period / 2, stamp + self.period / 2
        self.misses = 0
        return self._placed(stamp, stamp, steps)

    def _placed(self, low: float, high: float, steps: int | None) -> tuple[float, float]:
        self.low, self.high = low, high
        if self._probing is not None:
            # Refreshes before the one that is probed do not end the probing.
            ahead = self._probing - steps if steps is not None else 0
            self._probing = ahead if ahead > 0 else None
        middle = (low + high) / 2
        if steps is None or self._steps_since_anchor >= _LONGEST_BASELINE:
            # Start a new baseline; this also follows slow drift of the board's own clock.
            self._anchor, self._anchor_width, self._steps_since_anchor = middle, high - low, 0
            return low, high
        self._steps_since_anchor += steps
        # A long baseline gives the period far better than neighbouring refreshes do.
        error = (self._anchor_width + high - low) / 2 / self._steps_since_anchor
        if error <= self._period_error or self._steps_since_anchor >= 4:
            period = (middle - self._anchor) / self._steps_since_anchor
            self.period = min(max(period, self._limits[0]), self._limits[1])
            self._period_error = min(error, self._period_error)
        return low, high

    def _periods_to(self, moment: float) -> int:
        return max(1, math.ceil((moment - self.high) / self.period))

    def _bracket(self, steps: int) -> tuple[float, float]:
        slack = self._jitter / 2 + steps * (_JITTER_FRACTION * self.period + self._period_error)
        ahead = steps * self.period
        return self.low + ahead - slack, self.high + ahead + slack
