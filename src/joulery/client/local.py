"""A clerk without a server: the desk works in this process, on a store that others use too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.client.backend import Defined
from joulery.clock import REAL_CLOCK
from joulery.jobs.service import JobService
from joulery.jobs.wire_entries import DecisionEntry, JobEntry
from joulery.jobs.wire_measurements import (
    EnergyEntry,
    ProfileEntry,
    checked_energy,
    checked_profile,
)
from joulery.storage.listing import energy_page
from joulery.storage.measurements import add_energy, profiles_of, put_profile
from joulery.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from joulery.clock import Clock
    from joulery.jobs.models import Decision, DecisionLease, Outcome, Receipt
    from joulery.jobs.requests import Definition, Request


class LocalBackend:
    """Decides in this process; any number of processes may do so on the same store.

    Args:
        store: Opened; closed with the clerk.
        team: Whose jobs.
        clock: Real or virtual.
    """

    def __init__(self, store: Store, team: str, clock: Clock = REAL_CLOCK) -> None:
        self._store = store
        self._team = team
        self._clock = clock
        self._desk = JobService(store, clock)

    @classmethod
    def open(
        cls, location: str | Path | None = None, team: str = "default", clock: Clock = REAL_CLOCK
    ) -> Self:
        """A clerk on a store by its path or address; the user's own unless given."""
        return cls(Store.open(location), team, clock)

    def define(self, definition: Definition) -> Defined:
        """The job of that name and device, made or changed if need be."""
        record = self._desk.define(self._team, definition)
        entry = JobEntry.of(record)
        return Defined(entry.id, entry.version, entry.inherits, entry.said)

    def decide(self, job: int, request: Request) -> Decision:
        """What to run next."""
        return self._desk.decide(job, request)

    def heartbeat(self, decision: Decision, progress: Outcome | None = None) -> DecisionLease:
        """Say that a decision is being worked on."""
        return self._desk.heartbeat(decision.id, progress)

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        """Tell how a decision ended."""
        return self._desk.report(decision.id, outcome, key)

    def jobs(self, after: int = 0, limit: int = 100) -> tuple[list[JobEntry], int | None]:
        """Jobs by number."""
        with self._store.reading() as ledger:
            found = ledger.jobs(self._team, after, limit + 1)
        following = found[limit - 1].id if len(found) > limit else None
        return [JobEntry.of(record) for record in found[:limit]], following

    def job(self, name: str, device: str | None = None) -> JobEntry:
        """The newest version of a job."""
        return JobEntry.of(self._desk.find(self._team, name, device))

    def decisions(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[DecisionEntry], int | None]:
        """Decisions with how they ended, in order."""
        with self._store.reading() as ledger:
            ledger.job(job)  # so that an unknown one is said to be
            made = ledger.decisions(job, after, limit + 1)
            following = made[limit - 1].sequence if len(made) > limit else None
            entries = [
                DecisionEntry.of(record, ledger.outcome(job, record.sequence))
                for record in made[:limit]
            ]
        return entries, following

    def profiles(self, job: int) -> list[ProfileEntry]:
        """Time-energy frontiers of the batch sizes of a job."""
        with self._store.reading() as ledger:
            ledger.job(job)  # so that an unknown one is said to be
            return [ProfileEntry.of(record) for record in profiles_of(ledger, job)]

    def keep_profile(self, job: int, profile: ProfileEntry) -> None:
        """Keep a frontier, in place of an earlier one of the same batch size and device."""
        kept = checked_profile(profile).record(job, self._clock.wall())
        self._store.write(lambda ledger: put_profile(ledger, kept), job)

    def energy(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[EnergyEntry], int | None]:
        """Energy used, in the order in which it became known."""
        with self._store.reading() as ledger:
            ledger.job(job)
            found = energy_page(ledger, job, after, limit + 1)
        following = found[limit - 1][0] if len(found) > limit else None
        return [EnergyEntry.of(record) for _, record in found[:limit]], following

    def note_energy(self, job: int, used: EnergyEntry) -> None:
        """Keep energy that was used; where a decision is named, once for each device."""
        kept = checked_energy(used).record(job, self._clock.wall())
        self._store.write(lambda ledger: add_energy(ledger, kept), job)

    def pause(self, job: int, *, paused: bool = True) -> None:
        """Refuse decisions, or make them again."""
        self._desk.pause(job, paused=paused)

    def forget(self, job: int) -> None:
        """Delete a job with all its history."""
        self._desk.forget(job)

    def close(self) -> None:
        """Close the store."""
        self._store.close()
