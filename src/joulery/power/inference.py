"""Tune an inference service: the least energy at which a latency quantile keeps its bound.

Steps are requests here. The tuner walks down a ladder of limits while latencies leave room and
joules per request fall, one rung at a time. It climbs when room gets scarce, and goes to full
power at once when requests start to come late or the load jumps.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError, JouleryError
from joulery.power.closing import ClosedAtTheEnd
from joulery.power.inference_energy import RequestEnergy
from joulery.power.knob import LimitKnob
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.power.gauge import EnergyGauge
    from joulery.power.knob import Knob

_log = logging.getLogger("joulery")

_RUNGS = 13
_LOOK_SECONDS = 0.1
# Room to the bound: go down below the first share of it, up above the second, flee above the third.
_ROOMY, _TIGHT, _LATE = 0.75, 0.9, 0.97
_LEAST_REQUESTS = 40
# From this many times the usual load on, plus so many standard deviations, it is a new one.
_LOAD_JUMP, _LOAD_SIGMAS = 1.1, 4.0
_RATE_SECONDS = 1.0
# A rung must save this much, relative, to be worth its latency.
_WORTH = 0.003
# Energy is read this often; so many readings tell a rung's joules per request.
_ENERGY_SECONDS, _LEAST_WHILES = 0.5, 10
_CLEARLY = 0.02


@dataclass(frozen=True, slots=True)
class Slo:
    """A promise about latency.

    Attributes:
        seconds: The bound.
        quantile: Share of requests that must keep it.
        window_seconds: Over which sliding window it is judged.
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


@dataclass(slots=True)
class _Rung:
    """One rung of the ladder."""

    position: int
    barred_until: float = -math.inf


