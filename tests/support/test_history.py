"""A checker that finds nothing proves nothing: every way to tamper with a history is found."""

import dataclasses
import json

import pytest

from joulery.clock import VirtualClock
from joulery.errors import ConflictError, StoreBusyError
from joulery.jobs import Definition, JobService, Outcome, Request
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.storage import EventKind, Snapshot, Store
from joulery.testing.workloads import made_up_workload
from support.history import Fault, Findings, Stored, check_beliefs, check_job, check_store
from support.history_file import Call, Recorder, read_calls


def lived(store, recurrences=6):
    """A job with some history, one decision late and one given up, and the calls of its client."""
    clock = VirtualClock()
    service = JobService(store, clock)
    job = service.define(Definition(made_up_workload().job(), policy="zeus"), seed=1).id
    calls = []
    for number in range(recurrences):
        key, request = f"k{number}", {"after": None, "probing": True}
        decision = service.decide(job, Request(key, probing=True))
        calls.append(Call("decide", job, key, request, decision.to_document()))
        clock.sleep(100.0)
        if number in (1, 2):
            clock.sleep(1000.0)
            service.expire()
        if number == 2:
            continue
        end = RunEnd.PROBED if decision.kind == ActionKind.PROBE else RunEnd.REACHED
        outcome = Outcome(end, 0.0 if end == RunEnd.PROBED else 9.0, 20.0 + number, 2000.0)
        report = {"decision": decision.id, "outcome": outcome.to_document()}
        receipt = service.report(decision, outcome, key).to_document()
        calls.append(Call("report", job, key, report, receipt))
    return job, calls


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """What a store and its client say, in agreement."""
    with Store.open(tmp_path_factory.mktemp("history") / "store.sqlite") as store:
        job, calls = lived(store)
        with store.reading() as transaction:
            return Stored.of(transaction, job), calls


def faults(records_stored, calls):
    """What the checker finds."""
    findings = Findings()
    check_job(records_stored, calls, findings)
    return findings.faults()


def reports(calls):
    """Places of reports among calls."""
    return [at for at, call in enumerate(calls) if call.operation == "report"]


def changed(calls, at, **changes):
    """Calls of which one is different."""
    return [*calls[:at], dataclasses.replace(calls[at], **changes), *calls[at + 1 :]]


def test_an_honest_history_is_left_alone(history):
    """A checker that cries wolf would be switched off."""
    records_stored, calls = history
    findings = Findings()
    check_job(records_stored, calls, findings)
    assert findings.violations == []
    assert findings.counts["reports acknowledged"] == 5
    assert (findings.counts["expired"], findings.counts["late"]) == (2, 1)


def test_a_lost_report_is_found(history):
    """Losing what was acknowledged is the one thing that must never happen."""
    records_stored, calls = history
    without = dataclasses.replace(records_stored, outcomes=records_stored.outcomes[:-1])
    assert Fault.LOST in faults(without, calls)


def test_a_lost_decision_is_found(history):
    """A client would report on a decision that nobody knows."""
    records_stored, calls = history
    without = dataclasses.replace(records_stored, decisions=records_stored.decisions[:-1])
    assert {Fault.LOST, Fault.GAP} <= faults(without, calls)


def test_a_doubled_report_is_found(history):
    """A report that counts twice bends the beliefs of a job."""
    records_stored, calls = history
    last = records_stored.events[-1]
    again = dataclasses.replace(last, sequence=last.sequence + 1)
    record = dataclasses.replace(records_stored.record, events=records_stored.record.events + 1)
    doubled = dataclasses.replace(
        records_stored, events=[*records_stored.events, again], record=record
    )
    assert Fault.DOUBLED in faults(doubled, calls)


def test_altered_figures_are_found(history):
    """Energy that changes on its way to the disk makes every saving a lie."""
    records_stored, calls = history
    first = records_stored.outcomes[0]
    body = first.body | {"joules": first.body["joules"] * (1 + 1e-15)}
    assert body != first.body
    outcomes = [dataclasses.replace(first, body=body), *records_stored.outcomes[1:]]
    assert Fault.ALTERED in faults(dataclasses.replace(records_stored, outcomes=outcomes), calls)


def test_an_altered_event_is_found(history):
    """Beliefs are folded from events, so they must say what was reported."""
    records_stored, calls = history
    last = records_stored.events[-1]
    events = [
        *records_stored.events[:-1],
        dataclasses.replace(last, body=last.body | {"cost": 1.0}),
    ]
    assert faults(dataclasses.replace(records_stored, events=events), calls) == {Fault.ALTERED}


def test_an_altered_end_without_a_report_is_found(history):
    """A decision that was given up may say no more than its heartbeats did."""
    records_stored, calls = history
    at = next(
        at for at, event in enumerate(records_stored.events) if event.kind == EventKind.EXPIRED
    )
    event = records_stored.events[at]
    event = dataclasses.replace(event, body=event.body | {"cost": 1.0})
    events = [*records_stored.events[:at], event, *records_stored.events[at + 1 :]]
    assert faults(dataclasses.replace(records_stored, events=events), calls) == {Fault.ALTERED}


def test_another_receipt_than_the_stored_event_is_found(history):
    """A receipt with a wrong number sends people to another run."""
    records_stored, calls = history
    at = reports(calls)[0]
    answer = calls[at].answer | {"event": 99}
    assert faults(records_stored, changed(calls, at, answer=answer)) == {Fault.ALTERED}


def test_a_ghost_report_is_found(history):
    """What no client sent was made up, or is somebody else's."""
    records_stored, calls = history
    at = reports(calls)[0]
    assert faults(records_stored, calls[:at] + calls[at + 1 :]) == {Fault.GHOST}


