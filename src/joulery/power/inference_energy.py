"""Joules per request of a service, apart from what its boards draw while they wait.

Requests arrive at random, so energy over a while divided by the requests in it mostly tells how
busy that while was. Across many short whiles the two parts come apart: power rises with the rate
of requests, and what is left at rate zero is drawn by waiting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class _Sums:
    """Of one setting: counts and totals, and squares around their means."""

    whiles: int = 0
    seconds: float = 0.0
    requests: float = 0.0
    joules: float = 0.0
    rates: float = 0.0
    watts: float = 0.0
    rates_squared: float = 0.0
    rates_watts: float = 0.0


class RequestEnergy:
    """Learns joules per request by setting, and the watts of waiting in common."""

    def __init__(self) -> None:
        self._settings: dict[int, _Sums] = {}

    def add(self, setting: int, seconds: float, requests: int, joules: float) -> None:
        """Note a while of serving under one setting."""
        if seconds <= 0:
            return
        sums = self._settings.setdefault(setting, _Sums())
        rate, watts = requests / seconds, joules / seconds
        sums.whiles += 1
        sums.seconds += seconds
        sums.requests += requests
        sums.joules += joules
        sums.rates += rate
        sums.watts += watts
        sums.rates_squared += rate * rate
        sums.rates_watts += rate * watts

    def forget(self, setting: int) -> None:
        """Start afresh for a setting."""
        self._settings.pop(setting, None)

    def whiles(self, setting: int) -> int:
        """How many whiles are known of a setting."""
        found = self._settings.get(setting)
        return found.whiles if found else 0

    def per_request(self, setting: int) -> float:
        """Joules that one more request costs; NaN before any was served."""
        sums = self._settings.get(setting)
        if sums is None or sums.requests == 0:
            return math.nan
        return (sums.joules - self.waiting_watts() * sums.seconds) / sums.requests

    def waiting_watts(self) -> float:
        """Power at rate zero, from how power follows the rate within each setting."""
        spread = together = 0.0
        for sums in self._settings.values():
            spread += sums.rates_squared - sums.rates**2 / sums.whiles
            together += sums.rates_watts - sums.rates * sums.watts / sums.whiles
        seconds = sum(sums.seconds for sums in self._settings.values())
        if spread <= 0 or seconds <= 0:
            return 0.0
        slope = together / spread
        joules = sum(sums.joules for sums in self._settings.values())
        requests = sum(sums.requests for sums in self._settings.values())
        return min(max(0.0, (joules - slope * requests) / seconds), joules / seconds)
