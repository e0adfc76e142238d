"""All jobs of a store as a report: what they used and saved, and what needs attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Literal

from joulery.jobs import savings_history
from joulery.reports._chart import Axis, Chart, Series, Unit, grams_unit, watt_hours_unit
from joulery.reports._document import (
    Details,
    Grid,
    Heading,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Report,
    Table,
    charts_of,
)
from joulery.reports._jobs import job_report
from joulery.reports._text import (
    NONE,
    add_origins,
    carbon_text,
    count_text,
    date_text,
    energy_text,
    limit_text,
    origins_text,
    saved_text,
    simulated_text,
    with_error,
)
from joulery.units import SECONDS_PER_DAY, human, human_age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import tzinfo

    from joulery.grid import ElectricityPrice
    from joulery.jobs import JobBeliefs, JobSummary, JobTotals, OpenRun, PeriodSavings, PeriodUnit
    from joulery.reports._document import Block
    from joulery.storage import OtherEnergy

    _Link = Callable[[int], str] | None

Measure = Literal["energy", "co2", "money"]
_YEAR_DAYS = 366  # a leap year
_MOST_DAYS = 62  # by hand: bars of a chart that stay apart on a phone
_MOST_TICKS = 5  # by hand: dates below a chart that do not touch on a phone
_SAVED_COLOUR, _USED_COLOUR = 2, 0  # green and blue of the palette
_MOST_JOBS = 15  # by hand: rows of a list that fit a screen
_ATTENTION_SECONDS = 30 * SECONDS_PER_DAY  # by hand: what happened longer ago is history
_METHOD = (
    "Saved: every recurrence, exploration included, against as many runs of the default batch size "
    "as measured in the same job. The error is one standard error, from the scatter of runs. Jobs "
    "without such a run count as saving nothing."
)
_NO_JOBS = "No recurring jobs yet. A joulery.Run with batch_sizes=[…] makes one."


@dataclass(frozen=True, slots=True)
class OverviewRange:
    """The time that an overview covers, and how it is cut.

    Attributes:
        start_wall_seconds: Unix time of its start; before the first report for all time.
        end_wall_seconds: Unix time of its end.
        unit: Length of the periods that charts show.
        measure: Quantity that charts show.
        zone: Time zone of the reader.
    """

    start_wall_seconds: float
    end_wall_seconds: float
    unit: PeriodUnit = "day"
    measure: Measure = "energy"
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True)
class OtherRuns:
    """Energy of runs that do not recur.

    Attributes:
        by_team: Energy of all time by team.
        by_time: Energy in the range of an overview, over time.
    """

    by_team: Sequence[OtherEnergy] = ()
    by_time: Sequence[OtherEnergy] = ()


def overview_report(
    jobs: Sequence[JobTotals],
    electricity: ElectricityPrice,
    now_wall_seconds: float,
    link: Callable[[int], str] | None = None,
    *,
    span: OverviewRange | None = None,
    others: OtherRuns | None = None,
) -> tuple[Report, Report]:
    """Energy and savings over time; and what needs attention, by team and by job.

    Args:
        jobs: Figures of every version of every job.
        electricity: Carbon and price of a kilowatt-hour.
        now_wall_seconds: Unix time.
        link: Address of a job's page; None for none.
        span: Time to cover; all of it unless given.
        others: Energy of runs that do not recur; none unless given.
    """
    others = others or OtherRuns()
    if not (jobs or others.by_team):
        return Report("Overview", "", (Paragraph(_NO_JOBS),)), Report("Jobs", "", ())
    span = span or all_time(jobs, now_wall_seconds, others=others.by_team)
    bounds = span.start_wall_seconds, span.end_wall_seconds
    history = savings_history(jobs, *bounds, span.unit, span.zone, others.by_time)
    blocks: list[Block] = [_total_figures(jobs, history.total, electricity)]
    charts = tuple(_period_charts(history.periods, electricity, span))
    if charts:
        origins = add_origins(job.origins for job in jobs)
        blocks += charts_of((Grid(charts),), simulated_text(origins))
    lists = [*_team_blocks(jobs, others.by_team)]
    if jobs:
        lists = [*_job_blocks(jobs, lists, now_wall_seconds, link, span.zone)]
    else:
        blocks.append(Paragraph(_NO_JOBS, soft=True))
    return Report("Overview", "", tuple(blocks)), Report("Jobs", "", tuple(lists))


def _job_blocks(
    jobs: Sequence[JobTotals],
    teams: Sequence[Block],
    now: float,
    link: _Link,
    zone: tzinfo,
) -> Iterator[Block]:
    yield Heading("Needs attention")
    yield _attention_table(jobs, link, now, zone)
    yield from teams
    yield Heading("Jobs by energy saved, of all time")
    ranked = [job for job in sorted(jobs, key=lambda job: -job.saved_joules) if job.saved]
    if ranked:
        yield _ranking_table(ranked[:_MOST_JOBS], link)
    else:
        missing = "a job has run its default batch size and another one"
        yield Paragraph(f"Nothing to compare yet: savings appear once {missing}.")
    yield Paragraph(_METHOD, soft=True)


def all_time(
    jobs: Sequence[JobTotals],
    now_wall_seconds: float,
    measure: Measure = "energy",
    zone: tzinfo | None = None,
    others: Sequence[OtherEnergy] = (),
) -> OverviewRange:
    """The time from the first report on, by periods of which there are not too many."""
    starts = [job.ended[0].wall_seconds for job in jobs if job.ended]
    first = min([*starts, *(other.wall_seconds for other in others)], default=now_wall_seconds)
    # To the next second, so that a report of this moment counts.
    end = math.floor(now_wall_seconds) + 1.0
    return OverviewRange(first, end, suitable_unit(end - first), measure, zone or UTC)


def suitable_unit(seconds: float) -> PeriodUnit:
    """The length of periods that cuts a time into as many as a chart shows well."""
    days = seconds / SECONDS_PER_DAY
    return "day" if days <= _MOST_DAYS else "week" if days <= _YEAR_DAYS else "month"


def _period_charts(
    periods: Sequence[PeriodSavings], electricity: ElectricityPrice, span: OverviewRange
) -> Iterator[Chart]:
    """Bars of what was saved and used by period."""
    if not any(period.all_joules for period in periods):
        return
    name, scale, suit = _measure(electricity, span.measure)
    start = periods[0].start_wall_seconds
    centres = [(p.start_wall_seconds + p.end_wall_seconds) / 2 - start for p in periods]
    days = [_period_text(period, span) for period in periods]
    x = Axis(span.unit, ticks=tuple(centres), labels=tuple(days), most_ticks=_MOST_TICKS)
    saved = [(scale * p.saved_joules, scale * p.saved_error_joules) for p in periods]
    used = [(scale * p.all_joules, 0.0) for p in periods]
    charts = [("saved", saved, _SAVED_COLOUR), ("used", used, _USED_COLOUR)]
    for verb, bars, colour in charts if any(p.joules for p in periods) else charts[1:]:
        unit = suit(abs(value) for value, _ in bars)
        series = Series(
            "",
            tuple((centre, value) for centre, (value, _) in zip(centres, bars, strict=True)),
            tuple(error for _, error in bars),
            tips=tuple(map(_bar_tip, days, bars, periods, repeat(unit))),
            line="",
            symbol="bar",
            colour=colour,
        )
        title = f"{name} {verb} by {span.unit}"
        axis = Axis(f"{name} in {unit.name}", unit)
        yield Chart(title, x, axis, (series,), f"{title}. Bars below 0 are losses.", 0.0)


def _bar_tip(day: str, bar: tuple[float, float], period: PeriodSavings, unit: Unit) -> str:
    value = with_error(bar[0], bar[1] or None, lambda value: unit.text(value, 3))
    return f"{day}: {value}, {count_text(period.recurrences, 'recurrence')}"


def _measure(
    electricity: ElectricityPrice, measure: Measure
) -> tuple[str, float, Callable[[Iterable[float]], Unit]]:
    """Name of a quantity, how much of it a joule is, and the unit that suits values of it."""
    if measure == "co2":
        return "CO2", electricity.carbon_grams(1.0), grams_unit
    price = electricity.cost(1.0)
    if measure == "money" and price is not None:
        currency = Unit(electricity.currency or "money")
        return "Money", price, lambda _values: currency
    return "Energy", 1.0, watt_hours_unit


def _period_text(period: PeriodSavings, span: OverviewRange) -> str:
    day = datetime.fromtimestamp(period.start_wall_seconds, span.zone)
    return f"{day:%b %Y}" if span.unit == "month" else f"{day.day} {day:%b}"


def _total_figures(
    jobs: Sequence[JobTotals], total: PeriodSavings, electricity: ElectricityPrice
) -> KeyFigures:
    """Sums over the range, with errors of jobs that add in squares."""
    compared = [job for job in jobs if job.saved is not None]

    def saved(show: Callable[[float], str]) -> str:
        error = total.saved_error_joules
        return with_error(total.saved_joules, error, show) if compared else NONE

    share = total.saved_joules / total.default_joules if total.default_joules else 0.0
    less = "less" if share > 0 else "more"
    note = f"{abs(100 * share):.0f} % {less} than the default. " if share else ""
    note += f"{len(compared):,} of {count_text(len(jobs), 'job')} can be compared"
    unsure = sum(job.saved_error_joules is None for job in compared)
    if unsure:
        note += f", the error of {unsure:,} is not yet known"
    origins = add_origins(job.origins for job in jobs)
    simulated = simulated_text(origins)
    simulated = f"; {simulated}" if simulated else ""
    intensity = f"at {electricity.grams:g} g/kWh: {electricity.grams_source}"
    carbon = saved(lambda energy: carbon_text(electricity.carbon_grams(energy)))
    shares = origins_text(origins, sum(job.joules for job in jobs))
    runs = f"{count_text(total.recurrences, 'recurrence')}, {shares}"
    if total.other_joules:
        runs = f"of which {energy_text(total.joules)} recurring: {runs}"
    return KeyFigures(
        (
            KeyFigure("Energy saved", saved(energy_text), note + simulated),
            KeyFigure("CO2 saved", carbon, intensity + simulated),
            _money_figure(electricity, saved, simulated),
            KeyFigure("Energy used", energy_text(total.all_joules), runs),
        )
    )


def _money_figure(
    electricity: ElectricityPrice,
    saved: Callable[[Callable[[float], str]], str],
    simulated: str,
) -> KeyFigure:
    if electricity.price is None:
        return KeyFigure("Money saved", NONE, "the price of a kWh is unknown: give --price")
    currency = electricity.currency or "money"
    text = saved(lambda energy: f"{electricity.cost(energy) or 0.0:,.2f} {currency}")
    note = f"at {electricity.price:g} {currency} per kWh, as given"
    return KeyFigure("Money saved", text, note + simulated)


def _team_blocks(jobs: Sequence[JobTotals], others: Sequence[OtherEnergy]) -> Iterator[Block]:
    """Energy and savings of all time by team, where there are several."""
    teams: dict[str, list[JobTotals]] = {other.team: [] for other in others}
    for job in jobs:
        teams.setdefault(job.head.team, []).append(job)
    if len(teams) < 2:
        return
    recurring = {team: sum(job.joules for job in part) for team, part in teams.items()}
    used = recurring.copy()
    for other in others:
        used[other.team] += other.joules
    yield Heading("By team, of all time")
    yield Table.of(
        sorted(teams.items(), key=lambda team: -used[team[0]])[:_MOST_JOBS],
        {
            "team": lambda team: team[0],
            ">jobs": lambda team: f"{len(team[1]):,}",
            ">running": lambda team: f"{sum(job.open for job in team[1]):,}",
            ">energy used": lambda team: energy_text(used[team[0]]),
            ">of which recurring": lambda team: energy_text(recurring[team[0]]),
            ">energy saved": lambda team: with_error(
                sum(job.saved_joules for job in team[1]),
                math.hypot(*(job.saved_error_joules or 0.0 for job in team[1])),
                energy_text,
            ),
        },
    )


def running_report(
    runs: Sequence[OpenRun],
    live_watts: Callable[[str], float | None],
    now_wall_seconds: float,
    link: Callable[[str], str],
    zone: tzinfo | None = None,
) -> Report:
    """Runs that are under way, with their power now.

    Args:
        runs: Runs, the latest first.
        live_watts: Power of a run by the id of its decision; None where it is unknown.
        now_wall_seconds: Unix time.
        link: Address of the page of a run.
        zone: Time zone of the reader; UTC unless given.
    """
    if not runs:
        return Report("Running now", "", (Paragraph("No run is under way."),))

    powers = {run.decision: live_watts(run.decision) for run in runs}
    known = [watts for watts in powers.values() if watts is not None]

    def power(run: OpenRun) -> str:
        watts = powers[run.decision]
        return NONE if watts is None else human(watts, "W")

    def heartbeat(run: OpenRun) -> str:
        latest = run.heartbeat_wall_seconds
        return NONE if latest is None else f"{human_age(now_wall_seconds - latest)} ago"

    table = Table.of(
        runs,
        {
            "job": lambda run: _name(run.job),
            "begun": lambda run: date_text(run.issued_wall_seconds, zone),
            **({">power now": power} if known else {}),
            ">energy": lambda run: energy_text(run.joules) if run.joules else NONE,
            ">batch size": lambda run: str(run.batch_size),
            ">limit": lambda run: limit_text(run.limit_watts),
            ">heartbeat": heartbeat,
        },
    )
    total = f"{human(sum(known), 'W')} now, of {len(known):,} of {count_text(len(runs), 'run')}"
    blocks: tuple[Block, ...] = (replace(table, links=[link(run.decision) for run in runs]),)
    return Report("Running now", "", (Paragraph(total, soft=True), *blocks) if known else blocks)


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
        return Paragraph(
            "Nothing: in 30 days no report went into quarantine, no run was lost and no job "
            "needed more energy than its default."
        )
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
        action = "open the job: its page says why, and what would release them"
        events.append(_Event(job.quarantined_wall_seconds, job, name, action))
    if job.expired:
        name = f"{count_text(job.expired, 'run')} never reported"
        action = "look at its machine: the process died or lost the network"
        events.append(_Event(job.expired_wall_seconds, job, name, action))
    if job.loses:
        name = f"{-100 * job.saved_share:.0f} % more energy than the default"
        action = "open the job: trials of its first recurrences pay off later, or pause it"
        events.append(_Event(job.latest_wall_seconds, job, name, action))
    return events


def _name(job: JobTotals) -> str:
    return f"{job.head.name} ({job.head.device})" if job.head.device else job.head.name


def _ranking_table(jobs: Sequence[JobTotals], link: _Link) -> Table:
    table = Table.of(
        jobs,
        {
            "job": _name,
            "team": lambda job: job.head.team,
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
    others: OtherRuns | None = None,
) -> Report:
    """The overview, with the jobs that used most energy to be opened below it.

    Args:
        jobs: Figures of every version of every job.
        electricity: Carbon and price of a kilowatt-hour.
        now_wall_seconds: Unix time.
        read: Function that reads the history of a job.
        zone: Time zone of the reader; UTC unless given.
        others: Energy of runs that do not recur; none unless given.
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
    span = all_time(jobs, now_wall_seconds, zone=zone, others=others.by_team if others else ())
    overview, lists = overview_report(jobs, electricity, now_wall_seconds, span=span, others=others)
    return Report("Recurring jobs", "", (*overview.blocks, *lists.blocks, *details))
