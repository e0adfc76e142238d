"""Recurring jobs as text for people and as documents for programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from joulery.objectives import objective_text
from joulery.reports import decisions_table, sizes_table, table_of
from joulery.units import human, human_age, human_duration, kilowatt_hours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.frontier import Frontier, OperatingPoint
    from joulery.jobs import (
        BatchSizeSummary,
        JobEntry,
        JobSummary,
        ProfileEntry,
        RecurrenceSummary,
        Saved,
        Savings,
    )

_BARS = "▁▂▃▄▅▆▇█"
_CHART_WIDTH = 60
_NONE = "–"


def list_text(entries: Sequence[JobEntry]) -> str:
    """All jobs, one per line."""
    if not entries:
        return "No jobs yet. A joulery.Run with batch_sizes makes one."
    return table_of(
        entries,
        {
            "job": lambda one: one.name,
            "device": lambda one: one.device or _NONE,
            ">version": lambda one: str(one.version),
            "policy": lambda one: one.definition.policy,
            ">recurrences": lambda one: str(one.recurrences),
            "state": lambda one: "paused" if one.paused else "",
        },
    )


def show_text(summary: JobSummary, last: int, now_wall_seconds: float) -> str:
    """All about one job.

    Args:
        summary: Summary of its history.
        last: Number of decisions to show.
        now_wall_seconds: Unix time, for the ages of profiles.
    """
    parts = [_head(summary)]
    if summary.recurrences:
        parts.append(sizes_table(summary).text())
    if summary.profiles:
        parts.append(profiles_text(summary.profiles, now_wall_seconds))
    if summary.recurrences:
        parts.append(_chart(summary.recurrences))
    if summary.saved is not None:
        parts.append(savings_text(summary.saved))
    shown = summary.decisions[-last:] if last else ()
    if shown:
        parts.append(decisions_table(summary, shown).text())
    return "\n\n".join(parts)


def _head(summary: JobSummary) -> str:
    entry, job = summary.entry, summary.job
    device = f" on {entry.device}" if entry.device else ""
    sizes = ", ".join(
        f"{size} (default)" if size == job.default else str(size) for size in job.batch_sizes
    )
    lines = [
        f"{entry.name}{device}, version {entry.version}{', paused' if entry.paused else ''}",
        f"batch sizes: {sizes}",
        f"policy: {entry.definition.policy}; "
        f"cost: eta {job.cost.eta:g}, {human(job.cost.max_watts, 'W')}"
        + (f"; objective: {objective_text(job.objective)}" if job.objective is not None else ""),
        f"recurrences: {entry.recurrences}"
        + (", of which the latest are shown" if summary.cut else ""),
    ]
    if used := energy_text(summary):
        lines.append(used)
    if entry.warm_start:
        lines.append(f"warm start: {entry.warm_start}")
    others = [one for one in summary.versions if one.id != entry.id]
    lines += [
        f"also: version {one.version}{f' on {one.device}' if one.device else ''}, "
        f"{one.recurrences} recurrences"
        for one in others
    ]
    return "\n".join(lines)


def _chart(recurrences: Sequence[RecurrenceSummary]) -> str:
    shown = [one for one in recurrences if one.cost_joules > 0][-_CHART_WIDTH:]
    if not shown:
        return "No recurrence has ended yet."
    highest = max(one.cost_joules for one in shown)
    bars = "".join(
        _BARS[min(len(_BARS) - 1, int(one.cost_joules / highest * len(_BARS)))] for one in shown
    )
    first, last = shown[0].number + 1, shown[-1].number + 1
    return f"cost of recurrences {first} to {last}, up to {human(highest, 'J')}:\n{bars}"


def savings_text(savings: Savings) -> str:
    """What all recurrences saved, with errors."""

    def compared(saved: Saved) -> str:
        share, error = 100 * abs(saved.share), 100 * (saved.standard_error or 0.0)
        direction = "less" if saved.share >= 0 else "more"
        # The error to one digit, up to hundredths, and the share to the same place.
        decimals = min(2, max(0, -math.floor(math.log10(error)))) if error else 0
        shown = "?" if saved.standard_error is None else f"{error:.{decimals}f}"
        return f"{share:.{decimals}f} ± {shown} % {direction}"

    runs = f"{savings.default_runs} run{'s' * (savings.default_runs != 1)}"
    exploring = human(savings.exploring_joules, "J")
    return (
        f"All {savings.recurrences} recurrences together, against as many runs of the default "
        f"batch size ({runs} of it so far):\n"
        f"{compared(savings.cost)} cost, {compared(savings.energy)} energy, "
        f"{compared(savings.time)} time.\n"
        f"Exploring is part of that: {exploring} of cost for probes and for trainings that were "
        "stopped or failed."
    )


def summary_document(summary: JobSummary, last: int) -> dict[str, Any]:
    """A summary ready for JSON."""
    shown = summary.decisions[-last:] if last else ()
    return {
        "job": summary.entry.to_document(),
        "versions": [entry.to_document() for entry in summary.versions],
        "batch_sizes": [_size_document(row) for row in summary.batch_sizes],
        "recurrences": [asdict(one) for one in summary.recurrences],
        "saved": None if summary.saved is None else asdict(summary.saved),
        "decisions": [entry.to_document() for entry in shown],
        "complete": not summary.cut,
        "energy": {
            "joules": sum(summary.origins.values()),
            "by_origin": [_origin_document(summary, origin) for origin in summary.origins],
            "complete": not summary.energy_cut,
        },
        "profiles": [one.to_document() for one in summary.profiles],
    }


def _origin_document(summary: JobSummary, origin: str) -> dict[str, Any]:
    own = [one for one in summary.energy if one.origin == origin]
    return {
        "origin": origin,
        "joules": summary.origins[origin],
        "device_seconds": sum(one.seconds for one in own),
        "records": len(own),
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


def energy_text(summary: JobSummary) -> str:
    """The energy of a job in one line; empty where nothing is known."""
    parts = [
        f"{human(joules, 'J')} ({kilowatt_hours(joules):.3g} kWh), {origin}"
        for origin, joules in summary.origins.items()
    ]
    rest = summary.unexplained_joules
    if rest and not summary.energy_cut:
        more = " more" if parts else ""
        parts.append(f"{human(rest, 'J')}{more} by reports that do not say how it was measured")
    if not parts:
        return ""
    least = "at least " if summary.energy_cut else ""
    return f"energy used so far: {least}{'; '.join(parts)}"


def profiles_text(profiles: Sequence[ProfileEntry], now_wall_seconds: float) -> str:
    """The profiles of a job as a table."""
    return table_of(
        profiles,
        {
            ">batch size": lambda one: str(one.batch_size),
            ">fastest epoch": lambda one: _point(one.frontier.fastest),
            ">lowest-energy epoch": lambda one: _point(one.frontier.least_energy),
            ">limits": lambda one: _limits(one.frontier),
            "figures": lambda one: ", ".join(
                dict.fromkeys(point.provenance.origin.value for point in one.frontier)
            ),
            ">age": lambda one: human_age(
                now_wall_seconds - (one.wall_seconds or now_wall_seconds)
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
