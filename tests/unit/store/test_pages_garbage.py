"""What a transaction leaves behind."""

import gc

from joulery.clock import VirtualClock
from joulery.objectives import Cost
from joulery.recurring.desk import Desk
from joulery.recurring.desk_requests import Definition
from joulery.recurring.job import Job
from joulery.store.store import Store
from joulery.testing import filled_store


def test_transactions_leave_no_circles_of_references(tmp_path):
    """The collector would take a third of a busy server's time to find them."""
    with Store.open(tmp_path / "store.sqlite") as store:
        clock = VirtualClock()
        desk = Desk(store, clock, filled_store.TERMS)
        job = desk.define(
            "team", Definition(Job("nightly", (64, 128), 128, Cost(0.5, max_watts=300.0)))
        ).id
        filled_store.run(desk, clock, job, 64, "first")
        gc.collect()
        gc.disable()
        try:
            filled_store.run(desk, clock, job, 64, "more")
            assert gc.collect() < 64
        finally:
            gc.enable()
