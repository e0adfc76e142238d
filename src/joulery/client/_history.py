"""History of jobs in a store or on a server: summaries, and what was used in a time."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from joulery.errors import UnknownRecordError
from joulery.frontier import ASSUMED, Origin, Provenance
from joulery.jobs import EnergyUsed, JobMeasurements, Saved, summarize
from joulery.jobs.policies import ActionKind, RunEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from joulery.client._backend import DecisionBackend
    from joulery.jobs import JobEntry, JobSummary

    _Page = Callable[[int], tuple[list["_T"], int | None]]

_T = TypeVar("_T")
# Enough to see how a job goes; a history of years is not read for one look.
_MOST_EVENTS = 5000
_PAGE = 500
_MOST_ENERGY_PAGES = 20
_ENERGY_PAGE = 1000
_UNEXPLAINED = Provenance(Origin.ASSUMED, "reports that do not say how it was measured")
_ROUNDING = 0.01  # a smaller share of unknown origin is not worth a word
_HOST_IDS = ("rapl:", "cpu", "ipmi:", "redfish:", "scpi:")  # of devices that are no accelerators


def all_jobs(backend: DecisionBackend) -> Iterator[JobEntry]:
    """Every version of every job of the team."""
    return _pages(lambda after: backend.jobs(after, _PAGE))


def _pages(page: _Page[_T], after: int | None = 0) -> Iterator[_T]:
    while after is not None:
        entries, after = page(after)
        yield from entries


def summary_of(
    entry: JobEntry, versions: Sequence[JobEntry], backend: DecisionBackend
) -> JobSummary:
    """Read the latest part of a job's history and summarise it."""
    after = max(0, entry.events - _MOST_EVENTS)
    decisions = _pages(lambda after: backend.decisions(entry.id, after, _PAGE), after)
    return summarize(entry, decisions, measured_of(backend, entry), versions, cut=after > 0)


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


@dataclass(frozen=True, slots=True)
class JobUsage:
    """What one version of a job used in a time.

    Attributes:
        entry: Job.
        runs: Number of runs that were reported.
        seconds: Time of those runs.
        joules: Energy of all devices.
        exploring_joules: Part of it for probes and for trainings that were stopped or failed.
        provenance: How the energy was obtained.
        accelerator_seconds: Time over all accelerators.
        accelerators: Number of different accelerators.
        saved: Energy that was saved against the default batch size; None where unknown.
        default_runs: Number of runs of the default that this is compared with.
    """

    entry: JobEntry
    runs: int
    seconds: float
    joules: float
    exploring_joules: float
    provenance: Provenance
    accelerator_seconds: float
    accelerators: int
    saved: Saved | None
    default_runs: int


def usage(
    backend: DecisionBackend,
    name: str | None = None,
    run: str | None = None,
    since: float = -math.inf,
    until: float = math.inf,
) -> list[JobUsage]:
    """What jobs used.

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
    found = [_job_usage(backend, entry, run, since, until) for entry in jobs]
    found = [one for one in found if one.runs or one.joules]
    if not jobs or (run is not None and not found):
        what = f"no job {name!r}" if not jobs and name is not None else "no such run"
        raise UnknownRecordError(
            what if jobs or name is not None else "no jobs", remedy="see `joulery jobs list`"
        )
    return found


def _job_usage(
    backend: DecisionBackend, entry: JobEntry, run: str | None, since: float, until: float
) -> JobUsage:
    decisions = [
        one
        for one in _pages(lambda after: backend.decisions(entry.id, after, _PAGE))
        if one.outcome is not None
        and since <= (one.reported_wall_seconds or 0.0) < until
        and run in (None, one.decision.id)
    ]
    energy = [
        one
        for one in _pages(lambda after: backend.energy(entry.id, after, _ENERGY_PAGE))
        if since <= (one.wall_seconds or 0.0) < until and run in (None, one.decision)
    ]
    outcomes = [(one.decision, one.outcome) for one in decisions if one.outcome is not None]
    parts = [(Provenance(Origin(one.origin), one.source), one.joules) for one in energy]
    reported = sum(outcome.joules for _, outcome in outcomes)
    rest = reported - sum(joules for _, joules in parts)
    if rest > _ROUNDING * reported:
        parts.append((_UNEXPLAINED, rest))
    used: dict[str, float] = defaultdict(float)
    for one in energy:
        if not one.device.startswith(_HOST_IDS):
            used[one.device] += one.seconds
    saved = summarize(entry, decisions, JobMeasurements()).saved
    return JobUsage(
        entry,
        len(outcomes),
        sum(outcome.seconds for _, outcome in outcomes),
        sum(joules for _, joules in parts),
        sum(
            outcome.joules
            for decision, outcome in outcomes
            if outcome.end != RunEnd.REACHED or decision.kind != ActionKind.TRAIN
        ),
        Provenance.combined(parts) if parts else ASSUMED,
        sum(used.values()),
        len(used),
        None if saved is None else saved.energy,
        0 if saved is None else saved.default_runs,
    )


def saved_energy(found: Sequence[JobUsage]) -> Saved | None:
    """Energy saved by all jobs that can tell, against what their defaults would have used."""
    known = [(one.joules, one.saved) for one in found if one.saved and one.saved.share < 1]
    if not known:
        return None
    used = sum(joules for joules, _ in known)
    default = sum(joules / (1 - saved.share) for joules, saved in known)
    errors = [
        None
        if saved.standard_error is None
        else joules * saved.standard_error / (1 - saved.share) ** 2
        for joules, saved in known
    ]
    error = None
    if default and None not in errors:
        error = math.hypot(*(one or 0.0 for one in errors)) * used / default**2
    return Saved(1 - used / default if default else 0.0, error)
