"""Token buckets that limit the rate of each caller's requests."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


class RateLimiter:
    """A token bucket per caller, kept as the time at which it was or will be empty.

    Args:
        per_second: Rate at which a bucket fills.
        burst: Capacity of a bucket.
        remembered: Number of buckets that are kept; the least recently used is dropped first.
    """

    def __init__(self, per_second: float, burst: float, remembered: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._remembered = remembered
        self._empty_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._empty_at)

    def wait_seconds(self, caller: Hashable, now: float, amount: float = 1.0) -> float:
        """0 where a call may be made, whose ``amount`` is then taken; else the time to wait.

        A call may take more than there is, so that an ``amount`` above the capacity passes once.
        """
        if self._tokens(caller, now) < min(1.0, amount):
            return (1.0 - self._tokens(caller, now)) / self._per_second
        self.reserve_seconds(caller, now, amount)
        return 0.0

    def reserve_seconds(self, caller: Hashable, now: float, amount: float = 1.0) -> float:
        """Take ``amount`` in any case; the time after which the call may be served."""
        tokens = self._tokens(caller, now)
        self._empty_at[caller] = now + (amount - tokens) / self._per_second
        self._empty_at.move_to_end(caller)
        if len(self._empty_at) > self._remembered:
            self._empty_at.popitem(last=False)
        return max(0.0, (min(1.0, amount) - tokens) / self._per_second)

    def exhausted(self, caller: Hashable, now: float) -> bool:
        """Whether a call would have to wait; counts nothing."""
        return self._tokens(caller, now) < 1.0

    def _tokens(self, caller: Hashable, now: float) -> float:
        if caller not in self._empty_at:
            return self._burst
        return min(self._burst, (now - self._empty_at[caller]) * self._per_second)
