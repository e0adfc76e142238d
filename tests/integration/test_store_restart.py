"""A PostgreSQL server that crashes or restarts costs errors to repeat, never data."""

import signal
import threading

import pytest

from joulery.clock import VirtualClock
from joulery.errors import StoreError
from joulery.jobs import Definition, JobService, Outcome, Request
from joulery.jobs.policies import RunEnd
from joulery.storage import Store
from joulery.testing.policy_contract import assert_identical
from joulery.testing.workloads import made_up_workload
from support.postgresql import Cluster


def persist(call):
    """As a client does: the same request again until it is answered."""
    for _ in range(2000):
        try:
            return call()
        except StoreError:
            threading.Event().wait(0.02)
    raise AssertionError


def client(service, job, number, errors):
    """Decide and report, whatever the server does meanwhile."""
    for turn in range(12):
        key = f"{number}.{turn}"
        try:
            decision = persist(lambda key=key: service.decide(job, Request(key)))
            outcome = Outcome(RunEnd.REACHED, 5, 20.0, 2000.0)
            persist(lambda key=key, one=decision, told=outcome: service.report(one, told, key))
        except Exception as error:  # noqa: BLE001 - told to the test
            errors.append(error)


def stored_events(store, job):
    """Everything that was kept of a job."""
    with store.reading() as transaction:
        return list(transaction.events(job))


@pytest.mark.usefixtures("_postgresql_installed")
def test_crashes_of_the_database_lose_nothing():
    """Operators restart databases; teams must not notice more than a delay."""
    clock, errors = VirtualClock(), []
    with Cluster() as cluster, Store.open(cluster.new_database()) as store:
        service = JobService(store, clock)
        job = service.define(Definition(made_up_workload().job(), policy="zeus"), seed=1).id
        clients = [
            threading.Thread(target=client, args=(service, job, number, errors))
            for number in range(4)
        ]
        for thread in clients:
            thread.start()
        for how in (signal.SIGQUIT, signal.SIGINT):
            threading.Event().wait(0.15)
            cluster.stop(how)
            cluster.start()
        for thread in clients:
            thread.join()
        assert errors == []
        assert len(persist(lambda: stored_events(store, job))) == 4 * 12 * 2
        running = persist(
            lambda: store.write(
                lambda transaction: (
                    service._cache.current(transaction, transaction.lock(job)).beliefs
                ),
                job,
            )
        )
        assert_identical(running, persist(lambda: service.rebuild(job)))
