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
    from collections.abc import Iterable, Mapping

    from joulery.cluster._nodes import DeviceState

# A board that has not shown what it draws of its cap counts as drawing 10 % more, as far as boards
# were seen to; it shows it in two like readings of at least this share of a cap, of a loaded board.
UNKNOWN_SHARE, _LOADED_SHARE = 1.1, 0.85
# Largest share of a cap that is believed; by hand: beyond it a sensor is broken.
MOST_SHARE = 1.3
# Shares of loaded boards, of boards whose load may have changed, and draws at rest fall with these
# time constants; chosen on the emulated plant of the tests: longer leaves watts unused after a
# change, shorter exceeds more often.
_LOADED_SECONDS, _SHARE_SECONDS, _REST_SECONDS = 30.0, 300.0, 10.0
# Differences of a meter are followed with this time constant; chosen as those above.
_CORRECTION_SECONDS = 60.0
# However long a tick is, a reading moves what was learned by this share at most: peaks are only
# seen in many readings; chosen as those above.
_STEP = 1 / 40
# Readings count towards what is known while the expected power leaves so much of it open; by hand.
_TELLING = 0.01
# Hosts count as their worst case at first, and less so within this time of readings; by hand.
_HOST_SECONDS = 30.0
# Above the mean difference by so many standard deviations: exceeded in one of 6,000 readings, and
# between them by more; chosen on the emulated plant of the tests, where 3.3 met the goal narrowly.
_DEVIATIONS = 3.6
# Corrections are at most this share of the power; by hand: beyond it only an alarm helps.
_MOST_CORRECTION = 0.3
# A cap counts as unchanged within this share; by hand: trims move caps a little in each tick.
_SAME_SHARE = 0.003
# Caps within this range are nearly the same; by hand.
_SAME_RANGE = 1.03
# Readings follow a cap within the first time; by hand: boards take up to a second, sensors another.
# Jobs come to rest within the second.
_FOLLOWING_SECONDS, SETTLING_SECONDS = 2.0, 3.0
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
        # Highest share of some minutes, under any cap.
        self._peaks: dict[str, float] = {}
        self.least: dict[str, float] = {}
        self._rest: dict[str, float] = {}
        self._now = 0.0
        # Caps of each board that its power may still show, and when each was first seen.
        self._caps: dict[str, list[tuple[float, float]]] = {}
        # Last share of each board whose share is not known.
        self._seen: dict[str, float] = {}
        # Seconds since a job of the board ended or was stopped.
        self._rested: dict[str, float] = {}

    def recall(self, shares: Mapping[str, float], least: Mapping[str, float]) -> None:
        """Continue from what an earlier agent has learned."""
        self.shares, self.least, self._peaks = dict(shares), dict(least), dict(shares)

    def note(self, devices: Iterable[DeviceState], busy: set[str], seconds: float) -> None:
        """Add a reading of each board.

        Args:
            devices: Boards as their governors report them.
            busy: Ids of boards whose job runs.
            seconds: Time since the last reading.
        """
        self._now += seconds
        for device in devices:
            is_new = device.id not in self._caps
            self.note_cap(device)
            rested = self._rested.get(device.id, math.inf) + seconds
            self._rested[device.id] = 0.0 if device.id in busy else rested
            if device.is_stale or device.cap_watts <= 0:
                continue
            if device.id in busy:
                if device.promised_watts is None and not is_new:
                    self._note_share(device, seconds)
            elif rested >= _RESTING_SECONDS:
                _follow(self._rest, device.id, device.watts, 0.0, seconds / _REST_SECONDS)

    def note_cap(self, device: DeviceState) -> None:
        """Note the cap that is in force from now on."""
        caps, cap = self._caps.get(device.id), device.cap_watts
        if caps is None:
            # A board that draws more than its cap when first seen may have just had a higher one.
            caps = self._caps[device.id] = [(-math.inf, max(cap, device.watts))]
        if abs(cap - caps[-1][1]) > _SAME_SHARE * cap:
            caps.append((self._now, cap))
        while len(caps) > 1 and caps[1][0] <= self._now - _FOLLOWING_SECONDS:
            del caps[0]

    def _note_share(self, device: DeviceState, seconds: float) -> None:
        """Note the share of its cap that a board draws, as far as a changed cap leaves it open."""
        caps = [watts for _, watts in self._caps[device.id]]
        least = _SAME_RANGE * device.least_watts
        if min(caps) <= least < max(caps):
            return
        shares = self.least if max(caps) <= least else self.shares
        lowest, highest = (round(device.watts / edge(caps), 3) for edge in (max, min))
        before = shares.get(device.id)
        if before is None:
            # While a job loads its boards draw more with each reading.
            earlier, self._seen[device.id] = self._seen.get(device.id, 0.0), lowest
            if lowest >= _LOADED_SHARE and highest <= _SAME_RANGE * min(lowest, earlier):
                shares[device.id] = min(MOST_SHARE, highest)
        elif lowest > before:
            shares[device.id] = min(MOST_SHARE, lowest)
        elif highest < before:
            time = _LOADED_SECONDS if highest >= _LOADED_SHARE else _SHARE_SECONDS
            shares[device.id] = before + min(_STEP, seconds / time) * (highest - before)
        if device.id in self.shares:
            _follow(self._peaks, device.id, self.shares[device.id], 0.0, seconds / _SHARE_SECONDS)

    def share(self, device: DeviceState) -> float:
        """Share of caps above the least that a board draws at most under a job."""
        unknown = max(UNKNOWN_SHARE, self.least.get(device.id, 0.0))
        return self.shares.get(device.id, unknown)

    def cap_for(self, device: DeviceState, watts: float, least_share: float) -> float:
        """Cap under which a board draws so much at most.

        A board whose load needed less than its cap may need all of a lower one.
        """
        share = max(least_share, self.share(device))
        if watts / share < device.cap_watts / _SAME_RANGE:
            share = max(share, self._peaks.get(device.id, share))
        return min(device.most_watts, max(device.least_watts, watts / share))

    def least_watts(self, device: DeviceState) -> float:
        """Power of a board under its least cap with a job."""
        return device.least_watts * self.least.get(device.id, self.share(device))

    def watts(self, device: DeviceState) -> float:
        """Power of a board under its cap with a job, or that its job promises."""
        watts = max(self.least_watts(device), device.cap_watts * self.share(device))
        return watts if device.promised_watts is None else min(watts, device.promised_watts)

    def range_watts(self, device: DeviceState, *, is_busy: bool) -> tuple[float, float]:
        """What a board counts as drawing now, from and to, where its load needs all of its cap.

        A board that draws less counts as it draws: it says nothing of what the others do.
        """
        if device.is_stale:
            return 0.0, self.watts(device)
        if not is_busy or device.promised_watts:
            return device.watts, device.watts
        caps = [watts for _, watts in self._caps.get(device.id, ((0.0, device.cap_watts),))]
        low, high = min(caps), max(caps)
        if device.watts < _LOADED_SHARE * low:
            return device.watts, device.watts
        share, least = self.share(device), self.least_watts(device)
        lowest, highest = max(least, share * low), max(least, share * high)
        return (lowest if device.id in self.shares else min(lowest, device.watts)), highest

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
    """Watts that a part draws beyond what its boards' readings and stated hosts say.

    Args:
        trim: Share of the power up to which watts that are not drawn are handed out again.
        doubt_watts: Watts that the part may draw beyond until a meter was read for a minute.
    """

    def __init__(self, trim: float, doubt_watts: float = 0.0) -> None:
        self._trim, self._doubt = trim, doubt_watts
        self._mean = self._variance = self._peak = 0.0
        self._seconds = self._power = 0.0
        # Times, and the least and most power that is expected at each.
        self._expected: deque[tuple[float, float, float]] = deque()

    @property
    def learned(self) -> list[float]:
        """What readings have taught, for the next agent."""
        return [self._mean, self._variance, self._peak, self._seconds, self._power]

    def recall(self, learned: list[float]) -> None:
        """Continue from what an earlier agent has learned."""
        self._mean, self._variance, self._peak, self._seconds, self._power = map(float, learned)

    def expect(self, now: float, least: float, most: float) -> None:
        """Note between which powers the part is expected to draw now."""
        self._expected.append((now, least, most))
        while len(self._expected) > 1 and self._expected[1][0] < now - 120.0:
            self._expected.popleft()

    def note(self, at: float, watts: float, seconds: float) -> None:
        """Add a reading of the meter, taken at a time of the same clock.

        What the expected power leaves open teaches nothing.
        """
        before = [row for row in self._expected if row[0] < at - _FOLLOWING_SECONDS][-1:]
        rows = [row for row in self._expected if row[0] >= at - _FOLLOWING_SECONDS]
        after = next((n for n, row in enumerate(rows) if row[0] >= at), len(rows))
        rows = before + rows[: after + 1]
        if not rows:
            return
        lowest = watts - max(most for _, _, most in rows)
        highest = watts - min(least for _, least, _ in rows)
        self._power, step = watts, min(_STEP, seconds / _CORRECTION_SECONDS)
        difference = min(max(self._mean, lowest), highest) - self._mean
        if highest - lowest <= _TELLING * watts and seconds:
            self._seconds += seconds
            step = max(step, seconds / self._seconds)  # the first readings count alike
            difference = (lowest + highest) / 2 - self._mean
        self._mean += step * difference
        self._variance = (1.0 - step) * (self._variance + step * difference**2)
        self._peak = max(lowest, self._peak + step * (min(self._usual, self._peak) - self._peak))

    @property
    def _usual(self) -> float:
        return self._mean + _DEVIATIONS * math.sqrt(self._variance)

    def watts(self, *, is_stale: bool = False) -> float:
        """Watts to set aside, or to hand out; a meter that is silent gives nothing back."""
        doubt = self._doubt * (1.0 - self._seconds / _HOST_SECONDS)
        watts = max(self._usual, self._peak)
        watts = max(watts, doubt) if doubt > 0 else watts
        watts = min(_MOST_CORRECTION * self._power, max(-self._trim * self._power, watts))
        return max(0.0, watts) if is_stale or not self._seconds else watts
