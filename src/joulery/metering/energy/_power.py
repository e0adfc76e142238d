"""Energy of a power sensor without a counter, from its readings.

A reading is the mean power over some time before its refresh. One that averages over its refresh
period therefore tells the energy of that period exactly, and the sum of the readings is a counter.
A reading that lags (a running mean over a second, a slow filter) is late by some time on average;
energy up to now is then the sum of the readings plus that time times the last one, which is exact
for a filter of first order and off by an eighth of a running mean's length at worst.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from joulery.hardware import PowerSensor

# A change of power smaller than this, relative, may be noise; one larger than that is a new load.
_NOISE = 0.03
_NEW_LOAD = 0.15
# Share of a step of the load that a sensor without delay shows in one refresh at least.
_AT_ONCE = 0.55
# More periods than this without a reading leave a gap that is interpolated.
_GAP_PERIODS = 2.5
# One sigma of the energy of a lagging sensor while its reading moves, relative to the extremes.
_SHAPE = 1.0


class Piece(NamedTuple):
    """Energy up to a moment since the last one, with its variance in J² and present sigma."""

    at_seconds: float
    joules: float
    variance: float = 0.0
    sigma_joules: float = 0.0
    gap: bool = False


class PowerIntegral:
    """Adds up the readings of one sensor.

    Args:
        sensor: Expected behaviour of the sensor.
    """

    def __init__(self, sensor: PowerSensor) -> None:
        self.period_seconds = sensor.period_seconds
        mean_lag = max(0.0, sensor.window_seconds - sensor.period_seconds) / 2
        self.lag = LagEstimate(sensor.lag_seconds + mean_lag, sensor.lag_error_seconds)
        self.watts: float | None = None
        self._at = self._read_at = 0.0
        # Sum of the readings, the largest energy given out so far, and the delay assumed for it.
        self._sum = self._given = 0.0
        self._delay = self.lag.seconds

    def start(self, watts: float, now: float) -> None:
        """Take the first reading."""
        self.watts, self._at, self._read_at = watts, now, now
        self._given = self.lag.seconds * watts

    def repeat(self, now: float) -> Piece | None:
        """Go on with a reading that did not change; energy is sure up to a period ago."""
        assert self.watts is not None  # noqa: S101 - start() came first
        seconds = now - self.period_seconds - self._at
        self._read_at = now
        if seconds < self.period_seconds:
            return None
        self.lag.add(self.watts, self.period_seconds)
        return self._piece(self._at + seconds, self.watts * seconds, self.watts)

    def change(self, watts: float, at: float, now: float) -> Piece:
        """Add a reading that changed at ``at``."""
        assert self.watts is not None  # noqa: S101 - start() came first
        before, period = self.watts, self.period_seconds
        blind = max(0.0, min(now - self._read_at, at - self._at) - _GAP_PERIODS * period)
        own = min(period, at - self._at)
        held = max(0.0, at - self._at - own - blind)
        joules = before * held + 0.5 * (before + watts) * blind + watts * own
        self.watts, self._read_at = watts, now
        self.lag.add(watts, period)
        piece = self._piece(at, joules, before)
        if not blind:
            return piece
        unseen = (max(watts, before) * blind) ** 2 / 12
        return piece._replace(variance=unseen, gap=blind > 2 * _GAP_PERIODS * period)

    def _piece(self, at: float, joules: float, before: float) -> Piece:
        assert self.watts is not None  # noqa: S101 - start() came first
        # What was given out stays when the delay turns out to be another.
        self._sum += joules + (self._delay - self.lag.seconds) * before
        self._delay = delay = self.lag.seconds
        stated = self._sum + delay * self.watts
        total = max(self._given, stated)
        given, self._given = self._given, total
        longest = max(delay, self.lag.longest_seconds(self.period_seconds))
        moved = abs(self.watts - before) * longest**2 / (2 * self.period_seconds)
        self._at = at
        return Piece(at, total - given, sigma_joules=_SHAPE * moved + total - stated)


class LagEstimate:
    """Mean delay of a sensor beyond its refresh period, learned from how it follows new loads.

    Args:
        expected_seconds: Delay by the catalog; holds until steps of the load show another one.
        error_seconds: Longest further delay until a step was seen.
    """

    def __init__(self, expected_seconds: float, error_seconds: float = 0.0) -> None:
        self.seconds = expected_seconds
        self._unknown = error_seconds > 0
        self._error = error_seconds
        self._seen: list[float] = []
        self._ramp: list[float] = []
        self._last: float | None = None

    def longest_seconds(self, period: float) -> float:
        """Longest delay that is possible, as far as can be told."""
        return max(self._error, 0.5 * period * max(0, len(self._ramp) - 2))

    def add(self, watts: float, period: float) -> None:
        """Learn from the next reading."""
        last, self._last = self._last, watts
        if last is None:
            return
        if abs(watts - last) > _NOISE * max(watts, last):
            self._ramp = [*(self._ramp or [last]), watts]
        elif self._ramp:
            self._judge([*self._ramp, watts], period)
            self._ramp = []

    def _judge(self, ramp: list[float], period: float) -> None:
        swing = ramp[-1] - ramp[0]
        steps = [(late - early) / swing for early, late in pairwise(ramp)] if swing else [0.0]
        if abs(swing) < _NEW_LOAD * max(ramp) or min(steps[:-1]) < 0:
            return  # noise, or no single step
        # The step itself came half a period before the first reading that shows it, on average.
        area = sum((ramp[-1] - watts) / swing for watts in ramp[1:])
        at_once = max(steps) > _AT_ONCE
        self._error = 0.0
        self._seen = [*self._seen, 0.0 if at_once else max(0.0, area - 0.5) * period][-4:]
        # A ramp may also be a load that moves slowly or ends early, but no sensor that lags jumps.
        if at_once or self._unknown:
            self.seconds = sum(self._seen) / len(self._seen)
