"""A recommendation as a report: time against energy with error bars, the deadline, and reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.reports._chart import Axis, Chart, Series, Unit
from joulery.reports._document import Heading, Paragraph, Report, Table
from joulery.reports._drawing import series_symbol
from joulery.units import per_cent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.predict import Choice, Recommendation

_DAY = Unit("days", 86400.0)
_MEGAWATT_HOUR = Unit("MWh", 3.6e9)
_SOURCES = "specifications of the catalog and constants fitted to measurements by others"


def recommendation_report(found: Recommendation, deadline_seconds: float | None = None) -> Report:
    """The Pareto set by device type, the choice, why, and what would change it."""
    best = found.best
    summary = (
        f"{best.devices} × {best.device}, {best.plan}, {best.plan.precision}, limit "
        f"{best.limit_watts:.0f} W: {best.seconds / 86400:.1f} days ± "
        f"{per_cent(best.relative_error)}, {best.joules / 3.6e9:.1f} MWh ± "
        f"{per_cent(best.energy_error)}"
    )
    words = [
        *(f"Why: {reason}." for reason in found.reasons),
        *(f"What would change it: {change}." for change in found.changes),
        f"Measure next: {found.probe}.",
    ]
    return Report(
        f"Recommendation for {found.work}",
        "predicted",
        (
            Paragraph(summary),
            _chart(found, deadline_seconds),
            Heading("Reasons"),
            *(Paragraph(text, soft=True) for text in words),
            Heading("Choices that no other beats"),
            _table(found.pareto),
        ),
        _SOURCES,
    )


def _chart(found: Recommendation, deadline_seconds: float | None = None) -> Chart:
    """Time against energy of the Pareto set and the rivals, one colour per device type."""
    shown = (*found.pareto, *found.rivals, found.best)
    names = list(dict.fromkeys(one.device for one in shown))
    others = (*found.pareto, *found.rivals)
    drawn = [
        _series(name, [one for one in others if one.device == name and one != found.best], colour)
        for colour, name in enumerate(names)
    ]
    drawn.append(_series("recommended", [found.best], len(names), star=True))
    if deadline_seconds is not None:
        ends = min(one.joules for one in shown), max(one.joules for one in shown)
        line = [(deadline_seconds, joules) for joules in ends]
        drawn.append(Series.curve("deadline", line, "dashed", 5))
    description = "Each point is a device type, count, plan and power limit; bars are one sigma."
    return Chart(
        "Time and energy of the training",
        Axis("time in days (predicted)", _DAY),
        Axis("energy in MWh (predicted)", _MEGAWATT_HOUR),
        tuple(drawn),
        description,
    )


def _series(name: str, members: Sequence[Choice], colour: int, *, star: bool = False) -> Series:
    ordered = sorted(members, key=lambda one: one.seconds)
    return Series(
        name,
        tuple((one.seconds, one.joules) for one in ordered),
        errors=tuple(one.energy_error * one.joules for one in ordered),
        tips=tuple(
            f"{one.devices} × {one.device}, {one.plan}, {one.limit_watts:.0f} W" for one in ordered
        ),
        line="",
        symbol="star" if star else series_symbol(colour),
        colour=colour,
        emphasis=star,
    )


def _table(choices: Sequence[Choice]) -> Table:
    return Table.of(
        sorted(choices, key=lambda one: one.seconds),
        {
            "devices": lambda one: f"{one.devices} × {one.device}",
            "plan": lambda one: str(one.plan),
            ">limit": lambda one: f"{one.limit_watts:.0f} W",
            ">time": lambda one: f"{one.seconds / 86400:.1f} d",
            ">energy": lambda one: f"{one.joules / 3.6e9:.1f} MWh",
            ">money": lambda one: f"${one.dollars:,.0f}",
            ">CO2": lambda one: f"{one.grams / 1e6:.1f} t",
        },
    )
