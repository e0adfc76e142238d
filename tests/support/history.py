"""Whether a store agrees with what its clients were told: nothing lost, doubled, altered, made up.

The clients' side is in :mod:`support.history_file`. Everything here looks at plain values,
so that the checker itself can be tested with histories that were tampered with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from joulery.jobs import Outcome, Receipt, Request, parse_decision_id
from joulery.jobs._documents import decision_from
from joulery.jobs._job_registry import job_from
from joulery.jobs._models import decision_id
from joulery.jobs._posterior import PosteriorCache, rebuilt
from joulery.jobs._replay import outcome_document
from joulery.jobs._snapshot import serialize
from joulery.storage import DecisionState, EventKind, OutcomeRecord, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.jobs._posterior import JobState
    from joulery.storage import (
        DecisionRecord,
        Document,
        Event,
        JobRecord,
        Store,
        Transaction,
    )
    from support.history_file import Call

# What a decision keeps for ever; its deadline moves, and its token is the server's affair.
_LASTING = (
    "id",
    "recurrence",
    "kind",
    "batch_size",
    "power_limit_watts",
    "probe_limits_watts",
    "cost_ceiling_joules",
    "reason",
)
_ENDS = (EventKind.OUTCOME, EventKind.LATE)


class Fault(StrEnum):
    """What may be wrong."""

    LOST = "lost"  # acknowledged, and not stored
    DOUBLED = "doubled"  # counted more than once
    ALTERED = "altered"  # stored otherwise than it was told or acknowledged
    GHOST = "ghost"  # stored, and sent by nobody
    GAP = "gap"  # numbers are missing, or come twice
    SHARED = "shared"  # one decision for two requests
    UNSTEADY = "unsteady"  # one request, two answers
    REFUSED = "refused"  # a request that was in order
    STATE = "state"  # a decision stands where its events do not put it
    BELIEFS = "beliefs"  # a snapshot and the events after it say otherwise than all events


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken.

    Attributes:
        fault: Which.
        about: What it is about, in words.
    """

    fault: Fault
    about: str


@dataclass(frozen=True, slots=True)
class Stored:
    """All that a store has of a job.

    Attributes:
        record: The job.
        events: In their order.
        decisions: In their order.
        outcomes: Likewise.
    """

    record: JobRecord
    events: Sequence[Event]
    decisions: Sequence[DecisionRecord]
    outcomes: Sequence[OutcomeRecord]

    @classmethod
    def of(cls, transaction: Transaction, job: int) -> Stored:
        """Read it, within one transaction."""
        record = transaction.job(job)
        outcomes = records(transaction, OutcomeRecord, job)
        return cls(
            record,
            list(transaction.events(job)),
            transaction.decisions(job, limit=2**31),
            outcomes,
        )


@dataclass(slots=True)
class Findings:
    """What a check found.

    Attributes:
        violations: Broken promises; none if all is well.
        counts: How much was looked at, by kind.
    """

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, fault: Fault, about: str) -> None:
        """Note a broken promise."""
        self.violations.append(Violation(fault, about))

    def expect(self, fault: Fault, about: str, *, holds: bool) -> None:
        """Note a broken promise if it is one."""
        if not holds:
            self.add(fault, about)

    def faults(self) -> set[Fault]:
        """Kinds of broken promises."""
        return {violation.fault for violation in self.violations}


def check_store(store: Store, calls: Sequence[Call], jobs: Iterable[int]) -> Findings:
    """Everything, of some jobs of a store that nobody writes to any more."""
    findings = Findings()
    of_job: defaultdict[int, list[Call]] = defaultdict(list)
    for call in calls:
        of_job[call.job].append(call)
    for job in jobs:
        with store.reading() as transaction:
            records_of_job = Stored.of(transaction, job)
        check_job(records_of_job, of_job.pop(job, []), findings)
        check_beliefs(store, job, findings)
    for job, strangers in of_job.items():
        answers = sum(call.answer is not None for call in strangers)
        findings.expect(Fault.LOST, f"job {job}", holds=not answers)
    return findings


