"""A frontier as a report: the curve of time and energy, and a table of every point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.frontier import Origin
from joulery.objectives import gains
from joulery.reports._chart import Axis, Chart, Series, joules_unit, seconds_unit
from joulery.reports._document import Paragraph, Report, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.frontier import Frontier, OperatingPoint
    from joulery.reports._chart import Line, Symbol

# With more points than this, labels on all of them would only cover each other.
_MOST_LABELS = 16
# Roles of points, later ones drawn on top: line, symbol and colour.
_ROLES: dict[str, tuple[Line, Symbol, int]] = {
    "dominated": ("", "cross", 5),
    "frontier": ("", "dot", 0),
    "default": ("", "diamond", 1),
    "chosen": ("", "star", 2),
}


def frontier_chart(
    frontier: Frontier,
    title: str,
    *,
    cloud: Sequence[OperatingPoint] = (),
    default: OperatingPoint | None = None,
    chosen: OperatingPoint | None = None,
) -> Chart:
    """The curve of a frontier with its points, the default and the choice pointed out."""
    points = _points(frontier, cloud, default, chosen)
    roles = {point: _role(point, frontier, default, chosen) for point in points}
    origin = origin_of(points)
    time = Axis(
        f"time in {seconds_unit(p.seconds for p in points).name} ({origin})",
        seconds_unit(p.seconds for p in points),
    )
    energy = Axis(
        f"energy in {joules_unit(p.joules for p in points).name} ({origin})",
        joules_unit(p.joules for p in points),
    )
    line = Series("", tuple((p.seconds, p.joules) for p in frontier), symbol="")
    drawn = [line]
    reference = frontier.fastest if default is None else default
    for role in _ROLES:
        members = [point for point in points if roles[point] == role]
        if members:
            drawn.append(_series(role, members, reference, len(points)))
    return Chart(title, time, energy, tuple(drawn), _description(frontier))


def frontier_table(
    frontier: Frontier,
    *,
    cloud: Sequence[OperatingPoint] = (),
    default: OperatingPoint | None = None,
    chosen: OperatingPoint | None = None,
) -> Table:
    """Every point with its figures, fastest first."""
    points = sorted(
        _points(frontier, cloud, default, chosen), key=lambda point: (point.seconds, point.joules)
    )
    reference = frontier.fastest if default is None else default
    seconds, joules = seconds_unit(p.seconds for p in points), joules_unit(p.joules for p in points)
    roles = [_role(point, frontier, default, chosen) for point in points]
    headers = ["setting", "time", "energy", "mean power", "energy saved", "time lost"]
    rows = []
    for point in points:
        saved = gains(point, reference) if reference.joules else None
        rows.append(
            [
                _label(point),
                seconds.text(point.seconds),
                joules.text(point.joules),
                f"{point.watts:.1f} W",
                "" if saved is None else _per_cent(saved.energy),
                "" if saved is None else _per_cent(saved.time),
            ]
        )
    # What is the same for all points is said elsewhere.
    origins = [str(point.provenance.origin) for point in points]
    for name, words in (("point", roles), ("provenance", origins)):
        if len(set(words)) > 1:
            headers.append(name)
            rows = [[*row, word] for row, word in zip(rows, words, strict=True)]
    return Table(headers, rows, "lrrrrrll", kinds=roles)


def frontier_report(
    frontier: Frontier,
    title: str,
    *,
    cloud: Sequence[OperatingPoint] = (),
    default: OperatingPoint | None = None,
    chosen: OperatingPoint | None = None,
    summary: str = "",
) -> Report:
    """A frontier as a report.

    Args:
        frontier: Frontier to show.
        title: Subject in one line.
        cloud: Every point that was measured; those off the frontier are drawn as dominated.
        default: Point of the default setting: what happens if nothing is changed.
        chosen: Point that an objective picked.
        summary: Sentences above the chart, for people.
    """
    points = _points(frontier, cloud, default, chosen)
    versus = "the default" if default is not None else "the fastest"
    chart = frontier_chart(frontier, title, cloud=cloud, default=default, chosen=chosen)
    return Report(
        title,
        origin_of(points),
        (
            *([Paragraph(summary)] if summary else []),
            chart,
            frontier_table(frontier, cloud=cloud, default=default, chosen=chosen),
            Paragraph(f"Every point, fastest first; saved and lost against {versus}.", soft=True),
        ),
        "; ".join(dict.fromkeys(p.provenance.source for p in points)).strip("; "),
    )


def origin_of(points: Sequence[OperatingPoint]) -> str:
    """How figures came about, such as ``simulated``; every kind that is among them."""
    found = {point.provenance.origin for point in points}
    return " and ".join(origin for origin in Origin if origin in found)


def _points(
    frontier: Frontier,
    cloud: Sequence[OperatingPoint],
    default: OperatingPoint | None,
    chosen: OperatingPoint | None,
) -> tuple[OperatingPoint, ...]:
    pointed_out = [point for point in (default, chosen) if point is not None]
    return tuple(dict.fromkeys((*frontier, *cloud, *pointed_out)))


def _role(
    point: OperatingPoint,
    frontier: Frontier,
    default: OperatingPoint | None,
    chosen: OperatingPoint | None,
) -> str:
    if point == chosen:
        return "chosen"
    if point == default:
        return "default"
    return "frontier" if point in frontier.points else "dominated"


def _series(
    role: str, members: Sequence[OperatingPoint], reference: OperatingPoint, count: int
) -> Series:
    line, symbol, colour = _ROLES[role]
    emphasis = role in ("default", "chosen")
    name = f"{role} {_label(members[0])}" if emphasis else role
    if role == "chosen" and members[0] == reference:
        name += " (the default)"
    labels = [f"{role} {_label(p)}" if emphasis else _label(p) for p in members]
    return Series(
        name,
        tuple((p.seconds, p.joules) for p in members),
        labels=tuple(labels) if emphasis or count <= _MOST_LABELS else (),
        tips=tuple(_tip(p, role, reference) for p in members),
        line=line,
        symbol=symbol,
        colour=colour,
        emphasis=emphasis,
    )


def _label(point: OperatingPoint) -> str:
    """The setting in a word or two; the power limit where there is one."""
    watts = point.setting.power_limit_watts
    return f"{watts:g} W" if watts is not None else str(point.setting)


def _tip(point: OperatingPoint, role: str, reference: OperatingPoint) -> str:
    compared = ""
    if reference.joules:
        saved = gains(point, reference)
        compared = f"; energy {-saved.energy:+.1f} %, time {saved.time:+.1f} %"
    return (
        f"{_label(point)}, {role}: {point.seconds:.4g} s, {point.joules:.4g} J, "
        f"{point.watts:.1f} W{compared} ({point.provenance.origin})"
    )


def _per_cent(value: float) -> str:
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(value, 1) + 0.0:.1f} %"


def _description(frontier: Frontier) -> str:
    first, last = frontier.fastest, frontier.least_energy
    return (
        f"{len(frontier)} points from {first.seconds:.4g} s and {first.joules:.4g} J to "
        f"{last.seconds:.4g} s and {last.joules:.4g} J."
    )
