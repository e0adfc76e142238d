"""Whatever is sent arrives, and whatever arrives is refused or understood."""

import math

from hypothesis import given, strategies as st

from joulery.client import OutcomeReport, PauseState, ProgressReport
from joulery.errors import InvalidValueError
from joulery.jobs import (
    Decision,
    DecisionEntry,
    DecisionLease,
    Definition,
    EnergyEntry,
    JobEntry,
    LiveState,
    Measured,
    Outcome,
    ProfileEntry,
    Receipt,
    Request,
)
from joulery.jobs.policies import ActionKind, RunEnd

_NUMBERS = st.just(0.0) | st.floats(1e-9, 1e12)
_LIMITS = st.none() | _NUMBERS
_NAMES = st.text(min_size=1, max_size=50).filter(str.isprintable)
_MEASURED = st.builds(
    Measured, _LIMITS, st.floats(1e-9, 1e10), st.floats(1e-9, 1e12), st.floats(1e-9, 10)
)
_OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(RunEnd),
    _NUMBERS,
    _NUMBERS,
    _NUMBERS,
    _LIMITS,
    st.lists(_MEASURED, max_size=3).map(tuple),
)
_DECISIONS = st.builds(
    Decision,
    id=st.builds("{}.{}".format, st.integers(1, 10**17), st.integers(1, 10**17)),
    recurrence=st.integers(0, 10**17),
    kind=st.sampled_from(ActionKind),
    batch_size=st.integers(1, 2**40),
    power_limit_watts=_LIMITS,
    probe_limits_watts=st.lists(_NUMBERS, max_size=5).map(tuple),
    cost_ceiling_joules=st.just(math.inf) | _NUMBERS,
    reason=_NAMES,
    expires_wall_seconds=_NUMBERS,
    token=_NAMES,
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=12,
)


@given(_OUTCOMES, _NAMES)
def test_reports_arrive(outcome, key):
    """A report would change on its way."""
    report = OutcomeReport(key, outcome)
    assert OutcomeReport.from_json(report.to_json()) == report


@given(_DECISIONS)
def test_decisions_arrive(decision):
    """A decision would change on its way."""
    assert Decision.from_json(decision.to_json()) == decision


_MODELS = st.sampled_from(
    [
        Definition,
        Request,
        Decision,
        Outcome,
        ProgressReport,
        LiveState,
        DecisionLease,
        OutcomeReport,
        Receipt,
        PauseState,
        JobEntry,
        DecisionEntry,
        ProfileEntry,
        EnergyEntry,
    ]
)
_MEMBERS = (
    *("key", "outcome", "end", "epochs", "seconds", "joules", "limit_watts", "measured"),
    *(
        "name",
        "device",
        "job",
        "definition",
        "batch_sizes",
        "cost",
        "policy",
        "parameters",
        "progress",
        "paused",
    ),
    *("batch_size", "frontier", "wall_seconds", "after", "probing", "held", "event"),
    *("live", "devices", "phase", "steps_per_second", "processes", "relative_error"),
)
_HALF_RIGHT = st.fixed_dictionaries({}, optional=dict.fromkeys(_MEMBERS, _ANYTHING))


@given(_MODELS, _ANYTHING | _HALF_RIGHT)
def test_anything_else_is_refused_with_an_error_of_ours(model, document):
    """An unforeseen document would end in an internal error."""
    try:
        model.from_document(document)
    except InvalidValueError as refused:
        assert refused.remedy  # noqa: PT017 - both reading and refusing are right
