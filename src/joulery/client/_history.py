"""History of jobs in a store or on a server: of one job recently, and of all jobs in a period."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from joulery.errors import UnknownRecordError
from joulery.jobs import JobSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.client._backend import DecisionBackend
    from joulery.jobs import EnergyEntry, JobEntry, RunEntry

    _Page = Callable[[int], tuple[list["_T"], int | None]]

_T = TypeVar("_T")
_MOST_EVENTS = 5000  # of a job (by hand: a history of years is not read for one look)
_MOST_ENERGY = 20_000  # entries of a job (by hand: as many runs, on eight devices each)
_MOST_LEVELS = 10  # of runs within runs (by hand: reports may name one another in a circle)
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
        name: Name of the job; None for any.
        run: Id of the decision that a single run followed; None for all runs.
        since: Unix time from which reports count.
        until: Unix time before which they count.

    Raises:
        UnknownRecordError: There is no such job, or no such run.
    """
    jobs = [entry for entry in all_jobs(backend) if name in (None, entry.name)]
    if not jobs:
        raise UnknownRecordError(f"no job {name!r}", remedy="see `joulery jobs list`")
    summaries = _between([_whole_summary(backend, entry) for entry in jobs], since, until, run)
    if run is not None and not summaries:
        raise UnknownRecordError("no such run", remedy="see `joulery jobs list`")
    return summaries


def team_usage(
    backend: DecisionBackend, since: float = -math.inf, until: float = math.inf
) -> tuple[list[JobSummary], list[RunEntry]]:
    """Summaries of a team's jobs, and its other runs, from the reports of a period.

    Each joule is in one of them. A run that carried out a decision counts with its job, as soon as
    the job has its report; one within another run counts with that run.

    Args:
        backend: Store or server, of one team.
        since: Unix time from which reports count.
        until: Unix time before which they count.

    Raises:
        UnknownRecordError: The team has neither jobs nor runs.
    """
    summaries = [_whole_summary(backend, entry) for entry in all_jobs(backend)]
    runs = list(_read_pages(lambda below: backend.runs("", below, _PAGE)))
    if not (summaries or runs):
        raise UnknownRecordError("no jobs and no runs", remedy="name another --team or --store")
    others = [
        run
        for run in _other_runs(runs, summaries)
        if run.joules and since <= run.started_wall_seconds + run.seconds < until
    ]
    return _between(summaries, since, until), others


def _other_runs(runs: list[RunEntry], summaries: list[JobSummary]) -> Iterator[RunEntry]:
    """Runs with the joules that neither a job nor another run has already."""
    by_key = {run.key: run for run in runs}
    with_jobs = _joules_with_jobs(runs, summaries)
    within: dict[str, float] = defaultdict(float)  # the same by outermost run
    for run in runs:
        outer, levels = run, 0
        while outer.part_of in by_key and levels < _MOST_LEVELS:
            outer, levels = by_key[outer.part_of], levels + 1
        within[outer.key] += with_jobs.get(run.key, 0.0)
    for run in runs:
        if run.part_of not in by_key and run.joules is not None:
            yield msgspec.structs.replace(run, joules=max(0.0, run.joules - within[run.key]))


def _joules_with_jobs(runs: list[RunEntry], summaries: list[JobSummary]) -> dict[str, float]:
    """Joules of runs that jobs have, by key: all of a run once its decision was reported on."""
    entries = {
        entry.decision.id: (entry, (summary.entry.id, entry.decision.recurrence))
        for summary in summaries
        for entry in summary.decisions
    }
    reported: dict[tuple[int, int], float] = defaultdict(float)
    for entry, recurrence in entries.values():
        reported[recurrence] += entry.outcome.joules if entry.outcome is not None else 0.0
    joules_of = {}
    for run in runs:
        if run.decision in entries:  # or the job was deleted
            entry, recurrence = entries[run.decision]
            joules = run.joules or 0.0
            ended = entry.outcome is not None
            joules_of[run.key] = joules if ended else min(joules, reported[recurrence])
    return joules_of


def _whole_summary(backend: DecisionBackend, entry: JobEntry) -> JobSummary:
    decisions = _read_pages(lambda after: backend.decisions(entry.id, after, _PAGE))
    energy = _read_pages(lambda after: backend.energy(entry.id, after, _ENERGY_PAGE))
    return JobSummary(entry, tuple(decisions), tuple(energy))


def _between(
    summaries: list[JobSummary], since: float, until: float, run: str | None = None
) -> list[JobSummary]:
    """The reports of a period, of all runs or of one; jobs without one are left out."""
    parts = [
        JobSummary(
            summary.entry,
            tuple(
                decision
                for decision in summary.decisions
                if decision.outcome is not None
                and since <= (decision.reported_wall_seconds or 0.0) < until
                and run in (None, decision.decision.id)
            ),
            tuple(
                figure
                for figure in summary.energy
                if since <= (figure.wall_seconds or 0.0) < until and run in (None, figure.decision)
            ),
        )
        for summary in summaries
    ]
    return [part for part in parts if part.decisions or part.joules]
