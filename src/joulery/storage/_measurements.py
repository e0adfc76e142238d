"""Profiles and energy in the store: measurements that no policy learns from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from joulery.errors import ConflictError
from joulery.storage._records import EnergyRecord, ProfileRecord
from joulery.storage._schema import energy, profiles

if TYPE_CHECKING:
    from joulery.storage._transaction import Transaction


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
