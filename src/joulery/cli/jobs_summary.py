"""Reading a recurring job's history and measurements from a store or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.errors import UnknownRecordError, UsageError
from joulery.jobs import EnergyUsed, JobMeasurements, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.client import DecisionBackend
    from joulery.jobs import DecisionEntry, JobEntry, JobSummary, ProfileEntry

# Enough to see how a job goes; a history of years is not read for one look.
_MOST_EVENTS = 5000
_PAGE = 500
_MOST_ENERGY_PAGES = 20
_ENERGY_PAGE = 1000


def summary_of(
    entry: JobEntry, versions: Sequence[JobEntry], backend: DecisionBackend
) -> JobSummary:
    """Read the latest part of a job's history and summarise it."""
    after = max(0, entry.events - _MOST_EVENTS)
    decisions = _decisions(backend, entry.id, after)
    return summarize(entry, decisions, measured_of(backend, entry), versions, cut=after > 0)


def _decisions(backend: DecisionBackend, job: int, first: int) -> Iterable[DecisionEntry]:
    after: int | None = first
    while after is not None:
        entries, after = backend.decisions(job, after, _PAGE)
        yield from entries


def measured_of(backend: DecisionBackend, job: JobEntry) -> JobMeasurements:
    """Read the measurements of a job and add them up."""
    found: dict[str, EnergyUsed] = {}
    after: int | None = 0
    for _ in range(_MOST_ENERGY_PAGES):
        if after is None:
            break
        entries, after = backend.energy(job.id, after, _ENERGY_PAGE)
        for entry in entries:
            used = found.setdefault(entry.origin, EnergyUsed(entry.origin))
            used.joules += entry.joules
            used.device_seconds += entry.seconds
            used.records += 1
    return JobMeasurements(tuple(found.values()), after is None, tuple(backend.profiles(job.id)))


def chosen_profile(profiles: list[ProfileEntry], batch_size: int | None) -> ProfileEntry:
    """The profile of a batch size; where there is only one, it need not be named.

    Raises:
        UnknownRecordError: There is none.
        UsageError: There are several and none is named.
    """
    fitting = [one for one in profiles if batch_size in (None, one.batch_size)]
    if not fitting:
        what = "this job" if batch_size is None else f"batch size {batch_size}"
        known = ", ".join(str(one.batch_size) for one in profiles)
        raise UnknownRecordError(
            f"no limit of {what} has been measured yet",
            remedy=f"give --batch-size: {known}" if known else "run it once",
        )
    if len(fitting) > 1:
        sizes = ", ".join(str(one.batch_size) for one in fitting)
        raise UsageError("several batch sizes were measured", remedy=f"give --batch-size: {sizes}")
    return fitting[0]
