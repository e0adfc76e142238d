"""What cannot have happened is refused; what can is not."""

import math

import pytest
from msgspec import structs

from joulery.errors import InvalidValueError
from joulery.jobs import LONGEST_BEFORE_SECONDS, Job, Measured, Outcome, Request
from joulery.jobs._validation import check_outcome
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost

JOB = Job("job", (8, 16), 8, Cost(0.5, 1000.0), max_epochs=50, limits_watts=(100.0, 200.0))
GOOD = Outcome(RunEnd.REACHED, 20, 1000.0, 500_000.0, 200.0, (Measured(200.0, 50.0, 25e3, 0.01),))


def check(outcome=GOOD, kind=ActionKind.TRAIN, elapsed=1000.0, job=JOB, **changes):
    """Check a report with changes."""
    check_outcome(structs.replace(outcome, **changes).checked(), job, kind, elapsed)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seconds": 1069.0},
        {"joules": 1_099_000.0},
        {"joules": 0.0, "measured": ()},
        {"end": RunEnd.STOPPED, "epochs": 0, "seconds": 0.0, "joules": 0.0},
        {"end": RunEnd.ABANDONED},
        {"measured": (), "limit_watts": None},
        {"epochs": 50},
        {"seconds": 251.0, "joules": 126e3},  # epochs nearly four times as fast as measured
        {"end": RunEnd.STOPPED, "seconds": 1.0, "joules": 100.0},
    ],
)
def test_what_can_have_been_is_taken(changes):
    """An honest worker would be refused."""
    check(**changes)


@pytest.mark.parametrize("name", ["epochs", "seconds", "joules", "limit_watts"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e-200, 2**2000, "7"])
def test_figures_are_finite_and_not_negative(name, value):
    """One NaN in a mean makes every later decision a NaN."""
    with pytest.raises(InvalidValueError):
        check(**{name: value})


@pytest.mark.parametrize("name", ["limit_watts", "epoch_seconds", "epoch_joules", "relative_error"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e-200, 2**2000])
def test_measurements_are_finite_and_not_negative(name, value):
    """The same for what an epoch takes."""
    one = structs.replace(GOOD.measured[0], **{name: value})
    with pytest.raises(InvalidValueError):
        check(measured=(one,))


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 1071.0 + 86_400.0},  # longer than since the decision, by more than a day
        {"joules": 1_101_000.0},  # more than all boards can draw
        {"seconds": 1.0},  # the same
        {"epochs": 51},
        {"epochs": 0},  # reached without training
        {"seconds": 240.0, "joules": 126e3},  # epochs more than four times as fast as measured
        {"seconds": 251.0, "joules": 120e3},  # the same for energy
        {"seconds": 0.0, "joules": 0.0},
        {"end": RunEnd.PROBED},
        {"measured": GOOD.measured * 3},  # more limits than there are
        {"measured": (Measured(200.0, 0.0, 25e3, 0.01),)},
        {"measured": (Measured(200.0, 50.0, 0.0, 0.01),)},
        {"measured": (Measured(200.0, 50.0, 56e3, 0.01),)},  # 1,120 W
        {"measured": (Measured(200.0, 50.0, 25e3, 11.0),)},
        {"measured": (Measured(200.0, 1e11, 25e3, 0.01),)},
    ],
)
def test_what_cannot_have_been_is_refused(changes):
    """One wrong report would ruin a job for all."""
    with pytest.raises(InvalidValueError):
        check(**changes)


def test_probes_end_as_probes():
    """A probe that claims to have reached the target would count as the cheapest run ever."""
    probe = Outcome(RunEnd.PROBED, 0, 5.0, 500.0)
    check(probe, ActionKind.PROBE)
    check(probe, ActionKind.PROBE, end=RunEnd.ABANDONED)
    with pytest.raises(InvalidValueError):
        check(GOOD, ActionKind.PROBE)


def test_energy_alone_has_no_bound_without_max_watts():
    """A job that counts energy only need not know what its boards can draw."""
    job = structs.replace(JOB, cost=Cost(1.0), limits_watts=())
    check(job=job, joules=1e12)


def test_nothing_is_free():
    """A run that cost nothing would make every ceiling nothing, and end all others."""
    job = structs.replace(JOB, cost=Cost(1.0), limits_watts=())
    with pytest.raises(InvalidValueError, match="no cost"):
        check(job=job, joules=0.0, measured=())
    check(job=job, joules=0.0, measured=(), end=RunEnd.STOPPED)


def test_a_clock_set_back_proves_nothing():
    """A long training would be refused because somebody corrected the clock."""
    check(elapsed=-5.0)


@pytest.mark.parametrize("asked", [(None, None), (8, None), (8, 0.0), (8, LONGEST_BEFORE_SECONDS)])
def test_runs_of_the_last_days_may_be_asked_for(asked):
    """What was trained during an outage would be refused."""
    Request("key", only=asked[0], ran_seconds=asked[1]).checked()


@pytest.mark.parametrize(
    "asked",
    [(None, 0.0), (None, 60.0), (8, -1.0), (8, math.nan), (8, 1.001 * LONGEST_BEFORE_SECONDS)],
)
def test_runs_of_nothing_or_of_long_ago_may_not(asked):
    """Any time could be claimed at once."""
    with pytest.raises(InvalidValueError):
        Request("key", only=asked[0], ran_seconds=asked[1]).checked()
