"""Limits of a server: on each request, on each caller, and on all together."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Hashable


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server process.

    Attributes:
        body_bytes: Largest body of a request.
        head_bytes: Largest request line with headers.
        waiting_requests: Most requests in flight; more get 503.
        connections: Most open connections; more get 503.
        calls_per_second: Mean rate of calls with one token.
        burst_calls: Most calls with one token at once.
        failures_per_second: Mean rate of calls with invalid tokens from one address.
        body_seconds: Longest time for a body to arrive.
        idle_seconds: Longest time that a connection stays open without a request.
        remembered: Number of tokens, of addresses and of jobs that are cached.
    """

    body_bytes: int = 1_000_000
    head_bytes: int = 16_384
    waiting_requests: int = 4000
    connections: int = 8000
    calls_per_second: float = 5000.0
    burst_calls: float = 10_000.0
    failures_per_second: float = 20.0
    body_seconds: float = 20.0
    idle_seconds: float = 75.0
    remembered: int = 10_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InvalidValueError(
                    f"{field.name} must be more than 0, not {getattr(self, field.name)!r}",
                    remedy="leave it out, or give a positive number",
                )


LIMITS = Limits()


class RateLimiter:
    """A token bucket per caller.

    Args:
        per_second: Rate at which a bucket fills.
        burst: Capacity of a bucket.
        remembered: Number of buckets that are kept; the least recently used is dropped first.
    """

    def __init__(self, per_second: float, burst: float, remembered: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._remembered = remembered
        self._buckets: OrderedDict[Hashable, list[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_seconds(self, caller: Hashable, now: float) -> float:
        """0 where a call may be made, which is then counted; else the time to wait."""
        bucket = self._bucket(caller, now)
        if bucket[0] >= 1.0:
            bucket[0] -= 1.0
            return 0.0
        return (1.0 - bucket[0]) / self._per_second

    def exhausted(self, caller: Hashable, now: float) -> bool:
        """Whether a call would have to wait; counts nothing."""
        return caller in self._buckets and self._bucket(caller, now)[0] < 1.0

    def _bucket(self, caller: Hashable, now: float) -> list[float]:
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = [self._burst, now]
            if len(self._buckets) > self._remembered:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(caller)
            bucket[0] = min(self._burst, bucket[0] + (now - bucket[1]) * self._per_second)
            bucket[1] = now
        return bucket
