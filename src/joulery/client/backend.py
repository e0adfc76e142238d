"""Who is asked what to run and told how it went: a desk in this process, or one behind a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from joulery.jobs.models import Decision, DecisionLease, Outcome, Receipt
    from joulery.jobs.requests import Definition, Request
    from joulery.jobs.wire_entries import DecisionEntry, JobEntry
    from joulery.jobs.wire_measurements import EnergyEntry, ProfileEntry


@dataclass(frozen=True, slots=True)
class Defined:
    """A job that can be decided for.

    Attributes:
        job: Its number, of this version.
        version: Counts from 1.
        inherits: The version, or the same job on another device, that it started from.
        said: In words what it inherited; empty for nothing.
    """

    job: int
    version: int
    inherits: int | None
    said: str


class DecisionBackend(Protocol):
    """Keeps the jobs of one team.

    Every method may raise :class:`joulery.errors.StoreBusyError` where the same request may be made
    again, and any other :class:`joulery.errors.JouleryError` where that would not help.
    """

    def define(self, definition: Definition) -> Defined:
        """The job of that name and device, made or changed if need be."""
        ...

    def decide(self, job: int, request: Request) -> Decision:
        """What to run next; the same key gives the same decision."""
        ...

    def heartbeat(self, decision: Decision, progress: Outcome | None = None) -> DecisionLease:
        """Say that a decision is being worked on."""
        ...

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        """Tell how a decision ended; counts once under its key."""
        ...

    def jobs(self, after: int = 0, limit: int = 100) -> tuple[list[JobEntry], int | None]:
        """Jobs by number, those after ``after``, and where the next page begins."""
        ...

    def job(self, name: str, device: str | None = None) -> JobEntry:
        """The newest version of a job; None takes the latest on any device."""
        ...

    def decisions(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[DecisionEntry], int | None]:
        """Decisions with how they ended, in order, and where the next page begins."""
        ...

    def profiles(self, job: int) -> list[ProfileEntry]:
        """Time-energy frontiers of the batch sizes of a job."""
        ...

    def keep_profile(self, job: int, profile: ProfileEntry) -> None:
        """Keep a frontier, in place of an earlier one of the same batch size and device."""
        ...

    def energy(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[EnergyEntry], int | None]:
        """Energy used, in the order in which it became known, and where the next page begins."""
        ...

    def note_energy(self, job: int, used: EnergyEntry) -> None:
        """Keep energy that was used; where a decision is named, once for each device."""
        ...

    def pause(self, job: int, *, paused: bool = True) -> None:
        """Refuse decisions, or make them again."""
        ...

    def forget(self, job: int) -> None:
        """Delete a job with all its history."""
        ...

    def close(self) -> None:
        """Let go of connections and files. May be called twice."""
        ...
