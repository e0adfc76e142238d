"""Whatever happens to a outbox, what was acknowledged is delivered, and nothing else is."""

import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from joulery.client._outbox import Outbox, PendingReport, entry_from
from joulery.errors import StoreBusyError
from joulery.jobs import Decision, Definition, Job, Measured, Outcome, Request
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost

DECISION = Decision(
    "7.1", 0, ActionKind.TRAIN, 64, 150.0, (125.0,), float("inf"), "why", 1.7e9, "tok"
)
REPORT = PendingReport(
    "team",
    Definition(Job("nightly", (64, 128), 64, Cost(0.5, 300.0))),
    Request("torn"),
    DECISION,
    Outcome(RunEnd.STOPPED, 1, 1, 1),
    "torn",
)
QUANTITY = st.floats(1e-6, 1e12)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(list(RunEnd)),
    QUANTITY,
    QUANTITY,
    QUANTITY,
    st.none() | QUANTITY,
    st.lists(
        st.builds(
            Measured, st.none() | QUANTITY, st.floats(1e-6, 1e10), QUANTITY, st.floats(1e-6, 10)
        ),
        max_size=3,
    ).map(tuple),
)
# Keep a report; lose power in the middle of one; find rubbish; deliver, failing after so many.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), OUTCOMES),
        st.tuples(st.just("tear"), st.integers(1, 60)),
        st.tuples(st.just("rubbish"), st.binary(max_size=40)),
        st.tuples(st.just("deliver"), st.integers(0, 4)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_acknowledged_reports_are_delivered_in_order_each_at_least_once(steps):
    """If this fails, some mix of crashes and outages loses a report or invents one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j.jsonl"
        outbox, kept, sent = Outbox(path), [], []
        for number, (what, how) in enumerate(steps):
            if what == "append":
                decision = replace(DECISION, id=f"7.{number + 1}")
                entry = replace(REPORT, decision=decision, outcome=how, key=f"key{number}")
                outbox.append(entry)
                kept.append(entry)
            elif what == "tear":
                line = REPORT.to_json()
                _add(path, line[: len(line) - how])
            elif what == "rubbish":
                _add(path, how)
            else:
                outbox.deliver(_sender(sent, how))
        outbox.deliver(_sender(sent, 10**6))
        assert sent == kept
        assert not outbox.entries()


def _add(path, content):
    with path.open("ab") as file:
        file.write(content)


def _sender(sent, most):
    left = [most]

    def send(entry):
        if not left[0]:
            raise StoreBusyError("down", remedy="wait")
        left[0] -= 1
        sent.append(entry)

    return send


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_no_line_is_mistaken_or_raises(line):
    """If this fails, a damaged file ends a training."""
    assert entry_from(line) is None
