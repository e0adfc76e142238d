"""Long histories of many jobs; `scripts/stress_jobs.py scale` measures far more of them."""

import dataclasses

from joulery.clock import VirtualClock
from joulery.jobs import JobService, Request
from joulery.jobs._posterior import _SNAPSHOT_EVENTS, JobState
from joulery.storage import Store
from joulery.testing.policy_contract import assert_identical
from support.filled_store import LONG_LEASE_SECONDS, fill, measure


def test_a_restart_folds_no_more_than_the_tail(location, monkeypatch):
    """A server with thousands of old jobs would not answer for minutes after a restart."""
    with Store.open(location) as store:
        numbers = fill(store, "zeus", 4, 100)
        service = JobService(store, VirtualClock(), LONG_LEASE_SECONDS)
        folded = []
        whole = JobState.fold
        monkeypatch.setattr(
            JobState, "fold", lambda self, event: (folded.append(event), whole(self, event))
        )
        for number in numbers:
            service.decide(number, Request("cold"))
        assert len(folded) <= len(numbers) * _SNAPSHOT_EVENTS
        monkeypatch.undo()
        assert_identical(service.rebuild(numbers[0]), service.rebuild(numbers[3]))


def test_every_operation_works_on_a_filled_store(location):
    """What is measured would not be what is done."""
    with Store.open(location) as store:
        costs = measure(store, fill(store, "zeus", 3, 20), "zeus", tries=2)
    assert all(cost > 0 for cost in dataclasses.asdict(costs).values())
