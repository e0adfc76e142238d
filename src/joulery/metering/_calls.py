"""Totals of a decorated function: the time and energy of all its calls."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from joulery.tables import Tabular
from joulery.units import human, human_duration

if TYPE_CHECKING:
    from joulery.metering._window import Window

# Latest calls whose figures are not yet added, by hand: counters refresh within some of them.
_PENDING = 16


class CallTotals(Tabular):
    """Calls of a decorated function, with their seconds and joules.

    Calls within calls count twice, as each is a window of its own.

    Attributes:
        name: Name of the windows.
        calls: Number of calls that have ended.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self._seconds = 0.0
        self._joules = 0.0
        self._pending: deque[Window] = deque()
        self._lock = threading.Lock()

    def add(self, window: Window) -> None:
        """Count a window that was closed."""
        with self._lock:
            self.calls += 1
            self._pending.append(window)
            if len(self._pending) > _PENDING:
                earlier = self._pending.popleft()
                self._seconds += earlier.seconds
                self._joules += earlier.joules

    @property
    def seconds(self) -> float:
        """Time of all calls together."""
        with self._lock:
            return self._seconds + math.fsum(window.seconds for window in self._pending)

    @property
    def joules(self) -> float:
        """Energy of all calls together; NaN where that of one is unknown."""
        with self._lock:
            return self._joules + math.fsum(window.joules for window in self._pending)

    def __str__(self) -> str:
        seconds, joules = human_duration(self.seconds), human(self.joules, "J")
        return f"{self.name}: {self.calls} call{'s' * (self.calls != 1)}, {seconds}, {joules}"

    def to_dict(self) -> dict[str, Any]:
        """The totals as a JSON document; unknown is null."""
        joules = None if math.isnan(self.joules) else self.joules
        return {"name": self.name, "calls": self.calls, "seconds": self.seconds, "joules": joules}

    def rows(self) -> list[dict[str, Any]]:
        """A single row with the totals."""
        return [self.to_dict()]
