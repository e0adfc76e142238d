"""A recommendation as a report: time against energy with error bars, the deadline, and reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.reports._chart import Axis, Chart, Series, time_axis, watt_hours_unit
from joulery.reports._document import Heading, Paragraph, Report, Table
from joulery.reports._drawing import series_symbol
from joulery.reports._text import carbon_text
from joulery.units import SECONDS_PER_DAY, human, human_duration, kilowatt_hours

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.prediction import Choice, Recommendation

_WIDENING = 1.5  # by hand: a deadline further away would crowd the points at one edge
_ERRORS = "± and error bars are one standard error: two of three lie within."
_SOURCES = "specifications of the catalog and constants fitted to measurements by others"


def recommendation_report(recommendation: Recommendation, made: str = "") -> Report:
    """The choice and what else to look at; then the Pareto set, why, and what would change it.

    Args:
        recommendation: What to report.
        made: Date, version and command, as a sentence for pages.
    """
    best = recommendation.best
    words = [
        *(f"Why: {reason}." for reason in recommendation.reasons),
        *(f"What would change it: {change}." for change in recommendation.changes),
        *([f"Measure next: {recommendation.probe}."] if recommendation.probe else []),
        *(f"Left out: {word}." for word in recommendation.left_out),
        *(f"Assumed: {word}." for word in recommendation.assumed),
    ]
    rows = (
        recommendation.pareto if best in recommendation.pareto else (*recommendation.pareto, best)
    )
    ordered = sorted(rows, key=lambda candidate: candidate.seconds)
    return Report(
        f"Recommendation for {recommendation.work}",
        "predicted",
        (
            Paragraph(f"{recommendation}."),
            _short_list(recommendation),
            *_carbon(recommendation),
            _chart(recommendation),
            Paragraph(_ERRORS, soft=True),
            Heading("Reasons"),
            *(Paragraph(text, soft=True) for text in words),
            Heading("Choices that no other beats"),
            Table.of(
                ordered,
                _columns(ordered),
                kinds=["chosen" * (candidate == best) for candidate in ordered],
            ),
        ),
        f"{_SOURCES}. {made}" if made else _SOURCES,
    )


def _short_list(recommendation: Recommendation) -> Table:
    rows = recommendation.short_list()
    cells = [list(row.values()) for row in rows]
    kinds = ["chosen", *[""] * (len(rows) - 1)]
    return Table(list(rows[0]), cells, align="llrrrl", kinds=kinds)


def _columns(choices: Sequence[Choice]) -> dict[str, Callable[[Choice], str]]:
    """Columns of a table of choices; that of the batch where it differs."""
    differs = len({choice.plan.batch_size for choice in choices}) > 1
    return {title: cell for title, cell in _COLUMNS.items() if differs or title != ">batch"}


def _carbon(recommendation: Recommendation) -> list[Table]:
    """Carbon of the choice by grid, where several are compared."""
    if not recommendation.regions:
        return []
    return [
        Table.of(
            recommendation.regions,
            {
                "grid": lambda region: region[0],
                ">CO2 of the training": lambda region: carbon_text(region[1]),
            },
        )
    ]


def _chart(recommendation: Recommendation) -> Chart:
    """Time against energy of the Pareto set and the rivals, one colour per device type."""
    candidates = (*recommendation.pareto, *recommendation.rivals, recommendation.best)
    names = list(dict.fromkeys(candidate.device for candidate in candidates))
    rivals = (*recommendation.pareto, *recommendation.rivals)
    series = [
        _series(
            name,
            [
                candidate
                for candidate in rivals
                if candidate.device == name and candidate != recommendation.best
            ],
            colour,
        )
        for colour, name in enumerate(names)
    ]
    name = f"recommended ({recommendation.best.device})"
    series.append(_series(name, [recommendation.best], len(names), star=True))
    deadline = recommendation.deadline_seconds
    slowest = max(candidate.seconds for candidate in candidates)
    if deadline is not None and deadline < _WIDENING * slowest:
        ends = (
            min(candidate.joules for candidate in candidates),
            max(candidate.joules for candidate in candidates),
        )
        line = [(deadline, joules) for joules in ends]
        series.append(Series.curve("deadline", line, "dashed", 5))
    unit = watt_hours_unit(candidate.joules for candidate in candidates)
    description = (
        "Each point is a device type, count, plan and power limit; bars are one standard error."
    )
    return Chart(
        "Time and energy of the training",
        time_axis(candidate.seconds for candidate in candidates),
        Axis(f"energy in {unit.name}", unit),
        tuple(series),
        description,
    )


def _series(name: str, members: Sequence[Choice], colour: int, *, star: bool = False) -> Series:
    ordered = sorted(members, key=lambda candidate: candidate.seconds)
    return Series(
        name,
        tuple((candidate.seconds, candidate.joules) for candidate in ordered),
        errors=tuple(candidate.relative_error_energy * candidate.joules for candidate in ordered),
        tips=tuple(
            f"{candidate.devices} × {candidate.device}, {candidate.plan}, "
            f"{candidate.power_limit_watts:.0f} W"
            for candidate in ordered
        ),
        line="",
        symbol="star" if star else series_symbol(colour),
        colour=colour,
        emphasis=star,
    )


_COLUMNS: dict[str, Callable[[Choice], str]] = {
    "devices": lambda candidate: (
        f"{candidate.devices} × {candidate.device}, {candidate.power_limit_watts:.0f} W"
    ),
    "plan": lambda candidate: str(candidate.plan),
    ">batch": lambda candidate: str(candidate.plan.batch_size),
    ">time": lambda candidate: (
        human_duration(candidate.seconds)
        if candidate.seconds < 172800
        else f"{candidate.seconds / SECONDS_PER_DAY:.1f} d"
    ),
    ">energy": lambda candidate: human(1000 * kilowatt_hours(candidate.joules), "Wh"),
    ">money": lambda candidate: candidate.money,
    ">CO2": lambda candidate: carbon_text(candidate.grams_co2),
    ">memory": lambda candidate: f"{candidate.memory_bytes / 1e9:.0f} GB",
}
