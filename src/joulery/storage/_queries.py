"""Profiles and energy, which no policy learns from; and what lists and totals read at once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, distinct, func, insert, literal_column, select

from joulery.errors import ConflictError
from joulery.storage._records import EnergyRecord, OutcomeRecord, ProfileRecord
from joulery.storage._schema import decisions, energy, jobs, outcomes, profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.storage._transaction import Transaction


def totals(transaction: Transaction) -> dict[str, int]:
    """Number of ``jobs``, of ``events`` and of ``open_decisions`` of all teams."""
    wanted = select(func.count(), func.coalesce(func.sum(jobs.c.events), 0)).select_from(jobs)
    number, events = transaction.query(wanted).one()
    # Literally, or the index of open decisions may not be used.
    is_open = decisions.c.state == literal_column("0")
    waiting = transaction.query(select(func.count()).select_from(decisions).where(is_open))
    return {"jobs": number, "events": int(events), "open_decisions": waiting.scalar_one()}


@dataclass(frozen=True, slots=True)
class JobHead:
    """What lists show of a job, without reading its history.

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
    wanted = select(*columns, jobs.c.specification["default"].as_integer()).order_by(jobs.c.id)
    return [JobHead(*row) for row in transaction.query(wanted)]


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Sums over the decisions of a job that are alike.

    Attributes:
        job: Number of the job.
        batch_size: Batch size that was decided.
        kind: Kind of action, as its number.
        state: State of the decisions, of :class:`DecisionState`.
        end: How the runs ended by their reports; None without a report.
        ignored: Whether the policy does not learn from the reports; None without one.
        count: Number of decisions.
        joules: Energy in total.
        joules_squared: Sum of the squares of the energies.
        seconds: Time in total.
        latest_wall_seconds: Time at which the latest of the decisions was made.
    """

    job: int
    batch_size: int
    kind: int
    state: int
    end: str | None
    ignored: bool | None
    count: int
    joules: float
    joules_squared: float
    seconds: float
    latest_wall_seconds: float


def run_groups(
    transaction: Transaction, numbers: Sequence[int]
) -> tuple[list[RunGroup], dict[int, int]]:
    """Sums over the decisions of jobs; and the number of recurrences that ended, by job.

    Args:
        transaction: Transaction to read in.
        numbers: Jobs, at most some hundreds at a time.
    """
    action, body = decisions.c.action, outcomes.c.body
    joules, end = body["joules"].as_float(), body["end"].as_string()
    same = decisions.c.job == outcomes.c.job, decisions.c.sequence == outcomes.c.decision
    groups = (
        decisions.c.job,
        action["batch_size"].as_integer(),
        action["kind"].as_integer(),
        decisions.c.state,
        end,
        outcomes.c.ignored,
    )
    sums = (joules, joules * joules, body["seconds"].as_float())
    wanted = (
        select(
            *groups,
            func.count(),
            *(func.coalesce(func.sum(one), 0.0) for one in sums),
            func.max(decisions.c.issued_wall_seconds),
        )
        .select_from(decisions.outerjoin(outcomes, and_(*same)))
        .where(decisions.c.job.in_(numbers))
        .group_by(*groups)
    )
    ended = (
        select(decisions.c.job, func.count(distinct(decisions.c.recurrence)))
        .join(outcomes, and_(*same))
        .where(decisions.c.job.in_(numbers), end != "abandoned")
        .group_by(decisions.c.job)
    )
    found = [RunGroup(*row) for row in transaction.query(wanted)]
    return found, {row[0]: row[1] for row in transaction.query(ended)}


def energy_origins(
    transaction: Transaction, numbers: Sequence[int]
) -> list[tuple[int, str | None, float]]:
    """Energy of jobs by the origin of the figures: (job, origin, joules)."""
    origin = energy.c.provenance["origin"].as_string()
    wanted = select(energy.c.job, origin, func.sum(energy.c.joules))
    wanted = wanted.where(energy.c.job.in_(numbers)).group_by(energy.c.job, origin)
    return [(row[0], row[1], row[2]) for row in transaction.query(wanted)]


def outcomes_between(
    transaction: Transaction, job: int, first: int, last: int
) -> dict[int, OutcomeRecord]:
    """Reports on the decisions of a job from number ``first`` to ``last``."""
    wanted = select(outcomes).where(
        outcomes.c.job == job, outcomes.c.decision >= first, outcomes.c.decision <= last
    )
    return {row.decision: OutcomeRecord(*row) for row in transaction.query(wanted)}


def energy_page(
    transaction: Transaction, job: int, after: int, limit: int
) -> list[tuple[int, EnergyRecord]]:
    """Energy of a job in the order of its arrival, with the numbers to continue after."""
    wanted = select(energy).where(energy.c.job == job, energy.c.id > after)
    rows = transaction.query(wanted.order_by(energy.c.id).limit(limit))
    return [(row.id, EnergyRecord(*row[:-1])) for row in rows]


def energy_of_decision(transaction: Transaction, job: int, decision: int) -> list[EnergyRecord]:
    """Energy that was used under a decision, by device."""
    wanted = select(energy).where(energy.c.job == job, energy.c.decision == decision)
    return [EnergyRecord(*row[:-1]) for row in transaction.query(wanted.order_by(energy.c.device))]


def put_profile(transaction: Transaction, profile: ProfileRecord) -> None:
    """Keep a frontier, in place of an earlier one of the same job, batch size and device."""
    transaction.lock(profile.job)
    same = (
        profiles.c.job == profile.job,
        profiles.c.batch_size == profile.batch_size,
        profiles.c.device == profile.device,
    )
    transaction.change(delete(profiles).where(*same))
    transaction.change(insert(profiles), dataclasses.asdict(profile))


def profiles_of(transaction: Transaction, job: int) -> list[ProfileRecord]:
    """The frontiers of a job, by batch size."""
    wanted = select(profiles).where(profiles.c.job == job).order_by(profiles.c.batch_size)
    return [ProfileRecord(*row) for row in transaction.query(wanted)]


def add_energy(transaction: Transaction, used: EnergyRecord) -> None:
    """Keep energy that was used; where a decision is named, once for each device.

    Raises:
        ConflictError: Another figure was kept of that decision and device.
    """
    transaction.lock(used.job)  # so that no other process looks and adds at the same time
    kept = _kept(transaction, used)
    if kept is None:
        transaction.change(insert(energy), dataclasses.asdict(used))
    elif dataclasses.replace(kept, wall_seconds=used.wall_seconds) != used:
        raise ConflictError(
            f"another figure is kept of what {used.device[:40]!r} used under this decision",
            remedy="report all that a device used at once, or without the decision",
        )


def _kept(transaction: Transaction, used: EnergyRecord) -> EnergyRecord | None:
    """The energy that is kept of the same decision and device."""
    if used.decision is None:
        return None
    wanted = select(energy).where(
        energy.c.job == used.job,
        energy.c.decision == used.decision,
        energy.c.device == used.device,
    )
    row = transaction.query(wanted).one_or_none()
    return None if row is None else EnergyRecord(*row[:-1])
