"""The documents that clients, the server and the store exchange."""

import json
import math

import numpy as np
import pytest

from joulery.client import OutcomeReport, PauseState, ProgressReport
from joulery.errors import InvalidValueError
from joulery.jobs import (
    Decision,
    DecisionLease,
    Definition,
    EnergyEntry,
    Job,
    JobEntry,
    Measured,
    Outcome,
    Receipt,
    Request,
)
from joulery.jobs.policies import ActionKind, RunEnd
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
    token="b",
)


def survives(value):
    """Whether a value is the same after it was written and read."""
    return type(value).from_document(value.to_document()) == value


def test_decision_survives():
    """A client would run something else than was decided."""
    assert survives(DECISION)


def test_no_ceiling_is_null():
    """Infinity is not JSON."""
    assert DECISION.to_document()["cost_ceiling_joules"] is None


def test_outcome_survives():
    """The server would learn something else than happened."""
    assert survives(OUTCOME)


def test_numbers_of_any_make_become_plain_ones():
    """A figure from NumPy could not be written as JSON."""
    figure = np.float64(3.5)
    document = Outcome(RunEnd.REACHED, figure, figure, figure, figure).to_document()
    assert json.loads(json.dumps(document))["joules"] == 3.5


@pytest.mark.parametrize(
    "value",
    [
        DecisionLease(held=True, expires_wall_seconds=5.5),
        Receipt("7.12", 14, late=True),
        Request("key", "7.3", probing=True),
        Request("key", only=64, ran_seconds=7.5),
        ProgressReport(None),
        ProgressReport(OUTCOME),
        OutcomeReport("once", OUTCOME),
        PauseState(paused=True),
        EnergyEntry(None, "gpu", 1.0, 2.0, "measured", "a counter", 0.05),
    ],
)
def test_small_documents_survive(value):
    """Leases, receipts, heartbeats, reports and requests would change on their way."""
    assert survives(value)


def test_members_with_a_default_may_be_missing():
    """Clients would have to send what says nothing."""
    assert Request.from_document({"key": "k"}) == Request("k")


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
    assert survives(wanted)
    entry = JobEntry(7, "vision", 1, None, "", False, wanted, 1.8e9, 3, 2)  # noqa: FBT003
    assert survives(entry)


JOB = Definition(Job("nightly", (64, 128), 128, COST)).to_document()


def changed(**members):
    """A definition whose job differs."""
    return JOB | {"job": JOB["job"] | members}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "object"),
        (JOB | {"colour": 1}, "'colour'"),
        (changed(name=5), "name"),
        (changed(name="a\0b"), "name"),
        (changed(name="\ud800"), "name"),
        (JOB | {"parameters": {"inherited": 1.0}}, "inherited"),
        (JOB | {"parameters": {"beta": True}}, "parameters"),
        (changed(batch_sizes=[2**70]), "batch_sizes"),
        (changed(batch_sizes=[True]), "batch_sizes"),
        (changed(batch_sizes=64), "batch_sizes"),
        (changed(batch_sizes=list(range(1, 1000))), "64"),
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
        ({"device": "A40"}, "job"),
    ],
)
def test_nonsense_is_refused_by_name(document, named):
    """A wrong definition would be stored, or fail deep inside without a word on what is wrong."""
    with pytest.raises(InvalidValueError, match=named):
        Definition.from_document(document)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"end": "won"}, "end"),
        ({"end": ["reached"]}, "end"),
        ({"epochs": -1}, "epochs"),
        ({"seconds": math.inf}, "seconds"),
        ({"joules": "9"}, "joules"),
        ({"limit_watts": False}, "limit_watts"),
        ({"measured": [{}] * 100}, "measured"),
        ({"measured": [[1, 2, 3, 4]]}, "measured"),
        ({"surprise": 1}, "'surprise'"),
    ],
)
def test_outcomes_are_read_strictly(changes, named):
    """Figures that break arithmetic would reach a job's beliefs."""
    with pytest.raises(InvalidValueError, match=named):
        Outcome.from_document(OUTCOME.to_document() | changes)
