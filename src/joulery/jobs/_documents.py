"""Stored jobs, decisions and measurements as the documents that clients see."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, StoreError, UnknownRecordError, flaw_text
from joulery.frontier import Frontier
from joulery.jobs._job_registry import job_from, own_parameters, warm_start_text
from joulery.jobs._models import (
    Decision,
    DecisionEntry,
    Definition,
    EnergyEntry,
    JobEntry,
    Outcome,
    ProfileEntry,
    decision_id,
    parse_decision_id,
)
from joulery.jobs._posterior import job_beliefs
from joulery.jobs.policies import ActionKind
from joulery.storage import EnergyRecord, OutcomeRecord, ProfileRecord, records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.storage import DecisionRecord, JobHead, JobRecord, Transaction

# Jobs, and latest events of each, that are read as a sample (by hand: less than a second).
_CHECKED_JOBS, _CHECKED_EVENTS = 100, 4
_FORGOTTEN = "later reports outvoted it, and it is too old to be judged again"
_STATES = ("open", "reported", "expired")


def job_entry(record: JobRecord) -> JobEntry:
    """A stored job as its team sees it."""
    return JobEntry(
        id=record.id,
        team=record.team,
        version=record.version,
        inherits=record.inherits,
        warm_start=warm_start_text(record),
        paused=record.paused,
        definition=Definition(
            job_from(record), record.device, record.policy, own_parameters(record)
        ),
        created_wall_seconds=record.created_wall_seconds,
        events=record.events,
        recurrences=record.recurrences,
    )


def check_documents(transaction: Transaction, heads: Sequence[JobHead]) -> None:
    """Check that this version can read all jobs, and the latest decisions of a sample of them.

    Raises:
        StoreError: It cannot, so lists and pages would fail.
    """
    try:
        for team in {head.team for head in heads}:
            following: int | None = 0
            while following is not None:
                _, following = job_page(transaction, team, following, _CHECKED_JOBS)
        for head in heads[-_CHECKED_JOBS:]:
            after = max(0, head.events - _CHECKED_EVENTS)
            decision_page(transaction, head.id, after, _CHECKED_EVENTS)
    except (InvalidValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"a job of this store was written by another version: {flaw_text(error)}",
            remedy="serve it with the version that wrote it, or begin a new store",
        ) from error


def job_page(
    transaction: Transaction, team: str, after: int, limit: int
) -> tuple[list[JobEntry], int | None]:
    """Jobs of a team with numbers above ``after``, at most ``limit``; and where the next begin."""
    rows = transaction.jobs(team, after, limit + 1)
    following = rows[limit - 1].id if len(rows) > limit else None
    return list(map(job_entry, rows[:limit])), following


def decision_page(
    transaction: Transaction, job: int, after: int, limit: int
) -> tuple[list[DecisionEntry], int | None]:
    """Decisions of a job with numbers above ``after``, at most ``limit``; and the next number.

    Raises:
        UnknownRecordError: There is no such job.
    """
    record = transaction.job(job)
    rows = transaction.decisions(job, after, limit + 1)
    # A decision has at most one outcome, so those of the page are the first after its beginning.
    first = rows[0].sequence if rows else 0
    outcomes = records(transaction, OutcomeRecord, job, first - 1, min(limit, len(rows)))
    reports = {report.decision: report for report in outcomes}
    reasons: dict[int, str] = {}
    if any(report.ignored for report in outcomes):
        reasons = job_beliefs(transaction, record).quarantine
    entries = [_decision_entry(row, reports.get(row.sequence), reasons) for row in rows[:limit]]
    return entries, rows[limit - 1].sequence if len(rows) > limit else None


def _decision_entry(
    record: DecisionRecord, report: OutcomeRecord | None, reasons: Mapping[int, str]
) -> DecisionEntry:
    ignored = report is not None and report.ignored
    return DecisionEntry(
        decision=decision_from(record),
        number=record.sequence,
        key=record.key,
        state=_STATES[record.state],  # type: ignore[arg-type]  # one of the literals
        heartbeat_wall_seconds=record.heartbeat_wall_seconds,
        outcome=None if report is None else Outcome.from_document(report.body),
        late=report is not None and report.late,
        quarantined=ignored,
        reported_wall_seconds=None if report is None else report.wall_seconds,
        quarantine_reason=reasons.get(record.sequence, _FORGOTTEN) if ignored else "",
    )


def decision_from(record: DecisionRecord) -> Decision:
    """A stored decision as its holder sees it, with the deadline that holds now."""
    action = record.action
    ceiling = action["ceiling"]
    return Decision(
        id=decision_id(record.job, record.sequence),
        recurrence=record.recurrence,
        kind=ActionKind(action["kind"]),
        batch_size=action["batch_size"],
        power_limit_watts=action["power_limit_watts"],
        probe_limits_watts=tuple(action["probe_limits_watts"]),
        cost_ceiling_joules=math.inf if ceiling is None else ceiling,
        reason=record.reason,
        expires_wall_seconds=record.deadline_wall_seconds,
        issued_wall_seconds=record.issued_wall_seconds,
        volunteered=action.get("volunteered", False),
    )


def profile_list(transaction: Transaction, job: int) -> list[ProfileEntry]:
    """Time-energy frontiers of a job, by batch size.

    Raises:
        UnknownRecordError: There is no such job.
    """
    transaction.job(job)
    return [
        ProfileEntry(
            record.batch_size,
            record.device,
            Frontier.from_dict(record.frontier),
            record.wall_seconds,
        )
        for record in records(transaction, ProfileRecord, job)
    ]


def profile_record(job: int, profile: ProfileEntry, now_wall_seconds: float) -> ProfileRecord:
    """A frontier as it is stored."""
    frontier = profile.frontier.to_dict()
    return ProfileRecord(job, profile.batch_size, profile.device, frontier, now_wall_seconds)


def energy_page(
    transaction: Transaction, job: int, after: int, limit: int
) -> tuple[list[EnergyEntry], int | None]:
    """Energy of a job in the order of the reports, at most ``limit``; and the next number.

    Raises:
        UnknownRecordError: There is no such job.
    """
    transaction.job(job)
    rows = records(transaction, EnergyRecord, job, after, limit + 1)
    following = rows[limit - 1].id if len(rows) > limit else None
    return list(map(_energy_entry, rows[:limit])), following


def decision_energy(transaction: Transaction, job: int, decision: int) -> tuple[EnergyEntry, ...]:
    """Energy that was used under a decision, by device."""
    rows = records(transaction, EnergyRecord, job, decision=decision)
    return tuple(map(_energy_entry, sorted(rows, key=lambda record: record.device)))


def _energy_entry(record: EnergyRecord) -> EnergyEntry:
    return EnergyEntry(
        decision=None if record.decision is None else decision_id(record.job, record.decision),
        device=record.device,
        seconds=record.seconds,
        joules=record.joules,
        origin=record.provenance.get("origin", "assumed"),
        source=record.provenance.get("source", ""),
        relative_error=record.provenance.get("relative_error"),
        wall_seconds=record.wall_seconds,
    )


def energy_record(job: int, energy: EnergyEntry, now_wall_seconds: float) -> EnergyRecord:
    """Energy as it is stored.

    Raises:
        UnknownRecordError: It names a decision of another job.
    """
    decision = None
    if energy.decision is not None:
        owner, decision = parse_decision_id(energy.decision)
        if owner != job:
            raise UnknownRecordError(
                f"no decision {energy.decision[:40]} of this job",
                remedy="give the id that came with the decision",
            )
    provenance: dict[str, Any] = {"origin": str(energy.origin), "source": energy.source}
    if energy.relative_error is not None:
        provenance["relative_error"] = energy.relative_error
    return EnergyRecord(
        job, decision, energy.device, energy.seconds, energy.joules, provenance, now_wall_seconds
    )
