"""Profiles and energy, which no policy learns from; and what lists and totals read at once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, literal_column, select

from joulery.errors import ConflictError
from joulery.storage._records import EnergyRecord, OutcomeRecord, ProfileRecord
from joulery.storage._schema import decisions, energy, jobs, outcomes, profiles

if TYPE_CHECKING:
    from joulery.storage._transaction import Transaction


@dataclass(frozen=True, slots=True)
class StoreTotals:
    """How much there is in a store.

    Attributes:
        jobs: Number of jobs, all versions of all teams.
        events: Number of events of all jobs.
        open_decisions: Number of decisions whose outcome is still to come.
    """

    jobs: int
    events: int
    open_decisions: int


def totals(transaction: Transaction) -> StoreTotals:
    """The totals of the whole store."""
    wanted = select(func.count(), func.coalesce(func.sum(jobs.c.events), 0)).select_from(jobs)
    number, events = transaction.query(wanted).one()
    # Literally, or the index of open decisions may not be used.
    is_open = decisions.c.state == literal_column("0")
    waiting = transaction.query(select(func.count()).select_from(decisions).where(is_open))
    return StoreTotals(int(number), int(events), int(waiting.scalar_one()))


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
