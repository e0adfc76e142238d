"""Profiles and energy, which no policy learns from; and what lists and totals read at once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import and_, case, delete, func, insert, literal_column, select

from joulery.errors import ConflictError
from joulery.storage._records import DecisionRecord, EnergyRecord, OutcomeRecord, ProfileRecord
from joulery.storage._schema import decisions, energy, jobs, outcomes, profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Row

    from joulery.storage._transaction import Transaction

Record = TypeVar("Record", OutcomeRecord, ProfileRecord, EnergyRecord)

# Table of each kind of record, and the column that numbers those of a job.
_TABLES = {
    OutcomeRecord: (outcomes, "decision"),
    ProfileRecord: (profiles, "batch_size"),
    EnergyRecord: (energy, "id"),
}


def totals(transaction: Transaction) -> dict[str, int]:
    """Number of ``jobs``, of ``events`` and of ``open_decisions`` of all teams."""
    query = select(func.count(), func.coalesce(func.sum(jobs.c.events), 0)).select_from(jobs)
    number, events = transaction.query(query).one()
    # Literally, or the index of open decisions may not be used.
    is_open = decisions.c.state == literal_column("0")
    waiting = transaction.query(select(func.count()).select_from(decisions).where(is_open))
    return {"jobs": number, "events": int(events), "open_decisions": waiting.scalar_one()}


@dataclass(frozen=True, slots=True)
class JobHead:
    """Figures of a job that lists show, without reading its history.

    Attributes:
        id: Number of the job.
        version: Version on its device.
        paused: Whether decisions are refused.
        events: Number of its events, which tells whether anything happened since.
        recurrences: Number of its recurrences.
        team: Namespace of the job.
        name: Name of the job.
        policy: Name of its policy.
        device: Kind of device that it runs on.
        default: Batch size that the owner would run.
    """

    id: int
    version: int
    paused: bool
    events: int
    recurrences: int
    team: str
    name: str
    policy: str
    device: str
    default: int


def job_heads(transaction: Transaction) -> list[JobHead]:
    """All versions of all jobs by number."""
    names = [field.name for field in dataclasses.fields(JobHead)][:-1]
    columns = [jobs.c[name] for name in names]
    query = select(*columns, jobs.c.specification["default"].as_integer()).order_by(jobs.c.id)
    return [JobHead(*row) for row in transaction.query(query)]


def run_groups(transaction: Transaction, numbers: Sequence[int]) -> Sequence[Row[*tuple[Any, ...]]]:
    """Sums over the decisions of some hundred jobs that are alike.

    Each row has ``job``, ``batch_size``, ``state``, ``end`` and ``ignored`` of its decisions, the
    last two None without a report; their ``decisions``; the sums ``joules`` and ``squares`` of
    their energy; and ``latest_wall_seconds``, when the latest of them was made.
    """
    body = outcomes.c.body
    joules, end = body["joules"].as_float(), body["end"].as_string()
    conditions = decisions.c.job == outcomes.c.job, decisions.c.sequence == outcomes.c.decision
    groups = (
        decisions.c.job,
        decisions.c.action["batch_size"].as_integer().label("batch_size"),
        decisions.c.state,
        end.label("end"),
        outcomes.c.ignored,
    )
    sums = (
        select(
            *groups,
            func.count().label("decisions"),
            func.coalesce(func.sum(joules), 0.0).label("joules"),
            func.coalesce(func.sum(joules * joules), 0.0).label("squares"),
            func.max(decisions.c.issued_wall_seconds).label("latest_wall_seconds"),
        )
        .select_from(decisions.outerjoin(outcomes, and_(*conditions)))
        .where(decisions.c.job.in_(numbers))
        .group_by(*groups)
    )
    return transaction.query(sums).all()


def recurrence_sums(
    transaction: Transaction, numbers: Sequence[int]
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Sums over each recurrence of some hundred jobs that was reported on, in order of time.

    Each row has ``job``; ``wall_seconds``, the time of the last report; ``ended``, 0 where all
    attempts were abandoned; the sum of the ``joules`` of all attempts; and ``ended_joules``, that
    without abandoned ones.
    """
    joules = outcomes.c.body["joules"].as_float()
    ended = case((outcomes.c.body["end"].as_string() != "abandoned", 1), else_=0)
    same = decisions.c.job == outcomes.c.job, decisions.c.sequence == outcomes.c.decision
    wall_seconds = func.max(outcomes.c.wall_seconds).label("wall_seconds")
    wanted = (
        select(
            decisions.c.job,
            wall_seconds,
            func.max(ended).label("ended"),
            func.sum(joules).label("joules"),
            func.sum(joules * ended).label("ended_joules"),
        )
        .join(outcomes, and_(*same))
        .where(decisions.c.job.in_(numbers))
        .group_by(decisions.c.job, decisions.c.recurrence)
        .order_by(wall_seconds)
    )
    return transaction.query(wanted).all()


