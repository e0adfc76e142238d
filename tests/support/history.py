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
        return {one.fault for one in self.violations}


def check_store(store: Store, calls: Sequence[Call], jobs: Iterable[int]) -> Findings:
    """Everything, of some jobs of a store that nobody writes to any more."""
    findings = Findings()
    of_job: defaultdict[int, list[Call]] = defaultdict(list)
    for call in calls:
        of_job[call.job].append(call)
    for job in jobs:
        with store.reading() as transaction:
            stored = Stored.of(transaction, job)
        check_job(stored, of_job.pop(job, []), findings)
        check_beliefs(store, job, findings)
    for job, strangers in of_job.items():
        answered = sum(call.answer is not None for call in strangers)
        findings.expect(Fault.LOST, f"job {job}", holds=not answered)
    return findings


def check_job(stored: Stored, calls: Iterable[Call], findings: Findings) -> None:
    """What a store has of a job, by itself and against what its clients say."""
    by_kind: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_kind[call.operation].append(call)
        findings.counts["calls"] += 1
        findings.counts["calls without an answer"] += call.open
        told = f"{call.operation} of job {call.job}, key {call.key}: {call.refused}"
        findings.expect(Fault.REFUSED, told, holds=call.refused is None)
    _check_numbers(stored, findings)
    _check_decisions(stored, by_kind["decide"], findings)
    _check_reports(stored, by_kind["report"], findings)
    _check_events(stored, findings)


def _check_numbers(stored: Stored, findings: Findings) -> None:
    """Events, decisions and recurrences count without gaps."""
    name = f"job {stored.record.id}"
    numbers = [event.sequence for event in stored.events]
    findings.counts["events"] += len(numbers)
    in_order = numbers == list(range(1, stored.record.events + 1))
    findings.expect(Fault.GAP, f"events of {name}", holds=in_order)
    issued = [event.sequence for event in stored.events if event.kind == EventKind.ISSUED]
    decided = [one.sequence for one in stored.decisions]
    findings.expect(Fault.GAP, f"decisions of {name}", holds=issued == decided)
    begun = sorted(one.recurrence for one in stored.decisions if one.request["after"] is None)
    counted = begun == list(range(stored.record.recurrences))
    findings.expect(Fault.GAP, f"recurrences of {name}", holds=counted)
    of_decision = {decision_id(one.job, one.sequence): one.recurrence for one in stored.decisions}
    for one in stored.decisions:
        after = one.request["after"]
        if after is not None:
            same = of_decision.get(after) == one.recurrence
            findings.expect(Fault.GAP, f"{name}, decision {one.sequence}", holds=same)


def _check_decisions(stored: Stored, calls: Iterable[Call], findings: Findings) -> None:
    keys = Counter(one.key for one in stored.decisions)
    made = {one.key: one for one in stored.decisions}
    for key, many in keys.items():
        findings.expect(Fault.DOUBLED, f"decision under {key}", holds=many == 1)
    findings.counts["decisions"] += len(stored.decisions)
    asked: set[str] = set()
    told: dict[str, Document] = {}
    holders: defaultdict[str, set[str]] = defaultdict(set)
    for call in calls:
        asked.add(call.key)
        if call.answer is None:
            continue
        findings.counts["decisions acknowledged"] += 1
        lasting = {name: call.answer[name] for name in _LASTING}
        holders[lasting["id"]].add(call.key)
        steady = told.setdefault(call.key, lasting) == lasting
        findings.expect(Fault.UNSTEADY, f"decision under {call.key}", holds=steady)
        _check_decision(made.get(call.key), call, lasting, findings)
    for key in keys.keys() - asked:
        findings.add(Fault.GHOST, f"decision under {key}")
    for name, owners in holders.items():
        findings.expect(Fault.SHARED, f"{name} of {sorted(owners)}", holds=len(owners) == 1)


def _check_decision(
    made: DecisionRecord | None, call: Call, lasting: Document, findings: Findings
) -> None:
    about = f"decision {lasting['id']} under {call.key}"
    if made is None:
        findings.add(Fault.LOST, about)
        return
    kept = decision_from(made).to_document()
    same = {name: kept[name] for name in _LASTING} == lasting
    same = same and Request.from_document(made.request) == Request(call.key, **call.sent)
    findings.expect(Fault.ALTERED, about, holds=same)