def test_a_report_in_doubt_may_be_there_or_not(history):
    """A client that was killed before its answer knows nothing, and accuses nobody."""
    records_stored, calls = history
    at = reports(calls)[0]
    assert faults(records_stored, changed(calls, at, answer=None)) == set()
    call = Call("report", records_stored.record.id, "never came", calls[at].sent)
    assert faults(records_stored, [*calls, call]) == set()


def test_a_promise_without_a_number_has_to_be_kept(history):
    """A client that hands its report to a journal is told nothing but that it will arrive."""
    records_stored, calls = history
    at = reports(calls)[0]
    assert faults(records_stored, changed(calls, at, answer={})) == set()
    call = Call("report", records_stored.record.id, "never came", calls[at].sent, {})
    assert faults(records_stored, [*calls, call]) == {Fault.LOST}


def test_a_ghost_decision_is_found(history):
    """A decision that nobody asked for is never reported on, and blocks its place."""
    records_stored, calls = history
    assert Fault.GHOST in faults(records_stored, calls[1:])


def test_one_decision_for_two_keys_is_found(history):
    """Two trainings would report on the same decision."""
    records_stored, calls = history
    stolen = dataclasses.replace(calls[0], key="somebody else's")
    assert Fault.SHARED in faults(records_stored, [*calls, stolen])


def test_two_answers_under_one_key_are_found(history):
    """A client that asks again must get what it was given."""
    records_stored, calls = history
    call = dataclasses.replace(calls[0], answer=calls[0].answer | {"batch_size": 1})
    assert Fault.UNSTEADY in faults(records_stored, [*calls, call])
    at = reports(calls)[0]
    receipt = dataclasses.replace(calls[at], answer=calls[at].answer | {"late": True})
    assert Fault.UNSTEADY in faults(records_stored, [*calls, receipt])


def test_a_gap_in_events_is_found(history):
    """Draws are keyed by the number of the event, so none may be left out."""
    records_stored, calls = history
    events = [event for event in records_stored.events if event.kind != EventKind.EXPIRED]
    assert Fault.GAP in faults(dataclasses.replace(records_stored, events=events), calls)


def test_a_gap_in_recurrences_is_found(history):
    """People count nights by recurrences."""
    records_stored, calls = history
    record = dataclasses.replace(
        records_stored.record, recurrences=records_stored.record.recurrences + 1
    )
    assert faults(dataclasses.replace(records_stored, record=record), calls) == {Fault.GAP}


def test_a_decision_in_another_state_than_its_events_is_found(history):
    """A reported decision that is open would expire, and count as abandoned."""
    records_stored, calls = history
    first = dataclasses.replace(records_stored.decisions[0], state=0)
    decisions = [first, *records_stored.decisions[1:]]
    assert faults(dataclasses.replace(records_stored, decisions=decisions), calls) == {Fault.STATE}


def test_a_refusal_of_what_was_in_order_is_found(history):
    """A client whose honest report is refused drops it for good."""
    records_stored, calls = history
    at = reports(calls)[0]
    calls_sent = changed(calls, at, answer=None, refused="ConflictError: no")
    assert faults(records_stored, calls_sent) == {Fault.REFUSED}


def test_beliefs_of_a_wrong_snapshot_are_found(tmp_path):
    """A process that starts from a wrong snapshot decides otherwise than one that does not."""
    with Store.open(tmp_path / "store.sqlite") as store:
        job, calls = lived(store, recurrences=40)
        assert check_store(store, calls, [job]).violations == []
        with store.reading() as transaction:
            true = transaction.snapshot(job)
        snapshot = Snapshot(job, true.sequence + 1, true.code, true.content)
        store.write(lambda transaction: transaction.put_snapshot(snapshot), job)
        findings = Findings()
        check_beliefs(store, job, findings)
        assert findings.faults() == {Fault.BELIEFS}


def test_jobs_that_are_gone_are_lost(history, tmp_path):
    """A store that forgot a whole job must not pass for want of anything to check."""
    _, calls = history
    with Store.open(tmp_path / "store.sqlite") as store:
        assert check_store(store, calls, []).faults() == {Fault.LOST}


def test_a_recorder_writes_before_it_asks_and_before_it_answers(tmp_path):
    """Otherwise a kill loses a request that was carried out."""
    path, call = tmp_path / "calls", Call("decide", 1, "k", {"after": None})
    with Recorder(path) as recorder:
        contents = []
        recorder.carry_out(call, lambda: contents.append(path.read_text()) or {"id": "1.1"})
    assert json.loads(contents[0])["key"] == "k"
    assert read_calls([path]) == [dataclasses.replace(call, answer={"id": "1.1"})]


def test_a_recorder_goes_on_after_a_torn_line(tmp_path):
    """A kill may leave half a line, which must not swallow what the next life writes."""
    path = tmp_path / "calls"
    for number in range(2):
        with Recorder(path) as recorder:
            recorder.carry_out(Call("decide", 1, f"k{number}", {}), dict)
        with path.open("ab") as file:
            file.write(b'{"call": "torn')
    assert [(call.key, call.answer) for call in read_calls([path])] == [("k0", {}), ("k1", {})]


def test_a_recorder_tells_doubt_from_refusal(tmp_path):
    """What a dead server did is unknown; what a server refused was not done."""
    path = tmp_path / "calls"

    def fail(error):
        raise error

    with Recorder(path) as recorder:
        for error in (StoreBusyError("busy", remedy="-"), ConflictError("no", remedy="-")):
            call = Call("decide", 1, type(error).__name__, {})
            assert recorder.carry_out(call, lambda error=error: fail(error)) is None
    busy, refused = read_calls([path])
    assert busy.open
    assert refused.refused == "ConflictError: no"
