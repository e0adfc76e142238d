"""What handlers have done at the desk, which is a process of its own.

Errands are sent to it by name, with their arguments; what they return, or raise, comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    from joulery.jobs.models import Decision, DecisionLease, Outcome, Receipt
    from joulery.jobs.requests import Definition, Request
    from joulery.jobs.service import JobService
    from joulery.storage.records import JobRecord


def decide(desk: JobService, job: int, request: Request) -> Future[Decision]:
    """What to run next."""
    return desk.decide_soon(job, request)


def heartbeat(desk: JobService, decision: str, progress: Outcome | None) -> Future[DecisionLease]:
    """Say that a decision is being worked on."""
    return desk.heartbeat_soon(decision, progress)


def report(desk: JobService, decision: str, outcome: Outcome, key: str) -> Future[Receipt]:
    """Tell how a decision ended."""
    return desk.report_soon(decision, outcome, key)


SOON = frozenset({decide, heartbeat, report})
"""Those that many wait for at once; they give futures. The others take a thread until done."""


def define(desk: JobService, team: str, wanted: Definition) -> JobRecord:
    """The job of that name and device, made or changed if need be."""
    return desk.define(team, wanted)


def find(desk: JobService, team: str, name: str, device: str | None) -> JobRecord:
    """The newest version of a job."""
    return desk.find(team, name, device)


def pause(desk: JobService, job: int, paused: bool) -> None:  # noqa: FBT001 - travels by position
    """Refuse decisions, or make them again."""
    desk.pause(job, paused=paused)


def forget(desk: JobService, job: int) -> None:
    """Delete a job with all its history."""
    desk.forget(job)


def expire(desk: JobService) -> int:
    """Release decisions of silent holders; how many."""
    return desk.expire()


def refresh(desk: JobService) -> int:
    """Fold histories anew that older code has folded; how many."""
    return desk.refresh()


def write_failure(desk: JobService) -> str | None:
    """Why the latest write failed, if that was a moment ago."""
    return desk.write_failure()
