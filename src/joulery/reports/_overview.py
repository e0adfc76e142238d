"""All jobs of a store as a report: what they used and saved, and what needs attention."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulery.reports._document import (
    Details,
    Heading,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Report,
    Table,
)
from joulery.reports._jobs import job_report
from joulery.reports._text import (
    NONE,
    carbon_text,
    count_text,
    date_text,
    energy_text,
    origins_text,
    saved_text,
    with_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import tzinfo

    from joulery.grid import ElectricityPrice
    from joulery.jobs import JobBeliefs, JobSummary, JobTotals
    from joulery.reports._document import Block

    _Link = Callable[[int], str] | None

_MOST_JOBS = 15  # by hand: rows of a list that fit a screen
_ATTENTION_SECONDS = 30 * 86_400.0  # by hand: what happened longer ago is history
_METHOD = (
    "Saved: every recurrence, exploration included, against as many runs of the default batch size "
    "as measured in the same job. The error is one standard error, from the scatter of runs. Jobs "
    "without such a run count as saving nothing."
)


def overview_report(
    jobs: Sequence[JobTotals],
    electricity: ElectricityPrice,
    now_wall_seconds: float,
    link: Callable[[int], str] | None = None,
    *,
    outstanding: int = 0,
    zone: tzinfo | None = None,
) -> Report:
    """Savings of all jobs, the jobs that saved most, and what needs attention.

    Args:
        jobs: Figures of every version of every job.
        electricity: Carbon and price of a kilowatt-hour.
        now_wall_seconds: Unix time.
        link: Address of a job's page; None for none.
        outstanding: Number of jobs whose figures are still being added up.
        zone: Time zone of the reader; UTC unless given.
    """
    title = "Overview"
    if not (jobs or outstanding):
        empty = "No jobs yet. A joulery.Run with batch_sizes=[…] makes one when it is first run."
        return Report(title, "", (Paragraph(empty),))
    blocks: list[Block] = [_total_figures(jobs, electricity)]
    if outstanding:
        text = f"{outstanding:,} more jobs are still being added up."
        blocks.append(Paragraph(text, soft=True))
    attention = _attention_table(jobs, link, now_wall_seconds, zone)
    blocks += [Heading("Needs attention"), attention, Heading("Jobs by energy saved")]
    ranked = [job for job in sorted(jobs, key=lambda job: -job.saved_joules) if job.saved]
    if ranked:
        blocks.append(_ranking_table(ranked[:_MOST_JOBS], link, zone))
    else:
        missing = "a job has run its default batch size and another one"
        blocks.append(Paragraph(f"Nothing to compare yet: savings appear once {missing}."))
    blocks.append(Paragraph(_METHOD, soft=True))
    return Report(title, "", tuple(blocks))


def _total_figures(jobs: Sequence[JobTotals], electricity: ElectricityPrice) -> KeyFigures:
    joules = sum(job.saved_joules for job in jobs)
    compared = [job for job in jobs if job.saved is not None]
    error = math.hypot(*(job.saved_error_joules or 0.0 for job in compared))

    def saved(show: Callable[[float], str]) -> str:
        return with_error(joules, error, show) if compared else NONE

    baseline = sum(job.recurrences * job.baseline_joules for job in compared)
    share = f"{100 * joules / baseline:.0f} % less than the default. " if baseline > 0 else ""
    note = f"{share}{len(compared):,} of {count_text(len(jobs), 'job')} can be compared."
    unsure = sum(job.saved_error_joules is None for job in compared)
    if unsure:
        note += f" The error of {unsure:,} is not yet known."
    used = sum(job.joules for job in jobs)
    origins: dict[str, float] = defaultdict(float)
    for job in jobs:
        for origin, energy in job.origins.items():
            origins[origin] += energy
    intensity = f"at {electricity.grams:g} g/kWh: {electricity.grams_source}"
    carbon = saved(lambda energy: carbon_text(electricity.carbon_grams(energy)))
    return KeyFigures(
        (
            KeyFigure("Energy saved", saved(energy_text), note),
            KeyFigure("CO2 saved", carbon, intensity),
            _money_figure(electricity, saved),
            KeyFigure("Energy used", energy_text(used), origins_text(origins, used)),
        )
    )


def _money_figure(
    electricity: ElectricityPrice, saved: Callable[[Callable[[float], str]], str]
) -> KeyFigure:
    if electricity.price is None:
        return KeyFigure("Money saved", NONE, "the price of a kWh is unknown: give --price")
    currency = electricity.currency or "money"
    text = saved(lambda energy: f"{electricity.cost(energy) or 0.0:,.2f} {currency}")
    note = f"at {electricity.price:g} {currency} per kWh, as given"
    return KeyFigure("Money saved", text, note)


@dataclass(frozen=True, slots=True)
class _Event:
    """Something about a job that a person should look at."""

    wall_seconds: float
    job: JobTotals
    name: str
    meaning: str


def _attention_table(
    jobs: Sequence[JobTotals], link: _Link, now: float, zone: tzinfo | None
) -> Table | Paragraph:
    """Recent events that need attention, the latest first."""
    recent = [
        event
        for job in jobs
        for event in _events(job, now)
        if event.wall_seconds > now - _ATTENTION_SECONDS
    ]
    events = sorted(recent, key=lambda event: -event.wall_seconds)[:_MOST_JOBS]
    if not events:
        return Paragraph("Nothing: in 30 days no report went into quarantine and no run was lost.")
    table = Table.of(
        events,
        {
            "job": lambda event: _name(event.job),
            "what": lambda event: event.name,
            "since": lambda event: (
                "now" if event.wall_seconds >= now else date_text(event.wall_seconds, zone)
            ),
            "what to do": lambda event: event.meaning,
        },
    )
    return replace(table, links=[link(event.job.head.id) for event in events] if link else ())


def _events(job: JobTotals, now: float) -> list[_Event]:
    events = []
    if job.head.paused:
        events.append(_Event(now, job, "paused", "resume it: until then runs take their default"))
    if job.quarantined:
        name = f"{count_text(job.quarantined, 'report')} in quarantine"
        action = "look at the run: its figures contradict all others"
        events.append(_Event(job.quarantined_wall_seconds, job, name, action))
    if job.expired:
        name = f"{count_text(job.expired, 'run')} never reported"
        action = "look at its machine: the process died or lost the network"
        events.append(_Event(job.expired_wall_seconds, job, name, action))
    return events


def _name(job: JobTotals) -> str:
    return f"{job.head.name} ({job.head.device})" if job.head.device else job.head.name


def _ranking_table(jobs: Sequence[JobTotals], link: _Link, zone: tzinfo | None) -> Table:
    table = Table.of(
        jobs,
        {
            "job": _name,
            "team": lambda job: job.head.team,
            "latest run": lambda job: date_text(job.latest_wall_seconds, zone),
            ">recurrences": lambda job: f"{job.recurrences:,}",
            ">energy saved": lambda job: with_error(
                job.saved_joules, job.saved_error_joules, energy_text
            ),
            ">of the default": lambda job: saved_text(job.saved),
        },
    )
    shares = [job.saved for job in jobs if job.saved is not None]
    return replace(
        table,
        links=[link(job.head.id) for job in jobs] if link else (),
        bars=[(saved.share, saved.standard_error or 0.0) for saved in shares],
    )


def store_report(
    jobs: Sequence[JobTotals],
    electricity: ElectricityPrice,
    now_wall_seconds: float,
    read: Callable[[int], tuple[JobSummary, JobBeliefs]],
    zone: tzinfo | None = None,
) -> Report:
    """The overview, with the jobs that used most energy to be opened below it.

    Args:
        jobs: Figures of every version of every job.
        electricity: Carbon and price of a kilowatt-hour.
        now_wall_seconds: Unix time.
        read: Function that reads the history of a job.
        zone: Time zone of the reader; UTC unless given.
    """
    details = [
        Details(
            f"{_name(job)}, {job.head.team}: {energy_text(job.joules)} used",
            tuple(
                block
                for report in job_report(*read(job.head.id), zone=zone)
                for block in report.blocks
            ),
        )
        for job in sorted(jobs, key=lambda job: -job.joules)[:_MOST_JOBS]
    ]
    overview = overview_report(jobs, electricity, now_wall_seconds, zone=zone)
    return Report("Recurring jobs", "", (*overview.blocks, *details))
