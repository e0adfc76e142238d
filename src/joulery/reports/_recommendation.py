"""A recommendation as a report: time against energy with error bars, the deadline, and reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.reports._chart import Axis, Chart, Series, Unit, time_axis
from joulery.reports._document import Heading, Paragraph, Report, Table
from joulery.reports._drawing import series_symbol
from joulery.units import human, human_duration, kilowatt_hours, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.prediction import Choice, Recommendation

_KILOWATT_HOUR, _MEGAWATT_HOUR = Unit("kWh", 3.6e6), Unit("MWh", 3.6e9)
_SOURCES = "specifications of the catalog and constants fitted to measurements by others"


def recommendation_report(found: Recommendation) -> Report:
    """The Pareto set by device type, the choice, why, and what would change it."""
    best = found.best
    summary = (
        f"{best.devices} × {best.device}, {best.plan}, {best.plan.precision}, limit "
        f"{best.power_limit_watts:.0f} W: {_COLUMNS['>time'](best)} ± "
        f"{per_cent(best.relative_error_time)}, {_COLUMNS['>energy'](best)} ± "
        f"{per_cent(best.relative_error_energy)}"
    )
    words = [
        *(f"Why: {reason}." for reason in found.reasons),
        *(f"What would change it: {change}." for change in found.changes),
        f"Measure next: {found.probe}.",
        *(f"Left out: {word}." for word in found.left_out),
        *(f"Assumed: {word}." for word in found.assumed),
    ]
    rows = found.pareto if best in found.pareto else (*found.pareto, best)
    shown = sorted(rows, key=lambda one: one.seconds)
    return Report(
        f"Recommendation for {found.work}",
        "predicted",
        (
            Paragraph(summary),
            _chart(found),
            Heading("Reasons"),
            *(Paragraph(text, soft=True) for text in words),
            Heading("Choices that no other beats"),
            Table.of(shown, _COLUMNS, kinds=["chosen" * (one == best) for one in shown]),
        ),
        _SOURCES,
    )


def _chart(found: Recommendation) -> Chart:
    """Time against energy of the Pareto set and the rivals, one colour per device type."""
    shown = (*found.pareto, *found.rivals, found.best)
    names = list(dict.fromkeys(one.device for one in shown))
    others = (*found.pareto, *found.rivals)
    drawn = [
        _series(name, [one for one in others if one.device == name and one != found.best], colour)
        for colour, name in enumerate(names)
    ]
    drawn.append(_series("recommended", [found.best], len(names), star=True))
    if found.deadline_seconds is not None:
        ends = min(one.joules for one in shown), max(one.joules for one in shown)
        line = [(found.deadline_seconds, joules) for joules in ends]
        drawn.append(Series.curve("deadline", line, "dashed", 5))
    unit = _MEGAWATT_HOUR if found.best.joules > _MEGAWATT_HOUR.size else _KILOWATT_HOUR
    description = "Each point is a device type, count, plan and power limit; bars are one sigma."
    return Chart(
        "Time and energy of the training",
        time_axis([one.seconds for one in shown], "predicted"),
        Axis(f"energy in {unit.name} (predicted)", unit),
        tuple(drawn),
        description,
    )


def _series(name: str, members: Sequence[Choice], colour: int, *, star: bool = False) -> Series:
    ordered = sorted(members, key=lambda one: one.seconds)
    return Series(
        name,
        tuple((one.seconds, one.joules) for one in ordered),
        errors=tuple(one.relative_error_energy * one.joules for one in ordered),
        tips=tuple(
            f"{one.devices} × {one.device}, {one.plan}, {one.power_limit_watts:.0f} W"
            for one in ordered
        ),
        line="",
        symbol="star" if star else series_symbol(colour),
        colour=colour,
        emphasis=star,
    )


_COLUMNS: dict[str, Callable[[Choice], str]] = {
    "devices": lambda one: f"{one.devices} × {one.device}",
    "plan": lambda one: str(one.plan),
    ">batch": lambda one: str(one.plan.global_batch),
    ">limit": lambda one: f"{one.power_limit_watts:.0f} W",
    ">time": lambda one: (
        human_duration(one.seconds) if one.seconds < 172800 else f"{one.seconds / 86400:.1f} d"
    ),
    ">energy": lambda one: human(1000 * kilowatt_hours(one.joules), "Wh"),
    ">money": lambda one: f"${human(one.dollars, '')}".strip(),
    ">CO2": lambda one: (
        human(one.grams_co2 / 1e6, "t") if one.grams_co2 > 1e6 else human(one.grams_co2, "g")
    ),
    ">memory": lambda one: f"{one.memory_bytes / 1e9:.0f} GB",
}
