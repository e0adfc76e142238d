"""Decisions without a server: the job service works in this process, on a store that is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.jobs import (
    JobService,
    decision_page,
    energy_page,
    job_entry,
    job_page,
    keep_profile,
    note_energy,
    profile_list,
)

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.jobs import (
        Decision,
        DecisionEntry,
        DecisionLease,
        Definition,
        EnergyEntry,
        JobEntry,
        LiveState,
        Outcome,
        ProfileEntry,
        Receipt,
        Request,
    )
    from joulery.storage import Store


class LocalBackend:
    """A :class:`joulery.client._backend.DecisionBackend` in this process, which has its methods.

    Any number of processes may use the same store.
    """

    def __init__(self, store: Store, team: str, clock: Clock) -> None:
        self._store = store
        self._team = team
        self._clock = clock
        self._service = JobService(store, clock)

    def define(self, definition: Definition) -> JobEntry:
        return job_entry(self._service.define(self._team, definition))

    def decide(self, job: int, request: Request) -> Decision:
        return self._service.decide(job, request)

    def heartbeat(
        self,
        decision: Decision,
        progress: Outcome | None = None,
        live: LiveState | None = None,  # noqa: ARG002 - for those who watch a server
    ) -> DecisionLease:
        """Prolong the lease of a decision."""
        return self._service.heartbeat(decision.id, progress)

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        return self._service.report(decision.id, outcome, key)

    def jobs(self, after: int = 0, limit: int = 100) -> tuple[list[JobEntry], int | None]:
        with self._store.reading() as transaction:
            page = job_page(transaction, self._team, after, limit)
        return list(page.jobs), page.next

    def job(self, name: str, device: str | None = None) -> JobEntry:
        return job_entry(self._service.find(self._team, name, device))

    def decisions(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[DecisionEntry], int | None]:
        with self._store.reading() as transaction:
            page = decision_page(transaction, job, after, limit)
        return list(page.decisions), page.next

    def profiles(self, job: int) -> list[ProfileEntry]:
        with self._store.reading() as transaction:
            return list(profile_list(transaction, job).profiles)

    def keep_profile(self, job: int, profile: ProfileEntry) -> None:
        checked, now = profile.checked(), self._clock.wall()
        self._store.write(lambda one: keep_profile(one, job, checked, now), job)

    def energy(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[EnergyEntry], int | None]:
        with self._store.reading() as transaction:
            page = energy_page(transaction, job, after, limit)
        return list(page.energy), page.next

    def note_energy(self, job: int, used: EnergyEntry) -> None:
        checked, now = used.checked(), self._clock.wall()
        self._store.write(lambda one: note_energy(one, job, checked, now), job)

    def pause(self, job: int, *, paused: bool = True) -> None:
        self._service.pause(job, paused=paused)

    def delete(self, job: int) -> None:
        self._service.delete(job)

    def close(self) -> None:
        self._store.close()
