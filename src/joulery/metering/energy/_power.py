"""Energy of a power sensor without a counter, from its readings.

A reading is the mean power over some time before its refresh. One that averages over its refresh
period therefore gives the energy of that period exactly, and the sum of the readings is a counter.
A reading that lags (a running mean over a second, a slow filter) is late by some time on average;
energy up to now is then the sum of the readings plus that time times the last one, which is exact
for a filter of first order and off by an eighth of a running mean's length at worst.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from joulery.metering._measurement import Flag
from joulery.metering.energy._repair import Advance

if TYPE_CHECKING:
    from joulery.hardware import PowerSensor

# Longest delay of any sensor of the catalog: half of a mean over a second.
_LONGEST_SECONDS = 0.5
# A change of power smaller than this, relative, may be noise; one larger than that is a new load.
_NOISE = 0.03  # readings of an A100 and a V100 move by 1 to 2 %
_NEW_LOAD = 0.15  # by hand
# Share of a step of the load that a sensor without delay shows in one refresh at least.
_AT_ONCE = 0.55  # on simulated boards
# More periods than this without a reading leave a gap that is interpolated.
_GAP_PERIODS = 2.5  # by hand
# A reading stands still once it moved by less than noise for this long.
_STILL_SECONDS = 0.1  # a period of the slowest sensor
# One sigma of a delay by the catalog or from a few steps, relative.
_LAG_ERROR = 0.15  # on simulated boards
# One sigma of the energy of a lagging sensor while its reading moves, relative to the extremes.
_SHAPE = 1.0  # on simulated boards


class PowerIntegral:
    """Adds up the readings of one sensor, from a first one on.

    Attributes:
        watts: Last reading.
        at_seconds: Moment up to which the energy was given out.
    """

    def __init__(self, sensor: PowerSensor, watts: float, now: float) -> None:
        self.period_seconds = sensor.period_seconds
        mean_lag = max(0.0, sensor.window_seconds - sensor.period_seconds) / 2
        self.lag = LagEstimate(sensor.lag_seconds + mean_lag, sensor.lag_error_seconds)
        self.watts = watts
        self.at_seconds = self._read_at = now
        # Sum of the readings, the largest energy given out so far, and the delay assumed for it.
        self._sum, self._given = 0.0, self.lag.seconds * watts
        self._delay = self.lag.seconds

    def repeat(self, now: float) -> Advance | None:
        """Go on with a reading that did not change; energy is sure up to a period ago."""
        seconds = now - self.period_seconds - self.at_seconds
        self._read_at = now
        if seconds < self.period_seconds:
            return None
        self.lag.add(self.watts, self.period_seconds)
        return self._advance(self.at_seconds + seconds, self.watts * seconds, self.watts)

    def change(self, watts: float, at: float, now: float) -> Advance:
        """Add a reading that changed at ``at``."""
        before, period = self.watts, self.period_seconds
        blind = max(0.0, min(now - self._read_at, at - self.at_seconds) - _GAP_PERIODS * period)
        fresh = min(period, at - self.at_seconds)
        steady = max(0.0, at - self.at_seconds - fresh - blind)
        joules = before * steady + 0.5 * (before + watts) * blind + watts * fresh
        self.watts, self._read_at = watts, now
        self.lag.add(watts, period)
        advance = self._advance(at, joules, before)
        if not blind:
            return advance
        unseen = (max(watts, before) * blind) ** 2 / 12
        flag = Flag.GAP if blind > 2 * _GAP_PERIODS * period else None
        return advance._replace(variance=unseen, flag=flag)

    def _advance(self, at: float, joules: float, before: float) -> Advance:
        # What was given out before the load changed stays when that shows another delay.
        self._sum += joules + (self._delay - self.lag.seconds) * self.lag.from_watts
        self._delay = delay = self.lag.seconds
        energy = self._sum + delay * self.watts
        total = max(self._given, energy)
        previous, self._given = self._given, total
        longest = max(delay, self.lag.longest_seconds(self.period_seconds))
        sigma = abs(self.watts - before) * longest**2 / (2 * self.period_seconds)
        self.at_seconds = at
        return Advance(total - previous, sigma_joules=_SHAPE * sigma + total - energy)


class LagEstimate:
    """Mean delay of a sensor beyond its refresh period, learned from how it follows new loads.

    Args:
        expected_seconds: Delay by the catalog; holds until steps of the load show another one.
        error_seconds: Longest further delay until a step was seen; 0 for a sensor that is known.

    Attributes:
        seconds: Mean delay.
        from_watts: Power up to which it held when it was last learned.
        error_seconds: One sigma of ``seconds``.
    """

    def __init__(self, expected_seconds: float, error_seconds: float = 0.0) -> None:
        self.seconds = expected_seconds
        self.from_watts = 0.0
        self.error_seconds = max(error_seconds, _LAG_ERROR * expected_seconds)
        self._unknown = error_seconds > 0
        self._seen: list[float] = []
        self._recent: list[float] = []
        self._ramp: list[float] = []

    def longest_seconds(self, period: float) -> float:
        """Longest delay that the readings allow."""
        unseen = self.error_seconds if self._unknown and not self._seen else 0.0
        ramp = 0.5 * period * max(0, len(self._ramp) - 2)
        return max(unseen, min(ramp, _LONGEST_SECONDS if self._unknown else 2 * self.seconds))

    def add(self, watts: float, period: float) -> None:
        """Learn from the next reading."""
        reach = 1 + max(1, round(_STILL_SECONDS / period))
        self._recent = [*self._recent, watts][-reach:]
        start = self._recent[0]
        if abs(watts - start) > _NOISE * max(watts, start):
            self._ramp = [*(self._ramp or self._recent[:-1]), watts]
        elif self._ramp:
            self._judge([*self._ramp, watts], period)
            self._ramp = []

    def _judge(self, ramp: list[float], period: float) -> None:
        swing = ramp[-1] - ramp[0]
        if abs(swing) < _NEW_LOAD * max(ramp):
            return  # noise
        distances = [(ramp[-1] - watts) / swing for watts in ramp]
        while distances[1] > 1.0 - _NOISE:
            distances.pop(0)
        steps = [early - late for early, late in pairwise(distances)]
        if min(steps) < -_NOISE:
            return  # no single step
        # The step itself came half a period before the first reading that shows it, on average.
        at_once = max(steps) > _AT_ONCE
        lag = 0.0 if at_once else max(0.0, sum(distances[1:]) - 0.5) * period
        self._seen = [*self._seen, lag][-4:]
        # A ramp may also be a load that moves slowly or ends early, but no sensor that lags jumps.
        if at_once or self._unknown:
            self.seconds = sum(self._seen) / len(self._seen)
            self.from_watts = ramp[0] if len(self._seen) == 1 else ramp[-1]
            self.error_seconds = _LAG_ERROR * (self.seconds + period)
