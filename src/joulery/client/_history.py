"""History of jobs in a store or on a server: of one job lately, and of all jobs in a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from joulery.errors import UnknownRecordError
from joulery.jobs import JobSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.client._backend import DecisionBackend
    from joulery.jobs import EnergyEntry, JobEntry

    _Page = Callable[[int], tuple[list["_T"], int | None]]

_T = TypeVar("_T")
# Enough to see how a job goes; a history of years is not read for one look.
_MOST_EVENTS = 5000
_PAGE = 500
_MOST_ENERGY_PAGES = 20
_ENERGY_PAGE = 1000


def all_jobs(backend: DecisionBackend) -> Iterator[JobEntry]:
    """Every version of every job of the team."""
    return _pages(lambda after: backend.jobs(after, _PAGE))


def _pages(page: _Page[_T], after: int | None = 0) -> Iterator[_T]:
    while after is not None:
        entries, after = page(after)
        yield from entries


def summary_of(
    entry: JobEntry, backend: DecisionBackend, versions: tuple[JobEntry, ...] = ()
) -> JobSummary:
    """Read the latest part of a job's history."""
    after = max(0, entry.events - _MOST_EVENTS)
    decisions = _pages(lambda after: backend.decisions(entry.id, after, _PAGE), after)
    energy: list[EnergyEntry] = []
    more: int | None = 0
    for _ in range(_MOST_ENERGY_PAGES):
        if more is not None:
            page, more = backend.energy(entry.id, more, _ENERGY_PAGE)
            energy += page
    return JobSummary(
        entry,
        tuple(decisions),
        tuple(energy),
        tuple(backend.profiles(entry.id)),
        versions,
        cut=after > 0,
        energy_cut=more is not None,
    )


def usage(
    backend: DecisionBackend,
    name: str | None = None,
    run: str | None = None,
    since: float = -math.inf,
    until: float = math.inf,
) -> list[JobSummary]:
    """Summaries of jobs from the reports of a period; jobs without one are left out.

    Args:
        backend: Store or server, of one team.
        name: Name of the job; None for all jobs.
        run: Id of the decision that a single run followed; None for all runs.
        since: Unix time from which reports count.
        until: Unix time before which they count.

    Raises:
        UnknownRecordError: There is no such job, or no such run.
    """
    jobs = [entry for entry in all_jobs(backend) if name in (None, entry.name)]
    if not jobs:
        what = "no jobs" if name is None else f"no job {name!r}"
        raise UnknownRecordError(what, remedy="see `joulery jobs list`")
    found = [_reported(backend, entry, run, since, until) for entry in jobs]
    found = [one for one in found if one.decisions or one.joules]
    if run is not None and not found:
        raise UnknownRecordError("no such run", remedy="see `joulery jobs list`")
    return found


def _reported(
    backend: DecisionBackend, entry: JobEntry, run: str | None, since: float, until: float
) -> JobSummary:
    decisions = _pages(lambda after: backend.decisions(entry.id, after, _PAGE))
    energy = _pages(lambda after: backend.energy(entry.id, after, _ENERGY_PAGE))
    return JobSummary(
        entry,
        tuple(
            one
            for one in decisions
            if one.outcome is not None
            and since <= (one.reported_wall_seconds or 0.0) < until
            and run in (None, one.decision.id)
        ),
        tuple(
            one
            for one in energy
            if since <= (one.wall_seconds or 0.0) < until and run in (None, one.decision)
        ),
    )
