"""Recurring jobs as text for people and as documents for programs."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from joulery.frontier import origins
from joulery.objectives import objective_text
from joulery.reports import Heading, Paragraph, Report, Table, job_report, table_of
from joulery.units import human, human_age, human_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulery.frontier import Frontier, OperatingPoint
    from joulery.jobs import (
        BatchSizeSummary,
        JobEntry,
        JobSummary,
        ProfileEntry,
    )

_NONE = "–"


def list_text(entries: Sequence[JobEntry]) -> str:
    """All jobs, one per line."""
    if not entries:
        return "No jobs yet. A joulery.Run with batch_sizes makes one."
    return table_of(
        entries,
        {
            "job": lambda entry: entry.name,
            "device": lambda entry: entry.device or _NONE,
            ">version": lambda entry: str(entry.version),
            "policy": lambda entry: entry.definition.policy,
            ">recurrences": lambda entry: str(entry.recurrences),
            "state": lambda entry: "paused" if entry.paused else "",
        },
    )


def job_view(summary: JobSummary, now_wall_seconds: float) -> Report:
    """All about one job; the time is Unix time, for the ages of its profiles."""
    entry = summary.entry
    device, paused = f" on {entry.device}" * bool(entry.device), ", paused" * entry.paused
    figures, choice, history = job_report(summary)
    blocks = [*_about(summary), *figures.blocks, *choice.blocks]
    if summary.profiles:
        blocks += [Heading("Power limits"), _profiles(summary.profiles, now_wall_seconds)]
    title = f"{entry.name}{device}, version {entry.version}{paused}"
    return Report(title, "", (*blocks, *history.blocks))


def _about(summary: JobSummary) -> Iterator[Paragraph]:
    entry, job = summary.entry, summary.job
    sizes = ", ".join(f"{size}{' (default)' * (size == job.default)}" for size in job.batch_sizes)
    objective = "" if job.objective is None else f"Objective: {objective_text(job.objective)}. "
    yield Paragraph(
        f"Batch sizes: {sizes}. Policy: {entry.definition.policy}. Cost: eta {job.cost.eta:g}, "
        f"{human(job.cost.max_watts, 'W')}. {objective}Recurrences: {entry.recurrences}"
        f"{', of which the latest are shown' * summary.cut}."
    )
    if entry.warm_start:
        yield Paragraph(f"Warm start: {entry.warm_start}")
    for version in summary.versions:
        if version.id != entry.id:
            device = f" on {version.device}" * bool(version.device)
            yield Paragraph(
                f"Also: version {version.version}{device}, {version.recurrences} recurrences."
            )


def summary_document(summary: JobSummary) -> dict[str, Any]:
    """A summary ready for JSON."""
    return {
        "job": summary.entry.to_document(),
        "versions": [entry.to_document() for entry in summary.versions],
        "batch_sizes": [_size_document(row) for row in summary.batch_sizes],
        "recurrences": [asdict(recurrence) for recurrence in summary.recurrences],
        "saved": None if summary.saved is None else asdict(summary.saved),
        "decisions": [entry.to_document() for entry in summary.decisions],
        "complete": not summary.cut,
        "energy": {
            "joules": sum(summary.origins.values()),
            "by_origin": summary.origins,
            "complete": not summary.energy_cut,
        },
        "profiles": [profile.to_document() for profile in summary.profiles],
    }


def _size_document(row: BatchSizeSummary) -> dict[str, Any]:
    return {
        "batch_size": row.batch_size,
        "ends": {end.name.lower(): count for end, count in row.ends.items()},
        "cost_joules": median(row.costs_joules) if row.costs_joules else None,
        "seconds": median(row.seconds) if row.seconds else None,
        "joules": median(row.joules) if row.joules else None,
        "limit_watts": row.limit_watts,
    }


def _profiles(profiles: Sequence[ProfileEntry], now_wall_seconds: float) -> Table:
    return Table.of(
        profiles,
        {
            ">batch size": lambda profile: str(profile.batch_size),
            ">fastest epoch": lambda profile: _point(profile.frontier.fastest),
            ">lowest-energy epoch": lambda profile: _point(profile.frontier.least_energy),
            ">limits": lambda profile: _limits(profile.frontier),
            "figures": lambda profile: origins(profile.frontier),
            ">age": lambda profile: human_age(
                now_wall_seconds - (profile.wall_seconds or now_wall_seconds)
            ),
        },
    )


def _point(point: OperatingPoint) -> str:
    watts = point.setting.power_limit_watts
    limit = "" if watts is None else f" at {human(watts, 'W')}"
    return f"{human_duration(point.seconds)}, {human(point.joules, 'J')}{limit}"


def _limits(frontier: Frontier) -> str:
    """Number of power limits on a frontier."""
    return str(sum(point.setting.power_limit_watts is not None for point in frontier) or "–")
