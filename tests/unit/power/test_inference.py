"""A queueing service on a virtual clock: the promise is kept, energy falls, load may change."""

import heapq

import numpy as np
import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError
from joulery.hardware import Faults, SimulatedGpu, catalog
from joulery.metering import Meter
from joulery.power import InferenceTuner, LimitKnob, Slo
from support.training_loop import held_here


class QueueingService:
    """Requests arrive at random, wait for one board, and are served one after the other."""

    def __init__(self, seed=0):
        self.clock = VirtualClock()
        self.gpu = SimulatedGpu(catalog.board("V100"), self.clock, seed=seed)
        work = catalog.workload("bert", self.gpu.board)
        self.work = work.scaled(0.01 / 0.56)  # about 10 ms per request at full power
        self.latencies = []  # (answered at, seconds)
        self._chance = np.random.default_rng(seed)

    def run(self, seconds, per_second, tuner):
        """Serve for a while at a given load."""
        end, arrivals = self.clock.now() + seconds, []
        moment = self.clock.now()
        while (moment := moment + self._chance.exponential(1 / per_second)) < end:
            heapq.heappush(arrivals, moment)
        while arrivals:
            arrived = heapq.heappop(arrivals)
            if arrived > self.clock.now():
                self.clock.sleep(arrived - self.clock.now())
            self.gpu.run(self.work)
            self.latencies.append((self.clock.now(), self.clock.now() - arrived))
            if tuner is not None:
                tuner.request(self.latencies[-1][1])

    def p99(self, since=0.0):
        """The 99th percentile of latencies from a moment on."""
        return float(np.quantile([s for at, s in self.latencies if at >= since], 0.99))


def tuned(service, slo, meter):
    """A tuner of that service."""
    return InferenceTuner(
        [service.gpu],
        slo,
        knob=LimitKnob([service.gpu], held_here),
        meter=meter,
        clock=service.clock,
    )


def test_promise_is_kept_at_less_energy():
    """Saving energy by breaking the promise is no saving, and keeping it at full power neither."""
    slo = Slo(0.1)
    plain, saving = QueueingService(), QueueingService()
    plain.run(120.0, 25, None)
    with Meter([saving.gpu], clock=saving.clock) as meter, tuned(saving, slo, meter) as tuner:
        saving.run(120.0, 25, tuner)
        assert tuner.failure is None
        assert tuner.watts < 200
    assert saving.p99() < slo.seconds
    assert saving.gpu.true_joules() < 0.9 * plain.gpu.true_joules()
    assert saving.gpu.power_limits().current_watts == 250, "closing gives the limit back"


def test_load_jump_brings_full_power_within_a_second():
    """A burst must not pile up behind a low limit."""
    slo = Slo(0.15)
    service = QueueingService(seed=2)
    with Meter([service.gpu], clock=service.clock) as meter, tuned(service, slo, meter) as tuner:
        service.run(90.0, 15, tuner)
        assert tuner.watts < 220
        burst = service.clock.now()
        seen = []

        class Watching:
            def request(self, latency):
                tuner.request(latency)
                seen.append((service.clock.now(), tuner.watts))

        service.run(20.0, 50, Watching())
        full = next(at for at, watts in seen if watts == 250)
        assert full - burst < 1.0
        assert service.p99(burst) < slo.seconds


def test_waiting_request_alone_is_danger_enough():
    """A service that stopped answering reports no latencies."""
    slo = Slo(0.1)
    service = QueueingService()
    with Meter([service.gpu], clock=service.clock) as meter, tuned(service, slo, meter) as tuner:
        service.run(60.0, 20, tuner)
        assert tuner.watts < 250
        tuner.waiting(0.05)
        assert tuner.watts < 250
        tuner.waiting(0.2)
        assert tuner.watts == 250


def test_trouble_does_not_reach_the_service(caplog):
    """An error of ours must not fail a user's request."""
    service = QueueingService()
    service.gpu.faults = Faults(no_permission=True)
    with (
        Meter([service.gpu], clock=service.clock) as meter,
        tuned(service, Slo(0.1), meter) as tuner,
    ):
        service.run(30.0, 20, tuner)
        assert tuner.failure is not None
    assert "serving goes on" in caplog.text


@pytest.mark.parametrize("options", [{"quantile": 1.0}, {"quantile": 0.1}, {"window_seconds": 0.0}])
def test_promises_must_make_sense(options):
    """A quantile of 1 can never be shown to hold."""
    with pytest.raises(InvalidValueError):
        Slo(0.1, **options)
