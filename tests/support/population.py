"""A thousand clients of one job, each for one run, half of which die on the way.

Clients come one after the other, several at a time. A client dies silently, somewhere in its run:
the service notices when the lease ends, and has the progress of the last heartbeat.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies import RunEnd
from support.adversarial_clients import ClientSimulation, Scenario, _Client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.simulate import TracedWorkload

# Which half: by chance, every second one, or all who come first.
HALVES: dict[str, Callable[[int, int, np.random.Generator], bool]] = {
    "none": lambda _number, _clients, _luck: False,
    "by chance": lambda _number, _clients, luck: bool(luck.random() < 0.5),
    "every second": lambda number, _clients, _luck: number % 2 == 0,
    "the first": lambda number, clients, _luck: number < clients // 2,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The size of a population.

    Attributes:
        clients: Number of clients in total.
        at_once: Number of clients at the same time.
        lease_seconds: Lease of a decision.
    """

    clients: int = 1000
    at_once: int = 16
    lease_seconds: float = 600.0


SETTING = Setting()


class Population(ClientSimulation):
    """One history of such a job.

    Args:
        load: Workload that is trained.
        policy: Name of the policy.
        seed: Seed of all that is random.
        half: Name of the half that dies; one of :data:`HALVES`.
        setting: Size of the population.
    """

    def __init__(
        self, load: TracedWorkload, policy: str, seed: int, half: str, setting: Setting = SETTING
    ) -> None:
        scenario = Scenario(
            recurrences=setting.clients,
            clients=setting.at_once,
            lease_seconds=setting.lease_seconds,
        )
        super().__init__(load, policy, seed, scenario)
        self._clients = setting.clients
        self._doomed = HALVES[half]
        self._fate = np.random.default_rng((seed, 23))
        self._came = 0
        self.died = 0
        self.work: list[float] = []  # of each client in turn, in whole runs
        self.regrets: list[float] = []

    def _next(self, _: _Client, now: float) -> None:
        """Another client comes, as long as there are any."""
        if self._came < self._clients:
            doomed = self._doomed(self._came, self._clients, self._fate)
            self._came += 1
            # In its first action, in its second, or in the one that would reach the target.
            dies_after = float(self._fate.choice((1.0, 2.0, 1e9))) if doomed else math.inf
            super()._next(_Client(adversarial=False, dies_after=dies_after), now)

    def _end(self, client: _Client, now: float) -> None:
        if client.truth is None:  # it has not begun: it takes the place of one who died
            self._next(client, now)
            return
        if client.dies_after < math.inf and client.truth.end == RunEnd.REACHED:
            self._die(client, now - client.truth.seconds)
            return
        completed = len(self._log.costs)
        super()._end(client, now)
        for cost in self._log.costs[completed:]:
            self._account(cost, 1.0)

    def _die(self, client: _Client, now: float) -> None:
        assert client.truth is not None
        self.died += 1
        before = self._luck.bit_generator.state
        share = float(self._luck.random())  # that is drawn below
        self._luck.bit_generator.state = before
        super()._die(client, now)
        cost = self._job.cost.of(client.truth.seconds, client.truth.joules)
        reaches = client.truth.end == RunEnd.REACHED
        self._account(client.spent + share * cost, share if reaches else 0.0)
        follower = _Client(adversarial=False, dies_after=math.inf)
        moment = now + share * client.truth.seconds
        heapq.heappush(self._waiting, (moment, -self.died, follower, None))

    def _account(self, cost: float, done: float) -> None:
        self.work.append(done)
        self.regrets.append(cost / self._log.optimal - done)

    def regret(self, work: float) -> float:
        """Summed until so much work was done, in runs at the best setting."""
        until = int(np.searchsorted(np.cumsum(self.work), work)) + 1
        return float(np.sum(self.regrets[:until]))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What deaths cost those who live.

    Attributes:
        regret: Without deaths, summed over as many completed runs as there are with them, in runs
            at the best setting.
        more: With deaths, relative to that.
        error: Standard error of ``more``, over seeds.
        more_with_dead: Likewise over as much work, what the dead spent included: as far as it went
            beyond what the best setting would have spent on the part of a run that they did. Half
            of what is tried is lost with those who tried it, whatever the policy.
        died: Clients that died, on average.
        settled: Mean cost of the last tenth of the runs that were completed in spite of deaths,
            relative to the best setting's.
        lives: Seeds.
    """

    regret: float
    more: float
    error: float
    more_with_dead: float
    died: float
    settled: float
    lives: int

    def within(self, more: float, deviations: float = 2.0) -> bool:
        """Whether it costs less than ``more``, beyond doubt."""
        return self.more + deviations * self.error <= more


def compare(
    load: TracedWorkload, policy: str, seeds: Sequence[int], half: str, setting: Setting = SETTING
) -> Comparison:
    """Regrets with deaths beside the same without."""
    rows = []
    for seed in seeds:
        calm, costs = _calm(load, policy, seed, setting)
        hit = Population(load, policy, seed, half, setting)
        life = hit.run()
        many = min(len(costs), len(life.costs))
        work = min(sum(calm.work), sum(hit.work))
        rows.append(
            (
                sum(costs[:many]) / life.optimal - many,
                sum(life.costs[:many]) / life.optimal - many,
                calm.regret(work),
                hit.regret(work),
                hit.died,
                np.mean(life.costs[-(len(life.costs) // 10) :]) / life.optimal,
            )
        )
    before, after, all_before, all_after, died, settled = np.array(rows).T
    base = float(before.mean())
    differences = (after - before) / base
    return Comparison(
        regret=base,
        more=float(differences.mean()),
        error=float(differences.std(ddof=1) / math.sqrt(len(seeds))),
        more_with_dead=float(all_after.mean() / all_before.mean() - 1.0),
        died=float(died.mean()),
        settled=float(settled.mean()),
        lives=len(seeds),
    )


_CALM: dict[tuple[str, str, int, Setting], tuple[Population, list[float]]] = {}


def _calm(
    load: TracedWorkload, policy: str, seed: int, setting: Setting
) -> tuple[Population, list[float]]:
    """The life without deaths and its costs, lived once for all kinds of them."""
    name = load.job().name, policy, seed, setting
    if name not in _CALM:
        population = Population(load, policy, seed, "none", setting)
        _CALM[name] = population, population.run().costs
    return _CALM[name]