class InferenceTuner(ClosedAtTheEnd):
    """Keeps a latency promise at the least energy; call :meth:`request` for every one served.

    Args:
        devices: The boards of the service.
        slo: The promise.
        knob: What to turn; the devices' power limits through the governor unless given.
        gauge: Joules so far; without one, less power counts as less energy.
        clock: Real or virtual.
        dwell_seconds: Least time on a rung before going further down.

    Attributes:
        failure: Why tuning stopped; None while all is well.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        slo: Slo,
        *,
        knob: Knob | None = None,
        gauge: EnergyGauge | None = None,
        clock: Clock = REAL_CLOCK,
        dwell_seconds: float = 3.0,
    ) -> None:
        self.failure: Exception | None = None
        self._slo = slo
        self._knob: Knob = knob or LimitKnob(tuple(devices))
        self._gauge = gauge
        self._clock = clock
        self._dwell = dwell_seconds
        self._rungs: list[_Rung] = []
        self._at = 0
        self._recent: deque[tuple[float, float]] = deque()
        self._arrivals: deque[float] = deque()
        self._since = -math.inf
        self._since_requests = 0
        self._energy = RequestEnergy()
        self._counted = (0.0, 0.0, 0)  # when, joules and requests at the last energy reading
        self._requests = 0
        self._usual_rate = 0.0
        self._next_look = -math.inf
        self._stopped = False

    @property
    def watts(self) -> float:
        """The limit in force."""
        return self._knob.value_at(self._rungs[self._at].position) if self._rungs else math.nan

    def request(self, latency_seconds: float) -> None:
        """Say that a request was answered, and how long it took. Never raises."""
        if self._stopped:
            return
        now = self._clock.now()
        self._recent.append((now, latency_seconds))
        self._arrivals.append(now)
        self._since_requests += 1
        self._requests += 1
        if now >= self._next_look:
            self._guarded_look(now)

    def waiting(self, oldest_seconds: float) -> None:
        """Say how long the oldest unanswered request has waited, where the service knows."""
        if not self._stopped and self._rungs and oldest_seconds > _LATE * self._slo.seconds:
            self._guarded(self._flee, self._clock.now())

    def close(self) -> None:
        """Stop, and give back what was found."""
        self._stopped = True
        try:
            self._knob.release()
        except JouleryError as error:
            _log.warning("service tuning: %s", error)

    def _guarded_look(self, now: float) -> None:
        self._next_look = now + _LOOK_SECONDS
        self._guarded(self._look, now)

    def _guarded(self, act: Callable[[float], None], now: float) -> None:
        # The edge to somebody's service: whatever goes wrong in here must not end it.
        try:
            act(now)
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            self.failure = error
            _log.warning("service tuning stopped, serving goes on as found: %s", error)
            self.close()

    def _look(self, now: float) -> None:
        if not self._rungs:
            self._begin(now)
        self._forget(now)
        rate = len(self._arrivals) / _RATE_SECONDS
        if now - self._counted[0] >= _ENERGY_SECONDS:
            self._count_energy(now)
        if self._in_danger(now):
            self._flee(now)
        elif self._at > 0 and self._jumped(rate):
            self._go(0, now)
        elif self._since_requests >= _LEAST_REQUESTS:
            self._adjust(now)

    def _begin(self, now: float) -> None:
        from joulery.objectives import EnergyDelayProduct
        from joulery.power.rules import Rules

        # Only its range is needed here: the ladder has its own way to choose.
        self._knob.machine(EnergyDelayProduct(), Rules())
        last = self._knob.positions() - 1
        places = sorted({round(last * n / (_RUNGS - 1)) for n in range(_RUNGS)}, reverse=True)
        self._rungs = [_Rung(position) for position in places]
        self._go(0, now)

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - self._slo.window_seconds:
            self._recent.popleft()
        while self._arrivals and self._arrivals[0] < now - _RATE_SECONDS:
            self._arrivals.popleft()

    def _in_danger(self, now: float) -> bool:
        """Whether requests of the last half second come late more often than promised."""
        fresh = [latency for at, latency in self._fresh(now - 0.5)]
        late = sum(latency > _LATE * self._slo.seconds for latency in fresh)
        return self._at > 0 and late > max(1.0, 2 * (1 - self._slo.quantile) * len(fresh))

    def _jumped(self, rate: float) -> bool:
        """Whether the load is beyond what chance makes of the usual one within a second."""
        usual = self._usual_rate
        return rate > _LOAD_JUMP * usual + _LOAD_SIGMAS * math.sqrt(usual)

    def _fresh(self, since: float) -> list[tuple[float, float]]:
        found = []
        for entry in reversed(self._recent):
            if entry[0] < since:
                break
            found.append(entry)
        return found

    def _flee(self, now: float) -> None:
        """Full power now; this rung and those below it are barred for a while."""
        for rung in self._rungs[max(1, self._at) :]:
            rung.barred_until = now + 4 * self._slo.window_seconds
        if self._at > 0:
            self._go(0, now)

    def _adjust(self, now: float) -> None:
        latencies = sorted(latency for _, latency in self._fresh(self._since))
        if not latencies:
            return
        tail = latencies[min(len(latencies) - 1, int(self._slo.quantile * len(latencies)))]
        if tail > _TIGHT * self._slo.seconds and self._at > 0:
            self._rungs[self._at].barred_until = now + 2 * self._slo.window_seconds
            self._go(self._at - 1, now)
            return
        if now - self._since < self._dwell:
            return
        self._usual_rate = self._since_requests / (now - self._since)
        if self._at > 0 and self._wasteful():
            for rung in self._rungs[self._at :]:
                rung.barred_until = now + 4 * self._slo.window_seconds
            self._go(self._at - 1, now)
            return
        below = min(self._at + 1, len(self._rungs) - 1)
        known = self._gauge is None or self._energy.whiles(self._at) >= _LEAST_WHILES
        roomy = tail < _ROOMY * self._slo.seconds
        if known and roomy and below != self._at and self._rungs[below].barred_until <= now:
            self._go(below, now)

    def _wasteful(self) -> bool:
        """Whether this rung costs no less per request than the one above; no if unknown."""
        if self._gauge is None or self._energy.whiles(self._at) < _LEAST_WHILES:
            return False
        here, above = (self._energy.per_request(rung) for rung in (self._at, self._at - 1))
        # Early on, only a clear case counts: the figures still waver.
        sure = self._energy.whiles(self._at) >= 3 * _LEAST_WHILES
        return here > above * (1 - _WORTH if sure else 1 + _CLEARLY)

    def _count_energy(self, now: float) -> None:
        """Book the while since the last reading under the rung that it was served on."""
        if self._gauge is None:
            return
        joules = self._gauge.read().joules
        since, joules_before, requests_before = self._counted
        if since >= self._since:
            self._energy.add(
                self._at, now - since, self._requests - requests_before, joules - joules_before
            )
        self._counted = (now, joules, self._requests)

    def _go(self, rung: int, now: float) -> None:
        self._at = rung
        self._knob.turn(self._rungs[rung].position)
        self._since, self._since_requests = now, 0
        if self._gauge is not None:
            self._counted = (now, self._gauge.read().joules, self._requests)
        if rung == 0:
            # What is usual now must be learnt anew before anybody goes down again.
            self._usual_rate = math.inf
