"""Repair of a raw energy counter: wraps, resets, freezes and jumps become energy and flags.

The result never decreases. Where the counter cannot be believed, the energy is filled in from the
power sensor or the last known power, with a larger variance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from joulery.metering._measurement import SIGMAS_95, Flag

if TYPE_CHECKING:
    from joulery.hardware import EnergyReading

# More than this many times the board's maximum means a broken counter.
_IMPLAUSIBLE = 3.0  # by hand
# Bound without a known maximum: no single known device draws more.
_MOST_WATTS = 1e5  # by hand
# One sigma of energy filled in from power readings, relative.
_FILLED_ERROR = 0.1  # by hand
# A counter that caught up after a freeze shows at least this share of what was drawn meanwhile, or
# more than can have been drawn since.
_CAUGHT_UP = 0.5  # by hand


class Advance(NamedTuple):
    """Energy since the last advance, with its variance in J², and the fault found, if any.

    The variance is negative where earlier advances have become known.
    ``sigma_joules`` is one sigma that later advances do not share, as of a lagging sensor.
    """

    joules: float
    variance: float = 0.0
    flag: Flag | None = None
    sigma_joules: float = 0.0


class CounterRepair:
    """Turns successive readings of one counter into advances; the first reading counts as zero."""

    def __init__(self, first: EnergyReading, max_watts: float | None) -> None:
        self._modulus = first.range_joules
        self._most_watts = _IMPLAUSIBLE * max_watts if max_watts else _MOST_WATTS
        self._last = first
        self._changed_at = first.read_at_seconds
        self._filled_until: float | None = None
        self._filled = self._filled_sigma = 0.0
        self._is_guessed = False

    def changed(self, reading: EnergyReading) -> bool:
        """Whether the counter moved since the last reading."""
        return reading.joules != self._last.joules

    def still_seconds(self, reading: EnergyReading) -> float:
        """Time since the counter last changed."""
        return reading.read_at_seconds - self._changed_at

    def advance(self, reading: EnergyReading, typical_watts: float, slack: float) -> Advance:
        """Energy since the last change of the counter.

        ``typical_watts`` fills in energy that the counter missed; ``slack`` is the seconds by which
        it may lag behind its readings.
        """
        elapsed = reading.read_at_seconds - self._changed_at
        highest = self._most_watts * (elapsed + slack)
        delta = reading.joules - self._last.joules
        filled = self._filling(reading.read_at_seconds, slack)
        self._last, self._changed_at = reading, reading.read_at_seconds
        self._filled_until, self._filled, self._filled_sigma = None, 0.0, 0.0
        if delta < 0 and self._modulus is not None and 0 <= delta + self._modulus <= highest:
            return _unless_filled(delta + self._modulus, filled)._replace(flag=Flag.WRAPPED)
        if delta < 0:
            # What the counter shows was certainly used since its reset.
            certain = reading.joules if reading.joules <= highest else 0.0
            missing = max(0.0, typical_watts * elapsed - filled.joules)
            return self._guess(max(missing, certain), Flag.RESET)
        if delta > highest:
            return self._guess(max(0.0, typical_watts * elapsed - filled.joules), Flag.JUMPED)
        return _unless_filled(delta, filled)

    def fill(
        self, reading: EnergyReading, watts: float, sigma_watts: float | None = None
    ) -> Advance:
        """Energy since the last advance of a frozen counter, from the power sensor.

        One sigma of that power is ``sigma_watts``, the same for the whole of a freeze, also for
        what was filled in before that was known; None for a sensor that moves.
        """
        first = self._filled_until is None
        since = self._changed_at if self._filled_until is None else self._filled_until
        seconds = max(0.0, reading.read_at_seconds - since)
        self._filled_until = reading.read_at_seconds
        self._filled += watts * seconds
        before, self._filled_sigma = self._filled_sigma, _FILLED_ERROR * self._filled
        self._is_guessed = sigma_watts is not None
        if sigma_watts is not None:
            self._filled_sigma = sigma_watts * (reading.read_at_seconds - self._changed_at)
        variance = self._filled_sigma**2 - before**2
        return Advance(watts * seconds, variance, Flag.FROZEN if first else None)

    def _filling(self, now: float, slack: float) -> _Filling:
        since = now if self._filled_until is None else self._filled_until
        most = self._most_watts * (now - since + slack)
        least = min(most, _CAUGHT_UP * self._filled)
        return _Filling(self._filled, self._filled_sigma, least, self._is_guessed)

    def _guess(self, joules: float, flag: Flag | None) -> Advance:
        return Advance(joules, (_FILLED_ERROR * joules) ** 2, flag)


class _Filling(NamedTuple):
    """What was filled in for a freeze, and the least that a counter shows that caught up.

    It is guessed where the sensor stood still, too.
    """

    joules: float
    sigma_joules: float
    least_joules: float
    is_guessed: bool


def _unless_filled(delta: float, filled: _Filling) -> Advance:
    """Energy counted since a freeze, without the energy that was filled in for it meanwhile.

    A counter that stood still during the freeze shows only what came after; one that caught up
    shows how far off the filling was.
    """
    if not filled.joules or delta < filled.least_joules:
        # Or it caught up, and less than half of a guess was used.
        farthest = filled.joules / SIGMAS_95 if filled.is_guessed else 0.0
        return Advance(delta, max(0.0, farthest**2 - filled.sigma_joules**2))
    excess = max(0.0, filled.joules - delta)
    return Advance(max(0.0, delta - filled.joules), excess**2 / 3 - filled.sigma_joules**2)
