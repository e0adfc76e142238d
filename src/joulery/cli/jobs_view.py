"""Recurring jobs as text for people and as documents for programs."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from joulery.jobs.policies import ActionKind, RunEnd
from joulery.reports import table_text as table
from joulery.units import human, human_duration, kilowatt_hours, per_cent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.frontier import Frontier, OperatingPoint
    from joulery.jobs import (
        BatchSizeSummary,
        DecisionEntry,
        JobEntry,
        JobMeasurements,
        JobSummary,
        RecurrenceSummary,
        Saved,
        Savings,
    )

_BARS = "▁▂▃▄▅▆▇█"
_CHART_WIDTH = 60
_NONE = "–"
_ROUNDING = 0.01  # a smaller share of unknown origin is not worth a word
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def list_text(entries: Sequence[JobEntry]) -> str:
    """All jobs, one per line."""
    if not entries:
        return "No jobs yet. A joulery.Run with batch_sizes makes one.\n"
    rows = [
        [
            entry.name,
            entry.device or _NONE,
            str(entry.version),
            entry.definition.policy,
            str(entry.recurrences),
            "paused" if entry.paused else "",
        ]
        for entry in entries
    ]
    headers = ["job", "device", "version", "policy", "recurrences", "state"]
    return table(headers, rows, "llrlrl") + "\n"


def show_text(summary: JobSummary, last: int, now_wall_seconds: float) -> str:
    """All about one job.

    Args:
        summary: Summary of its history.
        last: Number of decisions to show.
        now_wall_seconds: Unix time, for the ages of profiles.
    """
    parts = [_head(summary)]
    if summary.recurrences:
        parts.append(_sizes(summary))
    known = profiles_text(summary.measured, now_wall_seconds)
    if known:
        parts.append(known)
    if summary.recurrences:
        parts.append(_chart(summary.recurrences))
    if summary.saved is not None:
        parts.append(_savings(summary.saved))
    shown = summary.decisions[-last:] if last else ()
    if shown:
        parts.append(_decisions(summary, shown))
    return "\n\n".join(parts) + "\n"


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
        + (f"; objective: {job.objective}" if job.objective is not None else ""),
        f"recurrences: {entry.recurrences}"
        + (", of which the latest are shown" if summary.cut else ""),
    ]
    used = energy_text(summary.measured, sum(one.joules for one in summary.recurrences))
    if used:
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


def _sizes(summary: JobSummary) -> str:
    rows = [
        [
            str(row.batch_size),
            *(str(row.ends.get(end, 0) or _NONE) for end in _ENDS),
            human(median(row.costs_joules), "J") if row.costs_joules else _NONE,
            human_duration(median(row.seconds)) if row.seconds else _NONE,
            human(median(row.joules), "J") if row.joules else _NONE,
            _watts(row.limit_watts),
        ]
        for row in summary.batch_sizes
    ]
    headers = [
        "batch size",
        "reached",
        "stopped",
        "failed",
        "abandoned",
        "cost",
        "time",
        "energy",
        "limit",
    ]
    return table(headers, rows, "r" * len(headers))


_ENDS = (RunEnd.REACHED, RunEnd.STOPPED, RunEnd.EXHAUSTED, RunEnd.ABANDONED)


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


def _savings(savings: Savings) -> str:
    def compared(saved: Saved) -> str:
        error = "?" if saved.standard_error is None else per_cent(saved.standard_error)
        direction = "less" if saved.share >= 0 else "more"
        return f"{per_cent(abs(saved.share))} ± {error} {direction}"

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


def _decisions(summary: JobSummary, shown: Sequence[DecisionEntry]) -> str:
    rows = []
    for entry in shown:
        outcome, decision = entry.outcome, entry.decision
        cost = summary.cost(entry)
        rows.append(
            [
                str(decision.recurrence + 1),
                "probe" if decision.kind == ActionKind.PROBE else "train",
                str(decision.batch_size),
                _watts(decision.power_limit_watts),
                _ended(entry),
                _NONE if outcome is None else f"{outcome.epochs:g}",
                _NONE if cost is None else human(cost, "J"),
                decision.reason,
            ]
        )
    headers = ["recurrence", "what", "batch size", "limit", "ended", "epochs", "cost", "why"]
    return table(headers, rows, "rlrrlrrl")


def _ended(entry: DecisionEntry) -> str:
    """How a decision ended, and whether the policy does not learn from that."""
    if entry.outcome is None:
        return entry.state
    return entry.outcome.end.name.lower() + " (quarantined)" * entry.quarantined


def _watts(watts: float | None) -> str:
    return _NONE if watts is None else human(watts, "W")


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
        **measured_document(summary.measured),
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


def energy_text(measured: JobMeasurements, reported_joules: float) -> str:
    """The energy of a job in one line; empty where nothing is known.

    Args:
        measured: Measurements of the job.
        reported_joules: Energy by its reports, some of which may have no figures by device.
    """
    parts = [
        f"{human(one.joules, 'J')} ({kilowatt_hours(one.joules):.3g} kWh), {one.origin}"
        for one in measured.energy
    ]
    rest = reported_joules - measured.joules
    if rest > _ROUNDING * reported_joules and measured.complete:
        more = " more" if parts else ""
        parts.append(f"{human(rest, 'J')}{more} by reports that do not say how it was measured")
    if not parts:
        return ""
    least = "" if measured.complete else "at least "
    return f"energy used so far: {least}{'; '.join(parts)}"


def profiles_text(measured: JobMeasurements, now_wall_seconds: float) -> str:
    """The profiles of a job as a table; empty where there are none."""
    if not measured.profiles:
        return ""
    rows = [
        [
            str(one.batch_size),
            _point(one.frontier.fastest),
            _point(one.frontier.least_energy),
            _limits(one.frontier),
            _origins(one.frontier),
            _age(now_wall_seconds - (one.wall_seconds or now_wall_seconds)),
        ]
        for one in measured.profiles
    ]
    headers = ["batch size", "fastest epoch", "lowest-energy epoch", "limits", "figures", "age"]
    return table(headers, rows, "rrrrlr")


def _point(point: OperatingPoint) -> str:
    watts = point.setting.power_limit_watts
    limit = "" if watts is None else f" at {human(watts, 'W')}"
    return f"{human_duration(point.seconds)}, {human(point.joules, 'J')}{limit}"


def _limits(frontier: Frontier) -> str:
    """Number of power limits on a frontier."""
    return str(sum(point.setting.power_limit_watts is not None for point in frontier) or "–")


def _origins(frontier: Frontier) -> str:
    return ", ".join(dict.fromkeys(point.provenance.origin.value for point in frontier))


def _age(seconds: float) -> str:
    """An age in one unit."""
    if seconds < _MINUTE:
        return "now"
    units = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"))
    unit, name = next(one for one in units if seconds >= one[0])
    return f"{seconds // unit:.0f} {name}"


def measured_document(measured: JobMeasurements) -> dict[str, Any]:
    """Measurements ready for JSON."""
    return {
        "energy": {
            "joules": measured.joules,
            "by_origin": [asdict(one) for one in measured.energy],
            "complete": measured.complete,
        },
        "profiles": [one.to_document() for one in measured.profiles],
    }
