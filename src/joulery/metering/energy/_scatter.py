"""How much a board's readings scatter: whether its power may come in bursts that nobody sees.

A sensor that looks at a part of the time sees bursts at another phase each time, so its readings
spread: by 89 % and more within 3 s in recordings of bursts of 50 ms on an A100, however slowly they
move from one to the next. A smooth load does not spread, and a new load is one step.
"""

from __future__ import annotations

import math

# Time within which readings are compared: two beats of the recorded bursts.
_MEMORY_SECONDS = 6.0
# Time over which readings are averaged to tell a beat from phases of a step: a sixth of one.
_BLOCK_SECONDS = 0.5
# Changes below this, relative, are noise; steady readings of an A100 and a V100 move by 1 to 2 %.
_NOISE = 0.03
# By hand: readings that moved there and back by half of their range have shown all of it.
_PATH = 2.0
_FORGOTTEN = 0.02  # by hand: a path that short shows nothing any more
# By hand: a larger change, relative, after readings that stood still, is a new load.
_NEW_LOAD = 0.15


class Scatter:
    """Spread of recent readings, new loads left out.

    Bursts out of step with the sensor, and phases of a step, make readings jump; bursts almost in
    step make them swell and fall over seconds, which stays after averaging over a part of a second.
    """

    def __init__(self) -> None:
        self._readings, self._means = _Spread(), _Spread()
        self._sum, self._count, self._since = 0.0, 0, math.nan

    @property
    def amplitude(self) -> float:
        """Range of recent readings, relative to the last; 0 if they stood still or moved once."""
        return self._readings.amplitude

    @property
    def slow_amplitude(self) -> float:
        """The same of their means over half a second."""
        return self._means.amplitude

    def add(self, watts: float, at_seconds: float) -> None:
        """Learn from the next reading."""
        self._readings.add(watts, at_seconds)
        if not at_seconds - self._since < _BLOCK_SECONDS:
            if self._count:
                self._means.add(self._sum / self._count, at_seconds)
            self._sum, self._count, self._since = 0.0, 0, at_seconds
        self._sum += watts
        self._count += 1


class _Spread:
    """Range of values in recent seconds, relative to the last one."""

    def __init__(self) -> None:
        self.amplitude = 0.0
        self._last = self._high = self._low = math.nan
        self._at = -math.inf
        self._change = 0.0
        self._is_step = False
        self._path = 0.0

    def add(self, watts: float, at_seconds: float) -> None:
        """Learn from the next value."""
        if math.isnan(self._last):
            self._last = self._high = self._low = watts
            self._at = at_seconds
            return
        largest = max(watts, self._last)
        change = (watts - self._last) / largest if largest > 0 else 0.0
        decay = math.exp(min(0.0, self._at - at_seconds) / _MEMORY_SECONDS)
        self._path *= decay if self._path > _FORGOTTEN else 0.0
        # A step that falls between two readings shows as two changes in one direction, of which the
        # first may be small.
        same_way = change * self._change > 0
        follows = self._is_step and same_way
        alone = abs(self._change) < _NOISE or (same_way and self._path == 0.0)
        if abs(change) > _NEW_LOAD and (follows or alone):
            self._is_step = not follows
            self._high = self._low = watts
        else:
            self._is_step = False
            self._path += max(0.0, min(abs(change), abs(self._change)) - _NOISE)
            self._high = max(watts, watts + decay * (self._high - watts))
            self._low = min(watts, watts + decay * (self._low - watts))
        self._last, self._at, self._change = watts, at_seconds, change
        if watts > 0:
            spread = (self._high - self._low) / self._high
            self.amplitude = min(_PATH * self._path, spread) * self._high / watts
