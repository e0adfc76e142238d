"""Tune an inference service: the least energy at which a latency quantile keeps its bound.

The tuner goes down a ladder of limits, one rung at a time, while latencies leave room and joules
per request fall. It goes up when room gets scarce, and to full power at once when requests start to
come late or the load jumps.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError
from joulery.fail_open import fail_open
from joulery.objectives import EnergyDelayProduct
from joulery.power._knobs import LimitKnob
from joulery.power._step_profiler import TunerConfig
from joulery.power._tuner import JouleCounter, KnobTuner
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.metering import Meter
    from joulery.power._knobs import Knob

_RUNGS = 13
# Least time at a rung before going further down.
_MINIMUM_HOLD_SECONDS = 3.0
_CHECK_SECONDS = 0.1
# Shares of the bound: go down below the first, up above the second, to full power above the third.
_ROOMY, _TIGHT, _LATE = 0.75, 0.9, 0.97
_LEAST_REQUESTS = 40
# From this many times the usual load on, plus so many standard deviations, it is a new one.
_LOAD_JUMP, _LOAD_SIGMAS = 1.1, 4.0
_RATE_SECONDS = 1.0
# A rung must save this much, relative, to be worth its latency.
_WORTH = 0.003
# Energy is read this often; joules per request of a rung need so many intervals.
_ENERGY_SECONDS, _LEAST_INTERVALS = 0.5, 10
# Until then a rung must cost this much more to be left; below 0.06 some of ten simulated services
# never left full power.
_CLEARLY = 0.1


@dataclass(frozen=True, slots=True)
class Slo:
    """A service-level objective on latency.

    Attributes:
        seconds: Upper bound of the latency.
        quantile: Share of requests that must keep it.
        window_seconds: Length of the sliding window that it refers to.
    """

    seconds: float
    quantile: float = 0.99
    window_seconds: float = 30.0

    def __post_init__(self) -> None:
        finite(self.seconds, "latency bound in seconds", minimum=0.0)
        finite(self.window_seconds, "window in seconds", minimum=1.0)
        if not 0.5 <= self.quantile < 1:
            raise InvalidValueError(
                f"quantile must be 0.5 to below 1, not {self.quantile}", remedy="give 0.99 for p99"
            )


class RequestEnergy:
    """Joules per request by setting, apart from what the boards draw while they wait.

    Requests arrive at random, so the energy of an interval divided by its requests mostly shows how
    busy the interval was. A regression over many short intervals separates the two parts: power
    rises with the rate of requests, and what is left at rate zero is drawn by waiting.
    """

    def __init__(self) -> None:
        # By setting, sums over its intervals: their number, seconds, requests, joules, rates,
        # watts, rates squared, rates times watts.
        self._sums: dict[int, NDArray[np.float64]] = {}

    def add(self, setting: int, seconds: float, requests: int, joules: float) -> None:
        """Add an interval under one setting."""
        if seconds > 0:
            rate, watts = requests / seconds, joules / seconds
            sums = [1, seconds, requests, joules, rate, watts, rate * rate, rate * watts]
            self._sums[setting] = self._sums.get(setting, np.zeros(8)) + sums

    def intervals(self, setting: int) -> int:
        """Number of intervals of a setting."""
        return int(self._sums[setting][0]) if setting in self._sums else 0

    def per_request(self, setting: int) -> float:
        """Joules of one more request; NaN before any was served."""
        if setting not in self._sums:
            return math.nan
        _, seconds, requests, joules = self._sums[setting][:4].tolist()
        return (joules - self.waiting_watts() * seconds) / requests if requests else math.nan

    def waiting_watts(self) -> float:
        """Power at rate zero, from how power follows the rate within each setting."""
        count, seconds, requests, joules, rates, watts, squares, products = np.array(
            list(self._sums.values())
        ).T
        spread = float((squares - rates**2 / count).sum())
        if spread <= 0:
            return 0.0
        slope = float((products - rates * watts / count).sum()) / spread
        mean_watts = joules.sum() / seconds.sum()
        return float(np.clip(mean_watts - slope * requests.sum() / seconds.sum(), 0.0, mean_watts))


class InferenceTuner(KnobTuner):
    """Keeps a latency objective at the least energy; call :meth:`request` for every one served.

    Args:
        devices: Boards of the service.
        slo: Latency objective.
        knob: Knob to set; the devices' power limits through the governor unless given.
        meter: Meter of the devices; without one, less power counts as less energy.
        clock: Real or virtual clock.
    """

    _purpose, _user = "service tuning", "serving"

    def __init__(
        self,
        devices: Sequence[Device],
        slo: Slo,
        *,
        knob: Knob | None = None,
        meter: Meter | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        super().__init__(knob or LimitKnob(devices), meter, clock)
        self._slo = slo
        self._prepared: Future[None] | None = None
        self._rungs: list[int] = []  # knob positions, highest first
        self._barred_until = np.full(_RUNGS, -math.inf)
        self._at = 0
        self._recent: deque[tuple[float, float]] = deque()
        self._since = -math.inf
        self._since_requests = 0
        self._energy = RequestEnergy()
        self._counted = (0.0, 0.0, 0)  # when, joules and requests at the last energy reading
        self._requests = 0
        self._usual_rate = 0.0
        self._load_began = (0.0, 0)  # when full power was last taken up, and requests until then
        self._next_check = -math.inf
        self._stopped = False

    @property
    def watts(self) -> float:
        """The limit in force."""
        return self._knob.values[self._rungs[self._at]] if self._rungs else math.nan

    def request(self, latency_seconds: float) -> None:
        """Report that a request was answered, and its latency. Never raises."""
        if self._stopped:
            return
        now = self._clock.now()
        self._recent.append((now, latency_seconds))
        self._since_requests += 1
        self._requests += 1
        if now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            self._check(now)

    def waiting(self, oldest_seconds: float) -> None:
        """Report how long the oldest unanswered request has waited, where that is known."""
        if not self._stopped and self._rungs and oldest_seconds > _LATE * self._slo.seconds:
            self._go_to_full_power(self._clock.now())

    def close(self) -> None:
        """Stop, and restore what was found."""
        self._stopped = True
        super().close()

    @fail_open(None)
    def _check(self, now: float) -> None:
        if self._prepared is None:
            self._prepared = self._driver.submit(self._prepare)
        if (failure := self._driver.failure) is not None:
            raise failure
        if not self._prepared.done():
            return  # serving goes on as found
        if not self._rungs:
            self._begin(now)
        while self._recent and self._recent[0][0] < now - self._slo.window_seconds:
            self._recent.popleft()
        if now - self._counted[0] >= _ENERGY_SECONDS:
            self._count_energy(now)
        if self._in_danger(now):
            self._go_to_full_power(now)
        elif self._at > 0 and self._load_jumped(now):
            self._go(0, now)
        elif self._since_requests >= _LEAST_REQUESTS:
            self._adjust(now)

    def _prepare(self) -> None:
        # Only its positions are needed here: the ladder has its own way to choose.
        self._knob.machine(EnergyDelayProduct(), TunerConfig())
        if self._meter is not None:
            self._counter = JouleCounter(self._meter)

    def _begin(self, now: float) -> None:
        last = len(self._knob.values) - 1
        places = {round(last * n / (_RUNGS - 1)) for n in range(_RUNGS)}
        self._rungs = sorted(places, reverse=True)
        self._go(0, now)

    def _in_danger(self, now: float) -> bool:
        """Whether requests of the last half second are late more often than the bound allows."""
        fresh = self._latencies(now - 0.5)
        late = sum(latency > _LATE * self._slo.seconds for latency in fresh)
        return self._at > 0 and late > max(1.0, 2 * (1 - self._slo.quantile) * len(fresh))

    def _load_jumped(self, now: float) -> bool:
        """Whether the load is beyond what chance makes of the usual one within a second."""
        usual, rate = self._usual_rate, len(self._latencies(now - _RATE_SECONDS)) / _RATE_SECONDS
        return rate > _LOAD_JUMP * usual + _LOAD_SIGMAS * math.sqrt(usual)

    def _latencies(self, since: float) -> list[float]:
        """Latencies of the requests that were answered since a moment within the window."""
        fresh = takewhile(lambda entry: entry[0] >= since, reversed(self._recent))
        return [latency for _, latency in fresh]

    @fail_open(None)
    def _go_to_full_power(self, now: float) -> None:
        """Full power at once; this rung and those below it are barred for some time."""
        self._barred_until[max(1, self._at) :] = now + 4 * self._slo.window_seconds
        if self._at > 0:
            self._go(0, now)

    def _adjust(self, now: float) -> None:
        latencies = sorted(self._latencies(self._since))
        if not latencies:
            return
        tail = latencies[min(len(latencies) - 1, int(self._slo.quantile * len(latencies)))]
        if tail > _TIGHT * self._slo.seconds and self._at > 0:
            self._barred_until[self._at] = now + 2 * self._slo.window_seconds
            self._go(self._at - 1, now)
            return
        if now - self._since < _MINIMUM_HOLD_SECONDS:
            return
        began, requests = self._load_began
        self._usual_rate = (self._requests - requests) / (now - began)
        if self._at > 0 and self._wasteful():
            self._barred_until[self._at :] = now + 4 * self._slo.window_seconds
            self._go(self._at - 1, now)
            return
        below = min(self._at + 1, len(self._rungs) - 1)
        known = self._counter is None or self._energy.intervals(self._at) >= _LEAST_INTERVALS
        roomy = tail < _ROOMY * self._slo.seconds
        if known and roomy and below != self._at and self._barred_until[below] <= now:
            self._go(below, now)

    def _wasteful(self) -> bool:
        """Whether this rung costs no less per request than the one above; no if unknown."""
        if self._counter is None or self._energy.intervals(self._at) < _LEAST_INTERVALS:
            return False
        here, above = (self._energy.per_request(rung) for rung in (self._at, self._at - 1))
        # Early on, only a clear case counts: the figures still waver.
        sure = self._energy.intervals(self._at) >= 3 * _LEAST_INTERVALS
        return here > above * (1 - _WORTH if sure else 1 + _CLEARLY)

    def _count_energy(self, now: float) -> None:
        """Count the interval since the last reading under the rung that it was served on."""
        if self._counter is None:
            return
        joules = self._counter.read()[0]
        since, joules_before, requests_before = self._counted
        if since >= self._since:
            self._energy.add(
                self._at, now - since, self._requests - requests_before, joules - joules_before
            )
        self._counted = (now, joules, self._requests)

    def _go(self, rung: int, now: float) -> None:
        self._at = rung
        self._driver.submit(partial(self._knob.set_position, self._rungs[rung]))
        self._since, self._since_requests = now, 0
        if self._counter is not None:
            self._counted = (now, self._counter.read()[0], self._requests)
        if rung == 0:
            # The usual rate must be learned again before going down again.
            self._usual_rate = math.inf
            self._load_began = (now, self._requests)
