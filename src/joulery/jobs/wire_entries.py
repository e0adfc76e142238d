"""Jobs and decisions as lists show them, as JSON documents and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.jobs.idempotency import answer
from joulery.jobs.job_registry import inheritance_said
from joulery.jobs.models import Decision, Outcome
from joulery.jobs.wire import (
    decision_document,
    decision_from,
    outcome_document,
    outcome_from,
)
from joulery.jobs.wire_members import (
    checked,
    items,
    member,
    number,
    number_or_none,
    text,
    truth,
    whole,
    whole_or_none,
)

if TYPE_CHECKING:
    from joulery.jobs.wire_members import Document
    from joulery.storage.records import DecisionRecord, JobRecord, OutcomeRecord

MOST_PER_PAGE = 1000
_LONGEST_SAID = 2000
_STATES = ("open", "reported", "expired")


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as its team sees it.

    Attributes:
        id: Of this version.
        team: Namespace.
        name: Unique within the team and device.
        device: Kind of device that it runs on; empty for any.
        version: Counts from 1.
        inherits: The version or sibling that it started from.
        said: In words what it inherited; empty for nothing.
        paused: Whether decisions are refused.
        policy: That chooses.
        parameters: Of the policy.
        specification: What may be chosen.
        created_wall_seconds: When.
        events: How many there are.
        recurrences: How many were begun.
    """

    id: int
    team: str
    name: str
    device: str
    version: int
    inherits: int | None
    said: str
    paused: bool
    policy: str
    parameters: dict[str, float]
    specification: Document
    created_wall_seconds: float
    events: int
    recurrences: int

    @classmethod
    def of(cls, record: JobRecord) -> JobEntry:
        """A stored job."""
        job = record.job
        return cls(
            id=record.id,
            team=job.team,
            name=job.name,
            device=job.device,
            version=record.version,
            inherits=job.inherits,
            said=inheritance_said(record),
            paused=record.paused,
            policy=job.policy,
            parameters={k: v for k, v in job.parameters.items() if k != "inherited"},
            specification=job.specification,
            created_wall_seconds=record.created_wall_seconds,
            events=record.events,
            recurrences=record.recurrences,
        )


def job_entry_document(entry: JobEntry) -> Document:
    """A job as its team sees it."""
    return asdict(entry)


def job_entry_from(document: Any) -> JobEntry:
    """What :func:`job_entry_document` was given."""
    checked(document, "a job", [field.name for field in fields(JobEntry)])
    specification, parameters = member(document, "specification"), member(document, "parameters")
    if not isinstance(specification, dict) or not isinstance(parameters, dict):
        raise InvalidValueError(
            "specification and parameters must be objects", remedy="send them as they were given"
        )
    return JobEntry(
        id=whole(document, "id"),
        team=text(document, "team"),
        name=text(document, "name"),
        device=text(document, "device"),
        version=whole(document, "version"),
        inherits=whole_or_none(document, "inherits"),
        said=text(document, "said", longest=_LONGEST_SAID),
        paused=truth(document, "paused"),
        policy=text(document, "policy"),
        parameters=parameters,
        specification=specification,
        created_wall_seconds=number(document, "created_wall_seconds"),
        events=whole(document, "events"),
        recurrences=whole(document, "recurrences"),
    )


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """A decision as its team sees it.

    Attributes:
        decision: Without its token.
        number: Of the event that issued it; pages go on after it.
        key: That it was asked for under.
        state: ``open``, ``reported`` or ``expired``.
        issued_wall_seconds: When.
        heartbeat_wall_seconds: When its holder was last heard from, if ever.
        outcome: What was reported.
        late: Whether it was given up before the report.
        reported_wall_seconds: When the report came.
    """

    decision: Decision
    number: int
    key: str
    state: str
    issued_wall_seconds: float
    heartbeat_wall_seconds: float | None = None
    outcome: Outcome | None = None
    late: bool = False
    reported_wall_seconds: float | None = None

    @classmethod
    def of(cls, record: DecisionRecord, told: OutcomeRecord | None) -> DecisionEntry:
        """A stored decision and the report on it."""
        return cls(
            decision=answer(record),
            number=record.sequence,
            key=record.key,
            state=_STATES[record.state],
            issued_wall_seconds=record.issued_wall_seconds,
            heartbeat_wall_seconds=record.heartbeat_wall_seconds,
            outcome=None if told is None else Outcome.from_document(told.body),
            late=told is not None and told.late,
            reported_wall_seconds=None if told is None else told.wall_seconds,
        )


def decision_entry_document(entry: DecisionEntry) -> Document:
    """A decision as its team sees it."""
    return {
        "decision": decision_document(entry.decision),
        "number": entry.number,
        "key": entry.key,
        "state": entry.state,
        "issued_wall_seconds": entry.issued_wall_seconds,
        "heartbeat_wall_seconds": entry.heartbeat_wall_seconds,
        "outcome": None if entry.outcome is None else outcome_document(entry.outcome),
        "late": entry.late,
        "reported_wall_seconds": entry.reported_wall_seconds,
    }


def decision_entry_from(document: Any) -> DecisionEntry:
    """What :func:`decision_entry_document` was given."""
    checked(document, "a decision of a page", [field.name for field in fields(DecisionEntry)])
    outcome = document.get("outcome")
    return DecisionEntry(
        decision=decision_from(member(document, "decision")),
        number=whole(document, "number"),
        key=text(document, "key"),
        state=text(document, "state"),
        issued_wall_seconds=number(document, "issued_wall_seconds"),
        heartbeat_wall_seconds=number_or_none(document, "heartbeat_wall_seconds"),
        outcome=None if outcome is None else outcome_from(outcome),
        late=truth(document, "late"),
        reported_wall_seconds=number_or_none(document, "reported_wall_seconds"),
    )


def page_document(name: str, entries: list[Document], following: int | None) -> Document:
    """A page of a list; ``following`` is where the next one begins, None at the end."""
    return {name: entries, "next": following}


def page_from(document: Any, name: str) -> tuple[list[Any], int | None]:
    """What :func:`page_document` was given; the entries are still to be read."""
    checked(document, "a page", (name, "next"))
    return items(document, name, MOST_PER_PAGE), whole_or_none(document, "next")
