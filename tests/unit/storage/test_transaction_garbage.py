"""What a transaction leaves behind."""

import gc

from joulery.clock import VirtualClock
from joulery.jobs import Definition, Job, JobService
from joulery.objectives import Cost
from joulery.storage import Store
from support import filled_store


def test_transactions_leave_no_circles_of_references(tmp_path):
    """The collector would take a third of a busy server's time to find them."""
    with Store.open(tmp_path / "store.sqlite") as store:
        clock = VirtualClock()
        service = JobService(store, clock, filled_store.LONG_LEASE_SECONDS)
        job = service.define(
            Definition(Job("nightly", (64, 128), 128, Cost(0.5, max_watts=300.0)))
        ).id
        filled_store.run(service, clock, job, 64, "first")
        gc.collect()
        gc.disable()
        try:
            filled_store.run(service, clock, job, 64, "more")
            assert gc.collect() < 64
        finally:
            gc.enable()
