"""Decisions that are held and never reported on do not stop a job from learning from the others."""

import heapq
import math

import numpy as np
import pytest

from joulery.jobs._replay import outcome_document
from joulery.storage import Event, EventKind
from joulery.testing.workloads import made_up_workload
from support.adversarial_clients import ClientSimulation, Scenario, _Client

LOAD = made_up_workload()
CLIENTS = 16
SEEDS = range(3)
LEASE_SECONDS = 600.0
HEARTBEATS_FOR_EVER = 1e15


class HeldDecisions(ClientSimulation):
    """Sixteen clients at work, besides holders that take decisions and say nothing.

    Args:
        seed: Seed of all that is random.
        holders: Which of the decisions are held, by the order in which they are asked for.
        lease_seconds: Time after which the service releases them.
        recurrences: Number of recurrences that are completed.
    """

    def __init__(
        self,
        seed,
        holders=lambda _number, _luck: False,
        lease_seconds=LEASE_SECONDS,
        recurrences=60,
    ):
        about = Scenario(recurrences, CLIENTS, lease_seconds=lease_seconds)
        super().__init__(LOAD, "joulery", seed, about)
        self._holders = holders
        self._coin = np.random.default_rng((seed, 5))
        self._asked = 0

    def _next(self, client, now):
        self._asked += 1
        held = self._holders(self._asked, self._coin)
        client.dies_after = 1 if held else math.inf
        super()._next(client, now)
        if held:  # somebody else does the work
            self._next(_Client(adversarial=False, dies_after=math.inf), now)

    def _die(self, client, now):
        body = outcome_document(None, self._job, client.action, client.recurrence)
        expired = Event(0, EventKind.EXPIRED, client.decision, body, 0.0)
        late = now + self._scenario.lease_seconds
        heapq.heappush(self._waiting, (late, client.decision, None, expired))


class NewestFirst(HeldDecisions):
    """The latest decision is always the next that is reported on."""

    def run(self):
        """Simulate; the others wait, as if they hung."""
        now = 0.0
        for _ in range(CLIENTS):
            self._next(_Client(adversarial=False, dies_after=math.inf), now)
        while len(self._log.costs) < self._scenario.recurrences:
            newest = max(self._waiting, key=lambda waiting: waiting[1])
            self._waiting.remove(newest)
            now += max(newest[2].truth.seconds, 1.0)
            self._end(newest[2], now)
        return self._log


def regrets(simulation, *options):
    """Regret per completed run, one of each seed; none of the jobs may be stuck."""
    logs = [simulation(seed, *options).run() for seed in SEEDS]
    assert all(log.failed == 0 for log in logs)
    assert all(np.median(log.regrets[-15:]) < 0.1 for log in logs)
    return np.array([np.mean(log.regrets) for log in logs])


@pytest.fixture(scope="module")
def honest():
    """Regrets where every decision is reported on."""
    return regrets(HeldDecisions)


@pytest.mark.parametrize("lease_seconds", [LEASE_SECONDS, HEARTBEATS_FOR_EVER])
def test_the_first_holders_cost_the_others_little(honest, lease_seconds):
    """Eight clients that hang, with or without heartbeats, would freeze a job."""
    found = regrets(HeldDecisions, lambda number, _: number <= 8, lease_seconds)
    error = (found - honest).std(ddof=1) / math.sqrt(len(SEEDS))
    assert found.mean() - 2 * error <= 1.1 * honest.mean()


def test_a_job_learns_from_the_newest_alone():
    """The oldest of sixteen would be waited for for ever."""
    regrets(NewestFirst)


@pytest.mark.parametrize("lease_seconds", [LEASE_SECONDS, HEARTBEATS_FOR_EVER])
def test_half_of_all_decisions_may_be_held(lease_seconds):
    """A cluster that loses every second worker would never leave the default."""
    regrets(HeldDecisions, lambda _, coin: coin.random() < 0.5, lease_seconds, 100)