def check_job(history: Stored, calls: Iterable[Call], findings: Findings) -> None:
    """What a store has of a job, by itself and against what its clients say."""
    by_kind: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_kind[call.operation].append(call)
        findings.counts["calls"] += 1
        findings.counts["calls without an answer"] += call.open
        text = f"{call.operation} of job {call.job}, key {call.key}: {call.refused}"
        findings.expect(Fault.REFUSED, text, holds=call.refused is None)
    _check_numbers(history, findings)
    _check_decisions(history, by_kind["decide"], findings)
    _check_reports(history, by_kind["report"], findings)
    _check_events(history, findings)


def _check_numbers(history: Stored, findings: Findings) -> None:
    """Events, decisions and recurrences count without gaps."""
    name = f"job {history.record.id}"
    numbers = [event.sequence for event in history.events]
    findings.counts["events"] += len(numbers)
    in_order = numbers == list(range(1, history.record.events + 1))
    findings.expect(Fault.GAP, f"events of {name}", holds=in_order)
    issued = [event.sequence for event in history.events if event.kind == EventKind.ISSUED]
    decided = [decision.sequence for decision in history.decisions]
    findings.expect(Fault.GAP, f"decisions of {name}", holds=issued == decided)
    recurrences = sorted(
        decision.recurrence for decision in history.decisions if decision.request["after"] is None
    )
    complete = recurrences == list(range(history.record.recurrences))
    findings.expect(Fault.GAP, f"recurrences of {name}", holds=complete)
    of_decision = {
        decision_id(decision.job, decision.sequence): decision.recurrence
        for decision in history.decisions
    }
    for decision in history.decisions:
        after = decision.request["after"]
        if after is not None:
            matches = of_decision.get(after) == decision.recurrence
            findings.expect(Fault.GAP, f"{name}, decision {decision.sequence}", holds=matches)


def _check_decisions(history: Stored, calls: Iterable[Call], findings: Findings) -> None:
    keys = Counter(decision.key for decision in history.decisions)
    decisions = {decision.key: decision for decision in history.decisions}
    for key, many in keys.items():
        findings.expect(Fault.DOUBLED, f"decision under {key}", holds=many == 1)
    findings.counts["decisions"] += len(history.decisions)
    requested: set[str] = set()
    answers: dict[str, Document] = {}
    holders: defaultdict[str, set[str]] = defaultdict(set)
    for call in calls:
        requested.add(call.key)
        if call.answer is None:
            continue
        findings.counts["decisions acknowledged"] += 1
        lasting = {name: call.answer[name] for name in _LASTING}
        holders[lasting["id"]].add(call.key)
        steady = answers.setdefault(call.key, lasting) == lasting
        findings.expect(Fault.UNSTEADY, f"decision under {call.key}", holds=steady)
        _check_decision(decisions.get(call.key), call, lasting, findings)
    for key in keys.keys() - requested:
        findings.add(Fault.GHOST, f"decision under {key}")
    for name, owners in holders.items():
        findings.expect(Fault.SHARED, f"{name} of {sorted(owners)}", holds=len(owners) == 1)


def _check_decision(
    decision: DecisionRecord | None, call: Call, lasting: Document, findings: Findings
) -> None:
    about = f"decision {lasting['id']} under {call.key}"
    if decision is None:
        findings.add(Fault.LOST, about)
        return
    document = decision_from(decision).to_document()
    matches = {name: document[name] for name in _LASTING} == lasting
    matches = matches and Request.from_document(decision.request) == Request(call.key, **call.sent)
    findings.expect(Fault.ALTERED, about, holds=matches)


def _check_reports(history: Stored, calls: Iterable[Call], findings: Findings) -> None:
    outcomes = {outcome.key: outcome for outcome in history.outcomes}
    reports: defaultdict[str, list[tuple[int, Document]]] = defaultdict(list)
    receipts: dict[str, Document] = {}
    for call in calls:
        _, decision = parse_decision_id(call.sent["decision"])
        figures = Outcome.from_document(call.sent["outcome"]).to_document()
        reports[call.key].append((decision, figures))
        if call.answer is None:
            continue
        findings.counts["reports acknowledged"] += 1
        if call.answer:
            answer = call.answer | {"reason": ""}  # which is that of the moment
            steady = receipts.setdefault(call.key, answer) == answer
            findings.expect(Fault.UNSTEADY, f"report under {call.key}", holds=steady)
        _check_report(outcomes.get(call.key), call, (decision, figures), findings)
    findings.counts["reports"] += len(history.outcomes)
    for outcome in history.outcomes:
        was_sent = any(
            decision == outcome.decision and figures == outcome.body
            for decision, figures in reports[outcome.key]
        )
        told_so = f"report on decision {outcome.decision} under {outcome.key}"
        findings.expect(Fault.GHOST, told_so, holds=was_sent)


