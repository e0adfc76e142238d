"""What boards draw beside what their caps say, and how a meter's total differs from both.

A board with a job draws a share of its cap that is its own; one without a job, or whose job is
stopped, draws what was measured at rest. Their sum with the hosts is what a meter should read. The
difference, by which caps are trimmed, is followed upwards at once and downwards slowly.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.cluster._nodes import DeviceState

# A board that has not shown what it draws of its cap counts as drawing 10 % more, as far as boards
# were seen to; it shows it in the first reading of at least this share of a cap, of a loaded board.
UNKNOWN_SHARE, _LOADED_SHARE = 1.1, 0.85
# Largest share of a cap that is believed; by hand: beyond it a sensor is broken.
MOST_SHARE = 1.3
# Shares, draws at rest and corrections fall with these time constants; chosen on the emulated
# plant of the tests: longer leaves watts unused after a change, shorter exceeds more often.
_SHARE_SECONDS, _REST_SECONDS, _CORRECTION_SECONDS = 300.0, 10.0, 300.0
# A correction begins at none, which counts like so much time of readings; by hand: jobs load for
# a minute before they draw their caps.
DOUBT_SECONDS = 60.0
# Above the mean difference by so many standard deviations: exceeded in one of 6,000 readings, and
# between them by more; chosen on the emulated plant of the tests, where 3.3 met the goal narrowly.
_DEVIATIONS = 3.6
# Differences below this are noise of any meter; by hand.
_NOISE = 0.002
# A cap counts as unchanged within this share; by hand: trims move caps a little in each tick.
_SAME_SHARE = 0.03
# Power follows a cap within this time; by hand: boards take up to a second, sensors another.
SETTLING_SECONDS = 3.0
# Power at rest is learned so long after a job's end or stop; by hand: queued kernels, lower clocks.
_RESTING_SECONDS = 15.0


class BoardDraws:
    """Share of its cap that each board draws under a job, and its power at rest.

    Some boards cannot draw as little as their least cap, which says nothing about higher ones: what
    a board draws under its least cap is kept apart.

    Attributes:
        shares: Share of caps above the least, of boards that have shown it.
        least: Share of the least cap.
    """

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}
        self.least: dict[str, float] = {}
        self._rest: dict[str, float] = {}
        self._caps: dict[str, float] = {}
        # Seconds since a job of the board ended or was stopped.
        self._rested: dict[str, float] = {}

    def note(self, devices: Iterable[DeviceState], busy: set[str], seconds: float) -> None:
        """Add a reading of each board.

        Args:
            devices: Boards as their governors report them.
            busy: Ids of boards whose job runs.
            seconds: Time since the last reading.
        """
        for device in devices:
            before = self._caps.get(device.id, 0.0)
            settled = abs(device.cap_watts - before) <= _SAME_SHARE * device.cap_watts
            self._caps[device.id] = device.cap_watts
            rested = self._rested.get(device.id, math.inf) + seconds
            self._rested[device.id] = 0.0 if device.id in busy else rested
            if device.is_stale or device.cap_watts <= 0:
                continue
            if device.id not in busy:
                if rested >= _RESTING_SECONDS:
                    _follow(self._rest, device.id, device.watts, 0.0, seconds / _REST_SECONDS)
            elif settled and device.promised_watts is None:
                share = min(MOST_SHARE, round(device.watts / device.cap_watts, 2))
                is_least = device.cap_watts <= (1 + _SAME_SHARE) * device.least_watts
                shares = self.least if is_least else self.shares
                if device.id in shares or share >= _LOADED_SHARE:
                    _follow(shares, device.id, share, 0.0, seconds / _SHARE_SECONDS)

    def share(self, device: DeviceState) -> float:
        """Share of caps above the least that a board draws at most under a job."""
        unknown = max(UNKNOWN_SHARE, self.least.get(device.id, 0.0))
        return self.shares.get(device.id, unknown)

    def least_watts(self, device: DeviceState) -> float:
        """Power of a board under its least cap with a job."""
        return device.least_watts * self.least.get(device.id, self.share(device))

    def watts(self, device: DeviceState) -> float:
        """Power of a board under its cap with a job, or that its job promises."""
        watts = max(self.least_watts(device), device.cap_watts * self.share(device))
        return watts if device.promised_watts is None else min(watts, device.promised_watts)

    def rest_watts(self, device: DeviceState) -> float:
        """Power of a board at its least cap without a running job.

        A board that comes to rest counts as it draws, so that no other job is stopped for what it
        drew before.
        """
        highest = self.least_watts(device)
        if self._rested.get(device.id, math.inf) < _RESTING_SECONDS and not device.is_stale:
            return min(highest, device.watts)
        return min(highest, self._rest.get(device.id, math.inf))

    def usual_rest_watts(self, device: DeviceState) -> float | None:
        """Power of a board once it has come to rest; None where that was never measured."""
        rest = self._rest.get(device.id)
        return None if rest is None else min(rest, self.least_watts(device))


def _follow(values: dict[str, float], name: str, value: float, first: float, step: float) -> None:
    """Move a value up at once, and down by a share of the way."""
    before = values.get(name, first)
    values[name] = max(value, before + min(1.0, step) * (value - before))


class Correction:
    """Metered power relative to its model: the share by which a part draws more, or less.

    Args:
        lowest: Lowest correction, such as -0.1: watts that are not drawn are handed out again up
            to that share.
        doubt: Share by which the part may draw more until a meter was read for a minute.
        highest: Highest correction; beyond it only an alarm helps.
    """

    def __init__(self, lowest: float, doubt: float = 0.0, highest: float = 0.3) -> None:
        self._lowest, self._doubt, self._highest = lowest, doubt, highest
        self._mean = self._variance = self._peak = 0.0
        self._seconds = 0.0
        self._models: deque[tuple[float, float]] = deque()

    @property
    def learned(self) -> list[float]:
        """What readings have taught, for the next agent."""
        return [self._mean, self._variance, self._peak, self._seconds]

    def recall(self, learned: list[float]) -> None:
        """Continue from what an earlier agent has learned."""
        self._mean, self._variance, self._peak, self._seconds = map(float, learned)

    def expect(self, now: float, watts: float) -> None:
        """Note what is expected from now on."""
        self._models.append((now, watts))
        while len(self._models) > 1 and self._models[1][0] < now - 120.0:
            self._models.popleft()

    def note(self, at: float, watts: float, seconds: float) -> None:
        """Add a reading of the meter, taken at a time of the same clock."""
        before = [watts for time, watts in self._models if time < at - SETTLING_SECONDS]
        models = [w for t, w in self._models if at - SETTLING_SECONDS <= t <= at] + before[-1:]
        if not models or max(models) <= 0:
            return
        excess = round(min(self._highest, max(self._lowest, watts / max(models) - 1.0)), 4)
        self._seconds += seconds
        step = min(1.0, seconds / min(_CORRECTION_SECONDS, DOUBT_SECONDS + self._seconds))
        # Jobs that load, or wait for data, draw less for a while, which says nothing about peaks.
        difference = max(excess - self._mean, -2.0 * math.sqrt(self._variance) - _NOISE)
        self._mean += step * difference
        self._variance = (1.0 - step) * (self._variance + step * difference**2)
        usual = self._mean + _DEVIATIONS * math.sqrt(self._variance)
        self._peak = max(excess, self._peak + step * (min(usual, self._peak) - self._peak))

    def share(self, *, is_stale: bool = False) -> float:
        """Share of the modelled power to add; a meter that is silent gives nothing back."""
        usual = self._mean + _DEVIATIONS * math.sqrt(self._variance)
        doubt = self._doubt * (1.0 - self._seconds / DOUBT_SECONDS)
        share = min(self._highest, max(usual, self._peak))
        share = max(share, doubt) if doubt > 0 else share
        return max(0.0, share) if is_stale or not self._seconds else share
