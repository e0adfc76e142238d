"""How much a board's readings scatter: whether its power may come in bursts that nobody sees.

A sensor that looks at a part of the time sees bursts at another phase each time, so its readings
spread: by 89 % and more within 3 s in recordings of bursts of 50 ms on an A100, however slowly they
move from one to the next. A smooth load does not spread, and a new load is one step.
"""

from __future__ import annotations

import math

# Time within which readings are compared: a beat of the recorded bursts.
_MEMORY_SECONDS = 3.0
# Changes below this, relative, are noise; steady readings of an A100 and a V100 move by 1 to 2 %.
_NOISE = 0.03
# By hand: a larger change, relative, after readings that stood still, is a new load.
_NEW_LOAD = 0.15


class Scatter:
    """Spread of recent readings, new loads left out.

    Attributes:
        amplitude: Range of the readings of the last seconds, relative to the highest; 0 while they
            stand still or moved once.
    """

    def __init__(self) -> None:
        self.amplitude = 0.0
        self._last = self._high = self._low = math.nan
        self._at = -math.inf
        self._change = 0.0
        self._is_step = False
        self._path = 0.0

    def add(self, watts: float, at_seconds: float) -> None:
        """Learn from the next reading."""
        largest = max(watts, self._last)
        change = (watts - self._last) / largest if largest > 0 else 0.0
        decay = math.exp(min(0.0, self._at - at_seconds) / _MEMORY_SECONDS)
        self._path *= decay
        # A step that falls between two readings shows as two changes in one direction.
        follows = self._is_step and change * self._change > 0
        if math.isnan(self._last) or (
            abs(change) > _NEW_LOAD and (follows or abs(self._change) < _NOISE)
        ):
            self._is_step = not follows
            self._high = self._low = watts
        else:
            self._is_step = False
            self._path += max(0.0, min(abs(change), abs(self._change)) - _NOISE)
            self._high = max(watts, watts + decay * (self._high - watts))
            self._low = min(watts, watts + decay * (self._low - watts))
        self._last, self._at, self._change = watts, at_seconds, change
        spread = (self._high - self._low) / self._high if self._high > 0 else 0.0
        self.amplitude = min(self._path, spread)