def _check_report(
    outcome: OutcomeRecord | None, call: Call, report: tuple[int, Document], findings: Findings
) -> None:
    about = f"report on {call.sent['decision']} under {call.key}"
    if outcome is None:
        findings.add(Fault.LOST, about)
        return
    matches = (outcome.decision, outcome.body) == report
    if call.answer:
        receipt = Receipt(
            call.sent["decision"], outcome.event, outcome.late, outcome.quarantined
        ).to_document()
        matches = matches and receipt == call.answer | {"reason": ""}
    findings.expect(Fault.ALTERED, about, holds=matches)


def _check_events(history: Stored, findings: Findings) -> None:
    """Every report became one event with its figures, and decisions stand where events put them."""
    job = job_from(history.record)
    decisions = {decision.sequence: decision for decision in history.decisions}
    outcomes = {outcome.decision: outcome for outcome in history.outcomes}
    kinds: defaultdict[int, list[EventKind]] = defaultdict(list)
    for event in history.events:
        kinds[event.decision].append(event.kind)
        decision, outcome_record = decisions.get(event.decision), outcomes.get(event.decision)
        if decision is None or event.kind == EventKind.ISSUED:
            continue
        about = f"event {event.sequence} of job {history.record.id}"
        if event.kind == EventKind.EXPIRED:  # nothing but a heartbeat can have told of it
            progress, matches = decision.progress, True
        elif outcome_record is None:
            findings.add(Fault.GHOST, about)
            continue
        else:
            progress, late = outcome_record.body, event.kind == EventKind.LATE
            matches = (outcome_record.event, outcome_record.late) == (event.sequence, late)
        outcome = None if progress is None else Outcome.from_document(progress)
        body = outcome_document(outcome, job, decision.action, decision.recurrence)
        findings.expect(Fault.ALTERED, about, holds=matches and body == event.body)
    for number, decision in decisions.items():
        _check_state(decision, kinds[number], findings)
    findings.counts["expired"] += sum(EventKind.EXPIRED in many for many in kinds.values())
    findings.counts["late"] += sum(EventKind.LATE in many for many in kinds.values())


def _check_state(decision: DecisionRecord, kinds: list[EventKind], findings: Findings) -> None:
    about = f"decision {decision_id(decision.job, decision.sequence)}"
    ends = sum(kind in _ENDS for kind in kinds)
    findings.expect(Fault.DOUBLED, f"report on {about}", holds=ends <= 1)
    states = {
        DecisionState.OPEN: ([EventKind.ISSUED],),
        DecisionState.EXPIRED: ([EventKind.ISSUED, EventKind.EXPIRED],),
        DecisionState.REPORTED: (
            [EventKind.ISSUED, EventKind.OUTCOME],
            [EventKind.ISSUED, EventKind.EXPIRED, EventKind.LATE],
        ),
    }
    findings.expect(Fault.STATE, about, holds=kinds in states[decision.state])


def check_beliefs(store: Store, job: int, findings: Findings) -> None:
    """A snapshot with what came after it says, bit for bit, what all events say."""

    def both(transaction: Transaction) -> tuple[JobState, JobState, bool]:
        resumed = PosteriorCache(1).current(transaction, transaction.lock(job))
        return (
            resumed,
            rebuilt(transaction, transaction.job(job)),
            transaction.snapshot(job) is not None,
        )

    resumed, rebuilt_state, from_snapshot = store.write(both, job)
    findings.counts["beliefs"] += 1
    findings.counts["beliefs from snapshots"] += from_snapshot
    identical = bits(resumed) is not None and bits(resumed) == bits(rebuilt_state)
    findings.expect(Fault.BELIEFS, f"job {job}", holds=identical)


def bits(folded: JobState) -> bytes | None:
    """All that a process believes of a job; None where it cannot be told."""
    beside = {"latest": folded.reports.to_list(), "sequence": folded.sequence}
    return serialize((folded.settled, folded.beliefs), beside)
