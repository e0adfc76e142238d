"""Half of a job's clients die, and the job goes on as if they had not.

Reduced; ``scripts/stress_service.py`` has a thousand clients and twenty lives.
"""

import dataclasses
import math

import numpy as np

from joulery.clock import VirtualClock
from joulery.jobs import Definition, JobService, Outcome, Request
from joulery.jobs.policies import RunEnd
from joulery.storage import DecisionState, EventKind, Store
from joulery.testing.workloads import made_up_workload
from support.history import Findings, check_beliefs
from support.population import Population, Setting, compare

FEW = Setting(clients=200, at_once=8)


def test_deaths_cost_the_living_nothing():
    """Machines that are taken away would make the rest of a team pay for them."""
    found = compare(made_up_workload(), "joulery", range(3), "by chance", FEW)
    assert 80 < found.died < 120
    assert found.more - 2 * found.error <= 0.05
    assert found.settled <= 1.1


def settled(half, setting, policy="zeus"):
    """Cost of the last fifth of the runs, relative to the best, when one tries after the other."""
    life = Population(made_up_workload(), policy, 1, half, setting).run()
    return np.mean(life.costs[-(len(life.costs) // 5) :]) / life.optimal


def test_a_dead_client_does_not_freeze_a_job():
    """A policy that waits for a dead client's result would run the default for ever."""
    assert settled("by chance", FEW) < 1.2


def test_clients_that_only_send_heartbeats_do_not_freeze_a_job(monkeypatch):
    """A policy would wait for ever for results whose leases are prolonged again and again."""
    for_ever = Setting(clients=200, at_once=8, lease_seconds=1e15)
    assert settled("by chance", for_ever, "joulery") < 1.2
    assert settled("by chance", dataclasses.replace(for_ever, clients=600)) < 1.2
    monkeypatch.setattr("joulery.jobs._posterior._USUAL_RUNS", math.inf)
    assert settled("by chance", for_ever, "joulery") > 1.5


def test_the_service_hears_of_deaths_and_goes_on(tmp_path):
    """What heartbeats told must count, and nothing may stay open after its lease."""
    clock = VirtualClock()
    with Store.open(tmp_path / "store.sqlite") as store:
        service = JobService(store, clock)
        job = service.define(Definition(made_up_workload().job(), policy="zeus"), seed=1).id
        for number in range(24):
            decision = service.decide(job, Request(f"k{number}"))
            clock.sleep(300.0)
            service.heartbeat(decision, Outcome(RunEnd.ABANDONED, 3.0, 250.0, 20_000.0))
            clock.sleep(500.0 if number % 2 else 700.0)
            if number % 2:
                outcome = Outcome(RunEnd.REACHED, 9.0, 700.0, 60_000.0 + number)
                service.report(decision, outcome, f"k{number}")
        clock.sleep(1000.0)
        service.expire()
        with store.reading() as transaction:
            decisions, events = transaction.decisions(job), list(transaction.events(job))
        findings = Findings()
        check_beliefs(store, job, findings)
    states = [decision.state for decision in decisions]
    assert states == [DecisionState.EXPIRED, DecisionState.REPORTED] * 12
    expired = [event.body for event in events if event.kind == EventKind.EXPIRED]
    assert [body["seconds"] for body in expired] == [250.0] * 12
    assert len({decision.action["batch_size"] for decision in decisions}) > 2
    assert findings.violations == []
