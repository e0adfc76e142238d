"""Profiles and energy in the store: measurements that no policy's beliefs are folded from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from joulery.errors import ConflictError
from joulery.storage import statements
from joulery.storage.rows import energy_of, energy_row, profile_of, profile_row

if TYPE_CHECKING:
    from joulery.storage.records import EnergyRecord, ProfileRecord
    from joulery.storage.transaction import Transaction


def put_profile(ledger: Transaction, profile: ProfileRecord) -> None:
    """Keep a frontier, in place of an earlier one of the same job, batch size and device."""
    ledger.lock(profile.job)
    given = {
        "of": profile.job,
        "of_batch_size": profile.batch_size,
        "of_device": profile.device,
    }
    ledger.change(statements.DROP_PROFILE, given)
    ledger.change(statements.ADD_PROFILE, profile_row(profile))


def profiles_of(ledger: Transaction, job: int) -> list[ProfileRecord]:
    """The frontiers of a job, by batch size."""
    return [profile_of(row) for row in ledger.query(statements.PROFILES, {"of": job})]


def add_energy(ledger: Transaction, used: EnergyRecord) -> None:
    """Keep energy that was used; where a decision is named, once for each device.

    Raises:
        ConflictError: Another figure was kept of that decision and device.
    """
    ledger.lock(used.job)  # so that no one else looks and adds at the same time
    kept = _kept(ledger, used)
    if kept is None:
        ledger.change(statements.ADD_ENERGY, energy_row(used))
    elif dataclasses.replace(kept, wall_seconds=used.wall_seconds) != used:
        raise ConflictError(
            f"another figure is kept of what {used.device[:40]!r} used under this decision",
            remedy="tell all that a device used at once, or without the decision",
        )


def _kept(ledger: Transaction, used: EnergyRecord) -> EnergyRecord | None:
    """What is kept of the same decision and device."""
    if used.decision is None:
        return None
    given = {"of": used.job, "number": used.decision, "of_device": used.device}
    row = ledger.query(statements.ENERGY_UNDER, given).one_or_none()
    return None if row is None else energy_of(row)


def energy_used(ledger: Transaction, job: int) -> list[EnergyRecord]:
    """The energy that a job has used, in the order in which it became known."""
    given = {"of": job, "after": 0}
    return [energy_of(row) for row in ledger.query(statements.ENERGY, given)]
