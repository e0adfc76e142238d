"""Recurring jobs as text for people and as documents for programs."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from joulery.cli.jobs_measured import energy_text, measured_document, profiles_text
from joulery.cli.table import table
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.wire_entries import decision_entry_document, job_entry_document
from joulery.units import human, human_duration, per_cent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.cli.jobs_summary import BatchSize, Recurrence, Saved, Summary
    from joulery.jobs.wire_entries import DecisionEntry, JobEntry

_BARS = "▁▂▃▄▅▆▇█"
_CHART_WIDTH = 60
_NONE = "–"


def list_text(entries: Sequence[JobEntry]) -> str:
    """All jobs, one per line."""
    if not entries:
        return "No jobs yet. A joulery.Run with batch_sizes makes one.\n"
    rows = [
        [
            entry.name,
            entry.device or _NONE,
            str(entry.version),
            entry.policy,
            str(entry.recurrences),
            "paused" if entry.paused else "",
        ]
        for entry in entries
    ]
    headers = ["job", "device", "version", "policy", "recurrences", "state"]
    return table(headers, rows, "llrlrl") + "\n"


def show_text(summary: Summary, last: int, now_wall_seconds: float) -> str:
    """All about one job.

    Args:
        summary: Of its history.
        last: Decisions to show.
        now_wall_seconds: The time, that ages are told by.
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
        parts.append(_saved(summary.saved))
    shown = summary.decisions[-last:] if last else ()
    if shown:
        parts.append(_decisions(summary, shown))
    return "\n\n".join(parts) + "\n"


def _head(summary: Summary) -> str:
    entry, job = summary.entry, summary.job
    device = f" on {entry.device}" if entry.device else ""
    sizes = ", ".join(
        f"{size} (default)" if size == job.default else str(size) for size in job.batch_sizes
    )
    lines = [
        f"{entry.name}{device}, version {entry.version}{', paused' if entry.paused else ''}",
        f"batch sizes: {sizes}",
        f"policy: {entry.policy}; cost: eta {job.cost.eta:g}, {human(job.cost.max_watts, 'W')}"
        + (f"; objective: {job.objective}" if job.objective is not None else ""),
        f"recurrences: {entry.recurrences}"
        + (", of which the latest are shown" if summary.cut else ""),
    ]
    used = energy_text(summary.measured, sum(one.joules for one in summary.recurrences))
    if used:
        lines.append(used)
    if entry.said:
        lines.append(f"inherited: {entry.said}")
    others = [one for one in summary.versions if one.id != entry.id]
    lines += [
        f"also: version {one.version}{f' on {one.device}' if one.device else ''}, "
        f"{one.recurrences} recurrences"
        for one in others
    ]
    return "\n".join(lines)


def _sizes(summary: Summary) -> str:
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


def _chart(recurrences: Sequence[Recurrence]) -> str:
    shown = [one for one in recurrences if one.cost_joules > 0][-_CHART_WIDTH:]
    if not shown:
        return "No recurrence has ended yet."
    highest = max(one.cost_joules for one in shown)
    bars = "".join(
        _BARS[min(len(_BARS) - 1, int(one.cost_joules / highest * len(_BARS)))] for one in shown
    )
    first, last = shown[0].number + 1, shown[-1].number + 1
    return f"cost of recurrences {first} to {last}, up to {human(highest, 'J')}:\n{bars}"


def _saved(saved: Saved) -> str:
    def compared(share: float) -> str:
        return f"{per_cent(abs(share))} {'less' if share >= 0 else 'more'}"

    runs = f"{saved.default_runs} run{'s' * (saved.default_runs != 1)} of it"
    return (
        f"The last {saved.recurrences} recurrences took {compared(saved.cost)} cost, "
        f"{compared(saved.energy)} energy and {compared(saved.time)} time than runs of the default "
        f"batch size (medians; {runs})."
    )


def _decisions(summary: Summary, shown: Sequence[DecisionEntry]) -> str:
    rows = []
    for entry in shown:
        told, decision = entry.outcome, entry.decision
        cost = summary.cost(entry)
        rows.append(
            [
                str(decision.recurrence + 1),
                "probe" if decision.kind == ActionKind.PROBE else "train",
                str(decision.batch_size),
                _watts(decision.power_limit_watts),
                entry.state if told is None else told.end.name.lower(),
                _NONE if told is None else f"{told.epochs:g}",
                _NONE if cost is None else human(cost, "J"),
                decision.reason,
            ]
        )
    headers = ["recurrence", "what", "batch size", "limit", "ended", "epochs", "cost", "why"]
    return table(headers, rows, "rlrrlrrl")


def _watts(watts: float | None) -> str:
    return _NONE if watts is None else human(watts, "W")


def summary_document(summary: Summary, last: int) -> dict[str, Any]:
    """The same, ready for JSON."""
    shown = summary.decisions[-last:] if last else ()
    return {
        "job": job_entry_document(summary.entry),
        "versions": [job_entry_document(entry) for entry in summary.versions],
        "batch_sizes": [_size_document(row) for row in summary.batch_sizes],
        "recurrences": [asdict(one) for one in summary.recurrences],
        "saved": None if summary.saved is None else asdict(summary.saved),
        "decisions": [decision_entry_document(entry) for entry in shown],
        "complete": not summary.cut,
        **measured_document(summary.measured),
    }


def _size_document(row: BatchSize) -> dict[str, Any]:
    return {
        "batch_size": row.batch_size,
        "ends": {end.name.lower(): count for end, count in row.ends.items()},
        "cost_joules": median(row.costs_joules) if row.costs_joules else None,
        "seconds": median(row.seconds) if row.seconds else None,
        "joules": median(row.joules) if row.joules else None,
        "limit_watts": row.limit_watts,
    }
