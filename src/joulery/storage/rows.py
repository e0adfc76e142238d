"""Rows of tables to records and back."""

from __future__ import annotations

from typing import Any

from joulery.storage.documents import Written, from_text, to_text
from joulery.storage.records import (
    DecisionRecord,
    DecisionState,
    EnergyRecord,
    Event,
    EventKind,
    JobRecord,
    NewJob,
    OutcomeRecord,
    ProfileRecord,
    Snapshot,
)

Row = Any  # SQLAlchemy's rows have the columns as attributes
Values = dict[str, Any]

_SIGN = 2**63


def job_row(job: NewJob) -> Values:
    """What is stored of a new job."""
    return {
        "team": job.team,
        "name": job.name,
        "device": job.device,
        "inherits": job.inherits,
        "specification": to_text(job.specification),
        "policy": job.policy,
        "parameters": to_text(job.parameters),
        "seed": job.seed % (2 * _SIGN) - _SIGN,  # databases have signed numbers only
    }


def job_of(row: Row) -> JobRecord:
    """A stored job."""
    job = NewJob(
        team=row.team,
        name=row.name,
        specification=from_text(row.specification),
        policy=row.policy,
        parameters=from_text(row.parameters),
        seed=row.seed + _SIGN,
        inherits=row.inherits,
        device=row.device,
    )
    return JobRecord(
        id=row.id,
        version=row.version,
        job=job,
        created_wall_seconds=row.created_wall_seconds,
        paused=bool(row.paused),
        events=row.events,
        recurrences=row.recurrences,
    )


def event_row(job: int, sequence: int, event: Event) -> Values:
    """What is stored of an event."""
    return {
        "job_id": job,
        "sequence": sequence,
        "kind": int(event.kind),
        "decision": event.decision,
        "body": to_text(event.body),
        "wall_seconds": event.wall_seconds,
    }


def event_of(row: Row) -> Event:
    """A stored event."""
    return Event(
        row.sequence, EventKind(row.kind), row.decision, from_text(row.body), row.wall_seconds
    )


def decision_row(decision: DecisionRecord) -> Values:
    """What is stored of a decision."""
    progress = decision.progress
    return {
        "job_id": decision.job,
        "sequence": decision.sequence,
        "key": decision.key,
        "recurrence": decision.recurrence,
        "action": to_text(decision.action),
        "reason": decision.reason,
        "request": to_text(decision.request),
        "issued_wall_seconds": decision.issued_wall_seconds,
        "deadline_wall_seconds": decision.deadline_wall_seconds,
        "state": int(decision.state),
        "heartbeat_wall_seconds": decision.heartbeat_wall_seconds,
        "progress": None if progress is None else to_text(progress),
    }


def decision_of(row: Row) -> DecisionRecord:
    """A stored decision."""
    return DecisionRecord(
        job=row.job_id,
        sequence=row.sequence,
        key=row.key,
        recurrence=row.recurrence,
        action=Written(from_text(row.action), row.action),
        reason=row.reason,
        request=from_text(row.request),
        issued_wall_seconds=row.issued_wall_seconds,
        deadline_wall_seconds=row.deadline_wall_seconds,
        state=DecisionState(row.state),
        heartbeat_wall_seconds=row.heartbeat_wall_seconds,
        progress=None if row.progress is None else from_text(row.progress),
    )


def outcome_row(outcome: OutcomeRecord) -> Values:
    """What is stored of a report."""
    return {
        "job_id": outcome.job,
        "decision": outcome.decision,
        "key": outcome.key,
        "body": to_text(outcome.body),
        "event": outcome.event,
        "late": outcome.late,
        "wall_seconds": outcome.wall_seconds,
    }


def outcome_of(row: Row) -> OutcomeRecord:
    """A stored report."""
    return OutcomeRecord(
        row.job_id,
        row.decision,
        row.key,
        from_text(row.body),
        row.event,
        bool(row.late),
        row.wall_seconds,
    )


def snapshot_row(snapshot: Snapshot) -> Values:
    """What is stored of a snapshot."""
    return {
        "job_id": snapshot.job,
        "sequence": snapshot.sequence,
        "code": snapshot.code,
        "content": snapshot.content,
    }


def profile_row(profile: ProfileRecord) -> Values:
    """What is stored of a profile."""
    return {
        "job_id": profile.job,
        "batch_size": profile.batch_size,
        "device": profile.device,
        "frontier": to_text(profile.frontier),
        "wall_seconds": profile.wall_seconds,
    }


def profile_of(row: Row) -> ProfileRecord:
    """A stored profile."""
    return ProfileRecord(
        row.job_id, row.batch_size, row.device, from_text(row.frontier), row.wall_seconds
    )


def energy_row(used: EnergyRecord) -> Values:
    """What is stored of energy that was used."""
    return {
        "job_id": used.job,
        "decision": used.decision,
        "device": used.device,
        "seconds": used.seconds,
        "joules": used.joules,
        "provenance": to_text(used.provenance),
        "wall_seconds": used.wall_seconds,
    }


def energy_of(row: Row) -> EnergyRecord:
    """Stored energy."""
    return EnergyRecord(
        row.job_id,
        row.decision,
        row.device,
        row.seconds,
        row.joules,
        from_text(row.provenance),
        row.wall_seconds,
    )
