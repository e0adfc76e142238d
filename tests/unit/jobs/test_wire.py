"""The documents that clients and the server exchange."""

import math

import pytest

from joulery.errors import InvalidValueError
from joulery.jobs import wire
from joulery.jobs.job import Job
from joulery.jobs.models import Decision, DecisionLease, Measured, Outcome, Receipt
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.requests import Definition, Request
from joulery.objectives import (
    Cost,
    EnergyDelayProduct,
    EnergyDelaySum,
    FastestWithin,
    LeastCarbon,
    LeastEnergy,
    LeastMoney,
)

COST = Cost(0.5, max_watts=300.0)
OUTCOME = Outcome(RunEnd.STOPPED, 3, 40.0, 9000.5, 250.0, (Measured(250.0, 13.0, 3000.0, 0.01),))
DECISION = Decision(
    id="7.12",
    recurrence=3,
    kind=ActionKind.PROBE,
    batch_size=64,
    power_limit_watts=None,
    probe_limits_watts=(100.0, 250.0),
    cost_ceiling_joules=math.inf,
    reason="exploring",
    expires_wall_seconds=1.8e9,
    token="b",  # noqa: S106 - no password
)


def test_decision_survives():
    """A client would run something else than was decided."""
    assert wire.decision_from(wire.decision_document(DECISION)) == DECISION


def test_no_ceiling_is_null():
    """Infinity is not JSON."""
    assert wire.decision_document(DECISION)["cost_ceiling_joules"] is None


def test_outcome_survives():
    """The server would learn something else than happened."""
    assert wire.outcome_from(wire.outcome_document(OUTCOME)) == OUTCOME


def test_small_documents_survive():
    """Leases, receipts, heartbeats, reports and requests would change on their way."""
    lease, receipt = (
        DecisionLease(held=True, expires_wall_seconds=5.5),
        Receipt("7.12", 14, late=True),
    )
    request = Request("key", "7.3", probing=True)
    assert wire.lease_from(wire.lease_document(lease)) == lease
    assert wire.receipt_from(wire.receipt_document(receipt)) == receipt
    assert wire.request_from(wire.request_document(request)) == request
    anyway = Request("key", only=64, ran_seconds=7.5)
    assert wire.request_from(wire.request_document(anyway)) == anyway
    assert wire.heartbeat_from(wire.heartbeat_document(None)) is None
    assert wire.heartbeat_from(wire.heartbeat_document(OUTCOME)) == OUTCOME
    assert wire.report_from(wire.report_document(OUTCOME, "once")) == (OUTCOME, "once")
    assert wire.pause_from(wire.pause_document(paused=True)) is True


def test_what_is_not_asked_for_is_not_sent():
    """Servers that do not know a member yet would refuse every request."""
    assert set(wire.request_document(Request("key"))) == {"key", "after", "probing"}


@pytest.mark.parametrize(
    "objective",
    [
        None,
        COST,
        EnergyDelayProduct(),
        EnergyDelaySum(2.0),
        FastestWithin(5e6),
        LeastEnergy(max_slowdown=0.05),
        LeastCarbon(300.0, max_slowdown=0.1),
        LeastMoney(-0.1, rent_per_hour=2.0, deadline_seconds=3600.0),
    ],
)
def test_every_objective_survives(objective):
    """A job would be optimised for something else than its owner wants."""
    job = Job("nightly", (64, 128), 128, COST, objective, 40, (100.0, 200.5))
    wanted = Definition(job, "A40", "zeus", {"beta": 2.5})
    assert wire.definition_from(wire.definition_document(wanted)) == wanted


JOB = wire.definition_document(Definition(Job("nightly", (64, 128), 128, COST)))


def changed(**members):
    """A definition whose specification differs."""
    return JOB | {"specification": JOB["specification"] | members}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "object"),
        (JOB | {"colour": 1}, "'colour'"),
        (JOB | {"name": 5}, "name"),
        (JOB | {"name": "a\0b"}, "name"),
        (JOB | {"name": "\ud800"}, "name"),
        (JOB | {"parameters": {"inherited": 1.0}}, "inherited"),
        (JOB | {"parameters": {"objective": 1.0}}, "objective"),
        (JOB | {"parameters": {"beta": True}}, "beta"),
        (JOB | {"parameters": {"window": 1.5}}, "window"),
        (JOB | {"parameters": {"window": 10**15}}, "window"),
        (changed(batch_sizes=[2**70]), "batch size"),
        (changed(batch_sizes=[True]), "batch size"),
        (changed(batch_sizes=64), "batch_sizes"),
        (changed(batch_sizes=list(range(1, 1000))), "999"),
        (changed(default=64.0), "default"),
        (changed(max_epochs=0), "max_epochs"),
        (changed(limits_watts=[1e300]), "limit"),
        (changed(limits_watts=[math.nan]), "limit"),
        (changed(cost="least-energy"), "cost"),
        (changed(cost={"eta": 1.0}), "cost"),
        (changed(objective={"kind": "Unheard"}), "objective"),
        (changed(objective="eds:k=2,l=3"), "'l'"),
        (changed(objective="carbon"), "intensity"),
        (changed(objective="energy"), "objective"),
        ({"name": "nightly"}, "specification"),
    ],
)
def test_nonsense_is_refused_by_name(document, named):
    """A wrong definition would be stored, or fail deep inside without a word on what is wrong."""
    with pytest.raises(InvalidValueError, match=named):
        wire.definition_from(document)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"end": "won"}, "end"),
        ({"end": ["reached"]}, "end"),
        ({"epochs": -1}, "epochs"),
        ({"seconds": math.inf}, "seconds"),
        ({"joules": "9"}, "joules"),
        ({"joules": 1e-200}, "joules"),
        ({"limit_watts": False}, "limit_watts"),
        ({"measured": [{}] * 100}, "measured"),
        ({"measured": [[1, 2, 3, 4]]}, "measurement"),
        ({"surprise": 1}, "'surprise'"),
    ],
)
def test_outcomes_are_read_strictly(changes, named):
    """Figures that break arithmetic would reach a job's beliefs."""
    with pytest.raises(InvalidValueError, match=named):
        wire.outcome_from(wire.outcome_document(OUTCOME) | changes)