def _check_reports(stored: Stored, calls: Iterable[Call], findings: Findings) -> None:
    kept = {one.key: one for one in stored.outcomes}
    sent: defaultdict[str, list[tuple[int, Document]]] = defaultdict(list)
    told: dict[str, Document] = {}
    for call in calls:
        _, decision = parse_decision_id(call.sent["decision"])
        figures = Outcome.from_document(call.sent["outcome"]).to_document()
        sent[call.key].append((decision, figures))
        if call.answer is None:
            continue
        findings.counts["reports acknowledged"] += 1
        if call.answer:
            steady = told.setdefault(call.key, call.answer) == call.answer
            findings.expect(Fault.UNSTEADY, f"report under {call.key}", holds=steady)
        _check_report(kept.get(call.key), call, (decision, figures), findings)
    findings.counts["reports"] += len(stored.outcomes)
    for one in stored.outcomes:
        was_sent = any(
            decision == one.decision and figures == one.body for decision, figures in sent[one.key]
        )
        told_so = f"report on decision {one.decision} under {one.key}"
        findings.expect(Fault.GHOST, told_so, holds=was_sent)


def _check_report(
    one: OutcomeRecord | None, call: Call, told: tuple[int, Document], findings: Findings
) -> None:
    about = f"report on {call.sent['decision']} under {call.key}"
    if one is None:
        findings.add(Fault.LOST, about)
        return
    same = (one.decision, one.body) == told
    if call.answer:
        receipt = Receipt(call.sent["decision"], one.event, one.late, one.quarantined).to_document()
        same = same and receipt == call.answer
    findings.expect(Fault.ALTERED, about, holds=same)


def _check_events(stored: Stored, findings: Findings) -> None:
    """Every report became one event with its figures, and decisions stand where events put them."""
    job = job_from(stored.record)
    made = {one.sequence: one for one in stored.decisions}
    outcomes = {one.decision: one for one in stored.outcomes}
    kinds: defaultdict[int, list[EventKind]] = defaultdict(list)
    for event in stored.events:
        kinds[event.decision].append(event.kind)
        decision, one = made.get(event.decision), outcomes.get(event.decision)
        if decision is None or event.kind == EventKind.ISSUED:
            continue
        about = f"event {event.sequence} of job {stored.record.id}"
        if event.kind == EventKind.EXPIRED:  # nothing but a heartbeat can have told of it
            told, same = decision.progress, True
        elif one is None:
            findings.add(Fault.GHOST, about)
            continue
        else:
            told, late = one.body, event.kind == EventKind.LATE
            same = (one.event, one.late) == (event.sequence, late)
        outcome = None if told is None else Outcome.from_document(told)
        body = outcome_document(outcome, job, decision.action, decision.recurrence)
        findings.expect(Fault.ALTERED, about, holds=same and body == event.body)
    for number, decision in made.items():
        _check_state(decision, kinds[number], findings)
    findings.counts["expired"] += sum(EventKind.EXPIRED in many for many in kinds.values())
    findings.counts["late"] += sum(EventKind.LATE in many for many in kinds.values())


def _check_state(decision: DecisionRecord, kinds: list[EventKind], findings: Findings) -> None:
    about = f"decision {decision_id(decision.job, decision.sequence)}"
    ends = sum(kind in _ENDS for kind in kinds)
    findings.expect(Fault.DOUBLED, f"report on {about}", holds=ends <= 1)
    allowed = {
        DecisionState.OPEN: ([EventKind.ISSUED],),
        DecisionState.EXPIRED: ([EventKind.ISSUED, EventKind.EXPIRED],),
        DecisionState.REPORTED: (
            [EventKind.ISSUED, EventKind.OUTCOME],
            [EventKind.ISSUED, EventKind.EXPIRED, EventKind.LATE],
        ),
    }
    findings.expect(Fault.STATE, about, holds=kinds in allowed[decision.state])


def check_beliefs(store: Store, job: int, findings: Findings) -> None:
    """A snapshot with what came after it says, bit for bit, what all events say."""

    def both(transaction: Transaction) -> tuple[JobState, JobState, bool]:
        resumed = PosteriorCache(1).current(transaction, transaction.lock(job))
        return (
            resumed,
            rebuilt(transaction, transaction.job(job)),
            transaction.snapshot(job) is not None,
        )

    resumed, whole, from_snapshot = store.write(both, job)
    findings.counts["beliefs"] += 1
    findings.counts["beliefs from snapshots"] += from_snapshot
    same = bits(resumed) is not None and bits(resumed) == bits(whole)
    findings.expect(Fault.BELIEFS, f"job {job}", holds=same)


def bits(folded: JobState) -> bytes | None:
    """All that a process believes of a job; None where it cannot be told."""
    beside = {"latest": folded.reports.to_list(), "sequence": folded.sequence}
    return serialize((folded.settled, folded.beliefs), beside)