def open_decisions(
    transaction: Transaction, numbers: Sequence[int], limit: int
) -> list[DecisionRecord]:
    """Decisions of some hundred jobs that are being worked on, the latest first."""
    # Literally, or the index of open decisions may not be used.
    is_open = decisions.c.state == literal_column("0")
    wanted = select(decisions).where(is_open, decisions.c.job.in_(numbers))
    latest = wanted.order_by(decisions.c.issued_wall_seconds.desc()).limit(limit)
    return [DecisionRecord(*row) for row in transaction.query(latest)]


def energy_origins(
    transaction: Transaction, numbers: Sequence[int]
) -> list[tuple[int, str | None, float]]:
    """Energy of jobs by the origin of the figures: (job, origin, joules)."""
    origin = energy.c.provenance["origin"].as_string()
    query = select(energy.c.job, origin, func.sum(energy.c.joules))
    query = query.where(energy.c.job.in_(numbers)).group_by(energy.c.job, origin)
    return [(row[0], row[1], row[2]) for row in transaction.query(query)]


def records(
    transaction: Transaction,
    kind: type[Record],
    job: int,
    after: int = 0,
    limit: int | None = None,
    **columns: int | str,
) -> list[Record]:
    """Records of a job with numbers above ``after``, in order; those with equal ``columns``."""
    table, number = _TABLES[kind]
    equal = (table.c[name] == value for name, value in columns.items())
    query = select(table).where(table.c.job == job, table.c[number] > after, *equal)
    rows = transaction.query(query.order_by(table.c[number]).limit(limit))
    return [kind(*row) for row in rows]


def put_profile(transaction: Transaction, profile: ProfileRecord) -> None:
    """Keep a frontier, in place of an earlier one of the same job, batch size and device."""
    transaction.lock(profile.job)
    conditions = (
        profiles.c.job == profile.job,
        profiles.c.batch_size == profile.batch_size,
        profiles.c.device == profile.device,
    )
    transaction.change(delete(profiles).where(*conditions))
    transaction.change(insert(profiles), dataclasses.asdict(profile))


def add_energy(transaction: Transaction, record: EnergyRecord) -> None:
    """Keep energy that was used; where a decision is named, once for each device.

    Raises:
        ConflictError: Another figure was kept of that decision and device.
    """
    transaction.lock(record.job)  # so that no other process looks and adds at the same time
    earlier: list[EnergyRecord] = []
    if record.decision is not None:
        decision, device = record.decision, record.device
        earlier = records(transaction, EnergyRecord, record.job, decision=decision, device=device)
    if not earlier:
        row = dataclasses.asdict(record)
        del row["id"]  # the database gives it
        transaction.change(insert(energy), row)
    elif dataclasses.replace(earlier[0], wall_seconds=record.wall_seconds, id=None) != record:
        raise ConflictError(
            f"another energy of {record.device[:40]!r} is stored for this decision",
            remedy="report all that a device used at once, or without the decision",
        )
