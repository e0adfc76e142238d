"""Pages and totals that a server shows, read in few statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, literal_column, select

from joulery.storage._records import EnergyRecord, OutcomeRecord
from joulery.storage._schema import decisions, energy, jobs, outcomes

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
