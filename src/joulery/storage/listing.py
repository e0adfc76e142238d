"""Pages and totals that a server shows, read in few statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, literal_column, select

from joulery.storage.rows import energy_of, outcome_of
from joulery.storage.tables import decisions, energy, jobs, outcomes

if TYPE_CHECKING:
    from joulery.storage.records import EnergyRecord, OutcomeRecord
    from joulery.storage.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Totals:
    """How much there is in a store.

    Attributes:
        jobs: All versions of all teams.
        events: Of all of them.
        open_decisions: That are being worked on.
    """

    jobs: int
    events: int
    open_decisions: int


def totals(ledger: Transaction) -> Totals:
    """Of the whole store."""
    number = ledger.query(select(func.count()).select_from(jobs)).scalar_one()
    events = ledger.query(select(func.coalesce(func.sum(jobs.c.events), 0))).scalar_one()
    # Literally, or the index of what is open may not be used.
    is_open = decisions.c.state == literal_column("0")
    waiting = ledger.query(select(func.count()).select_from(decisions).where(is_open))
    return Totals(int(number), int(events), int(waiting.scalar_one()))


def outcomes_between(
    ledger: Transaction, job: int, first: int, last: int
) -> dict[int, OutcomeRecord]:
    """Reports on the decisions of a job from number ``first`` to ``last``."""
    wanted = select(outcomes).where(
        outcomes.c.job_id == job, outcomes.c.decision >= first, outcomes.c.decision <= last
    )
    return {row.decision: outcome_of(row) for row in ledger.query(wanted)}


def energy_page(
    ledger: Transaction, job: int, after: int, limit: int
) -> list[tuple[int, EnergyRecord]]:
    """Energy of a job, in the order in which it became known, with the numbers to go on after."""
    wanted = (
        select(energy)
        .where(energy.c.job_id == job, energy.c.id > after)
        .order_by(energy.c.id)
        .limit(limit)
    )
    return [(row.id, energy_of(row)) for row in ledger.query(wanted)]
