"""Notice that a job no longer is the job that was profiled.

A two-sided cumulative sum: small lasting changes add up, a single disturbed stretch does not.
"""

from __future__ import annotations

_ALLOWANCE = 0.5
_ALARM = 3.5
_MOST_AT_ONCE = 2.0


class DriftDetector:
    """Watches one logarithmic quantity.

    Args:
        baseline: Where it was.
        change: The smallest lasting change that matters, in logarithms (0.05 is about 5 %).
    """

    def __init__(self, baseline: float, change: float) -> None:
        self._baseline = baseline
        self._change = change
        self._up = self._down = 0.0

    def changed(self, value: float) -> bool:
        """Take in a value; whether the change is certain by now."""
        off = (value - self._baseline) / self._change
        off = max(-_MOST_AT_ONCE, min(_MOST_AT_ONCE, off))
        self._up = max(0.0, self._up + off - _ALLOWANCE)
        self._down = max(0.0, self._down - off - _ALLOWANCE)
        return self._up > _ALARM or self._down > _ALARM
