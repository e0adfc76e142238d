"""History of jobs in a store or on a server: of one job recently, and of all jobs in a period."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from joulery.errors import UnknownRecordError
from joulery.jobs import JobSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.client._backend import DecisionBackend
    from joulery.jobs import EnergyEntry, JobEntry

    _Page = Callable[[int], tuple[list["_T"], int | None]]

_T = TypeVar("_T")
_MOST_EVENTS = 5000  # of a job (by hand: a history of years is not read for one look)
_MOST_ENERGY = 20_000  # entries of a job (by hand: as many runs, on eight devices each)
_PAGE, _ENERGY_PAGE = 500, 1000  # entries of a request (by hand: below a megabyte)


def all_jobs(backend: DecisionBackend) -> Iterator[JobEntry]:
    """Every version of every job of the team."""
    return _read_pages(lambda after: backend.jobs(after, _PAGE))


def _read_pages(page: _Page[_T], after: int | None = 0) -> Iterator[_T]:
    while after is not None:
        entries, after = page(after)
        yield from entries


def job_summary(
    backend: DecisionBackend,
    entry: JobEntry,
    versions: tuple[JobEntry, ...] = (),
    most_events: int = _MOST_EVENTS,
) -> JobSummary:
    """Summary of the latest part of a job's history.

    Args:
        backend: Store or server that has the job.
        entry: Job to be summarised.
        versions: All versions of that name, on all devices.
        most_events: Number of the latest events that are read.
    """
    after = max(0, entry.events - most_events)
    decisions = _read_pages(lambda after: backend.decisions(entry.id, after, _PAGE), after)
    pages = _read_pages(lambda after: backend.energy(entry.id, after, _ENERGY_PAGE))
    energy: tuple[EnergyEntry, ...] = tuple(islice(pages, _MOST_ENERGY + 1))
    return JobSummary(
        entry,
        tuple(decisions),
        energy[:_MOST_ENERGY],
        tuple(backend.profiles(entry.id)),
        versions,
        cut=after > 0,
        energy_cut=len(energy) > _MOST_ENERGY,
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
        problem = "no jobs" if name is None else f"no job {name!r}"
        raise UnknownRecordError(problem, remedy="see `joulery jobs list`")
    summaries = [_summary_between(backend, entry, run, since, until) for entry in jobs]
    summaries = [summary for summary in summaries if summary.decisions or summary.joules]
    if run is not None and not summaries:
        raise UnknownRecordError("no such run", remedy="see `joulery jobs list`")
    return summaries


def _summary_between(
    backend: DecisionBackend, entry: JobEntry, run: str | None, since: float, until: float
) -> JobSummary:
    decisions = _read_pages(lambda after: backend.decisions(entry.id, after, _PAGE))
    energy = _read_pages(lambda after: backend.energy(entry.id, after, _ENERGY_PAGE))
    return JobSummary(
        entry,
        tuple(
            decision
            for decision in decisions
            if decision.outcome is not None
            and since <= (decision.reported_wall_seconds or 0.0) < until
            and run in (None, decision.decision.id)
        ),
        tuple(
            figure
            for figure in energy
            if since <= (figure.wall_seconds or 0.0) < until and run in (None, figure.decision)
        ),
    )
