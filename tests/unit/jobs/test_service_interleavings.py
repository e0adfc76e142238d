"""Whatever happens in whatever order, running beliefs are those rebuilt from events."""

import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from joulery.clock import VirtualClock
from joulery.jobs import Definition, JobService, Measured, Outcome, Request
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.storage import Store
from joulery.testing.policy_contract import assert_identical
from joulery.testing.workloads import made_up_workload

JOB = made_up_workload().job()

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["decide", "decide", "report", "report", "again", "beat", "wait", "expire"]
        ),
        st.integers(0, 2),  # the service
        st.integers(0, 10**6),  # which of the decisions, and how it ended
    ),
    min_size=5,
    max_size=40,
)


def told(decision, luck):
    """How a decision ended, by luck."""
    if decision.kind == ActionKind.PROBE:
        return Outcome(RunEnd.PROBED, 0, 5.0, 500.0, None, (Measured(100.0, 80.0, 7e3, 0.02),))
    end = (RunEnd.REACHED, RunEnd.STOPPED, RunEnd.EXHAUSTED, RunEnd.REACHED, RunEnd.ABANDONED)[
        luck % 5
    ]
    watts = JOB.limits_watts[luck % len(JOB.limits_watts)]
    measured = (Measured(watts, 20.0 + luck % 17, 2e3 + luck % 89, 0.005),)
    epochs = 1 + luck % 90
    return Outcome(end, epochs, 10.0 + luck % 7, 1e3, watts, measured if epochs == 1 else ())


class Drive:
    """Several services on one database, as processes would have them."""

    def __init__(self, location, policy):
        self.clock = VirtualClock()
        self.stores = [Store.open(location) for _ in range(3)]
        self.services = [JobService(store, self.clock, 100.0) for store in self.stores]
        self.job = self.services[0].define(Definition(JOB, policy=policy), seed=11).id
        self.made, self.reported = [], {}

    def step(self, what, service, number):
        """One thing happens."""
        if what == "decide" or not self.made:
            after = self.made[number % len(self.made)].id if self.made and number % 3 == 0 else None
            self.made.append(
                self.services[service].decide(
                    self.job, Request(f"{len(self.made)}", after, probing=True)
                )
            )
        elif what == "wait":
            self.clock.sleep(number % 150)
        elif what == "expire":
            self.services[service].expire()
        elif what == "beat":
            decision = self.made[number % len(self.made)]
            self.services[service].heartbeat(decision, told(decision, number))
        elif what == "again" and self.reported:
            name = sorted(self.reported)[number % len(self.reported)]
            outcome, receipt = self.reported[name]
            assert self.services[service].report_soon(name, outcome, name).result() == receipt
        else:
            self._report(service, number)

    def _report(self, service, number):
        decision = self.made[number % len(self.made)]
        if decision.id not in self.reported:
            outcome = told(decision, number)
            receipt = self.services[service].report(decision, outcome, decision.id)
            self.reported[decision.id] = outcome, receipt

    def check(self):
        """All services believe what the events say, and every report counted once."""
        rebuilt = self.services[0].rebuild(self.job)
        for store, service in zip(self.stores, self.services, strict=True):
            running = store.write(
                lambda transaction, service=service: (
                    service._cache.current(transaction, transaction.lock(self.job)).beliefs
                ),
                self.job,
            )
            assert_identical(running, rebuilt)
        with self.stores[0].reading() as transaction:
            events = list(transaction.events(self.job))
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        ends = [event.decision for event in events if event.kind in (1, 3)]
        assert sorted(ends) == sorted(int(name.split(".")[1]) for name in self.reported)

    def close(self):
        """Let go."""
        for store in self.stores:
            store.close()


@settings(max_examples=25)
@given(policy=st.sampled_from(["joulery", "zeus", "grid"]), steps=STEPS)
def test_any_interleaving_is_replayed_bit_for_bit(policy, steps):
    """Processes that share a database would come to believe different things."""
    with tempfile.TemporaryDirectory() as folder:
        drive = Drive(Path(folder) / "store.sqlite", policy)
        try:
            for step in steps:
                drive.step(*step)
            drive.check()
        finally:
            drive.close()
