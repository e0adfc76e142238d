"""How jobs come to be in the store: defined once, changed with what still holds inherited."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.recurring.desk_beliefs import rebuilt
from joulery.recurring.desk_specification import inheritance_document
from joulery.recurring.inheritance import Inheritance
from joulery.recurring.joulery_beliefs import JouleryBeliefs
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.store.ledger import Ledger
    from joulery.store.records import Document, JobRecord, NewJob


@dataclass(frozen=True, slots=True)
class Terms:
    """How a desk works.

    Attributes:
        lease_seconds: How long a holder may be silent.
        cached_jobs: Jobs whose beliefs are kept in memory.
        shift_sd: How far the epochs of a changed job may be off together, as a logarithm.
        shape_sd: How far those of each batch size may be off besides.
    """

    lease_seconds: float = 600.0
    cached_jobs: int = 2000
    shift_sd: float = 0.3
    shape_sd: float = 0.1

    def __post_init__(self) -> None:
        finite(self.lease_seconds, "lease in seconds", minimum=0.0)


TERMS = Terms()


def defined(ledger: Ledger, wanted: NewJob, now: float, terms: Terms) -> JobRecord:
    """The newest version of a job if it is as wanted, else a new version that inherits from it."""
    newest = ledger.newest(wanted.team, wanted.name)
    if newest is None:
        return ledger.add_job(wanted, now)
    if _same(newest.job, wanted):
        return newest
    parameters = wanted.parameters | _inherited(ledger, newest, wanted, terms)
    heir = dataclasses.replace(wanted, inherits=newest.id, parameters=parameters)
    return ledger.add_job(heir, now)


def _inherited(ledger: Ledger, before: JobRecord, wanted: NewJob, terms: Terms) -> Document:
    if wanted.policy != before.job.policy:
        return {}
    # Not as a desk keeps it: that would lock the job, and only one may be locked at a time.
    beliefs = rebuilt(ledger, before).beliefs
    if not isinstance(beliefs, JouleryBeliefs):
        return {}
    shown = Inheritance.of(beliefs, 0)
    if not shown.batch_sizes:
        return {}
    doubted = shown.doubted(terms.shift_sd, terms.shape_sd)
    return {"inherited": inheritance_document(doubted)}


def _same(stored: NewJob, wanted: NewJob) -> bool:
    parameters = {name: value for name, value in stored.parameters.items() if name != "inherited"}
    return (stored.specification, stored.policy, parameters) == (
        wanted.specification,
        wanted.policy,
        wanted.parameters,
    )
