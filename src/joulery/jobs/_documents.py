"""Stored jobs, decisions and measurements as the documents that clients see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.errors import UnknownRecordError
from joulery.frontier import Frontier
from joulery.jobs._job_registry import job_from, own_parameters, warm_start_text
from joulery.jobs._models import (
    DecisionEntry,
    DecisionPage,
    Definition,
    EnergyEntry,
    EnergyPage,
    JobEntry,
    JobPage,
    Outcome,
    ProfileEntry,
    ProfileList,
    decision_id,
    parse_decision_id,
)
from joulery.jobs._service import answer
from joulery.storage import (
    EnergyRecord,
    OutcomeRecord,
    ProfileRecord,
    add_energy,
    put_profile,
    records,
)

if TYPE_CHECKING:
    from joulery.storage import DecisionRecord, JobRecord, Transaction

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


def job_page(transaction: Transaction, team: str, after: int, limit: int) -> JobPage:
    """Jobs of a team with numbers above ``after``, at most ``limit``."""
    found = transaction.jobs(team, after, limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return JobPage(tuple(map(job_entry, found[:limit])), following)


def decision_page(transaction: Transaction, job: int, after: int, limit: int) -> DecisionPage:
    """Decisions of a job with numbers above ``after``, at most ``limit``.

    Raises:
        UnknownRecordError: There is no such job.
    """
    transaction.job(job)
    found = transaction.decisions(job, after, limit + 1)
    # A decision has at most one outcome, so those of the page are the first after its beginning.
    first = found[0].sequence if found else 0
    outcomes = records(transaction, OutcomeRecord, job, first - 1, min(limit, len(found)))
    by_decision = {one.decision: one for one in outcomes}
    entries = tuple(_decision_entry(one, by_decision.get(one.sequence)) for one in found[:limit])
    return DecisionPage(entries, found[limit - 1].sequence if len(found) > limit else None)


def _decision_entry(record: DecisionRecord, report: OutcomeRecord | None) -> DecisionEntry:
    return DecisionEntry(
        decision=answer(record),
        number=record.sequence,
        key=record.key,
        state=_STATES[record.state],  # type: ignore[arg-type]  # one of the literals
        heartbeat_wall_seconds=record.heartbeat_wall_seconds,
        outcome=None if report is None else Outcome.from_document(report.body),
        late=report is not None and report.late,
        quarantined=report is not None and report.ignored,
        reported_wall_seconds=None if report is None else report.wall_seconds,
    )


def profile_list(transaction: Transaction, job: int) -> ProfileList:
    """Time-energy frontiers of a job, by batch size.

    Raises:
        UnknownRecordError: There is no such job.
    """
    transaction.job(job)
    return ProfileList(
        tuple(
            ProfileEntry(
                one.batch_size, one.device, Frontier.from_dict(one.frontier), one.wall_seconds
            )
            for one in records(transaction, ProfileRecord, job)
        )
    )


def keep_profile(
    transaction: Transaction, job: int, profile: ProfileEntry, now_wall_seconds: float
) -> None:
    """Store a frontier, in place of an earlier one of the same batch size and device."""
    frontier = profile.frontier.to_dict()
    put_profile(
        transaction,
        ProfileRecord(job, profile.batch_size, profile.device, frontier, now_wall_seconds),
    )


def energy_page(transaction: Transaction, job: int, after: int, limit: int) -> EnergyPage:
    """Energy of a job in the order in which it was reported, at most ``limit`` entries.

    Raises:
        UnknownRecordError: There is no such job.
    """
    transaction.job(job)
    found = records(transaction, EnergyRecord, job, after, limit + 1)
    entries = tuple(map(_energy_entry, found[:limit]))
    return EnergyPage(entries, found[limit - 1].id if len(found) > limit else None)


def decision_energy(transaction: Transaction, job: int, decision: int) -> tuple[EnergyEntry, ...]:
    """Energy that was used under a decision, by device."""
    found = records(transaction, EnergyRecord, job, decision=decision)
    return tuple(map(_energy_entry, sorted(found, key=lambda one: one.device)))


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


def note_energy(
    transaction: Transaction, job: int, used: EnergyEntry, now_wall_seconds: float
) -> None:
    """Store energy that was used; where a decision is named, once for each device.

    Raises:
        UnknownRecordError: It names a decision of another job.
        ConflictError: Another figure is stored for that decision and device.
    """
    decision = None
    if used.decision is not None:
        owner, decision = parse_decision_id(used.decision)
        if owner != job:
            raise UnknownRecordError(
                f"no decision {used.decision[:40]} of this job",
                remedy="give the id that came with the decision",
            )
    provenance: dict[str, Any] = {"origin": str(used.origin), "source": used.source}
    if used.relative_error is not None:
        provenance["relative_error"] = used.relative_error
    add_energy(
        transaction,
        EnergyRecord(
            job, decision, used.device, used.seconds, used.joules, provenance, now_wall_seconds
        ),
    )
