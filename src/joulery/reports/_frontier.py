"""A frontier as a report, with a curve and a table; two of its points as bars beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.frontier import origins, sources
from joulery.objectives import gains
from joulery.reports._chart import (
    Chart,
    Series,
    energy_axis,
    joules_unit,
    percent,
    seconds_unit,
    time_axis,
)
from joulery.reports._document import Paragraph, Report, Table
from joulery.reports._drawing import Drawing, Shape, Words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from joulery.frontier import Frontier, OperatingPoint
    from joulery.reports._chart import Line, Symbol


# With more points than this, labels on all of them would only cover each other.
_MOST_LABELS = 16
# Before and after, in pixels, by hand: picture, bars, longest bar; heights of bar, row, quantity.
_WIDTH, _LEFT, _LONGEST = 640.0, 146.0, 240.0
_BAR, _ROW, _GROUP = 38.0, 44.0, 134.0
# Roles of points, later ones drawn on top: line, symbol and colour.
_ROLES: dict[str, tuple[Line, Symbol, int]] = {
    "dominated": ("", "cross", 5),
    "frontier": ("", "dot", 0),
    "default": ("", "diamond", 1),
    "chosen": ("", "star", 2),
}


@dataclass(frozen=True, slots=True)
class _FrontierView:
    """A frontier with the points beside it and those pointed out."""

    frontier: Frontier
    cloud: Sequence[OperatingPoint] = ()
    default: OperatingPoint | None = None
    chosen: OperatingPoint | None = None

    @property
    def points(self) -> list[OperatingPoint]:
        """Every point once, fastest first."""
        pointed_out = [point for point in (self.default, self.chosen) if point is not None]
        points = dict.fromkeys((*self.frontier, *self.cloud, *pointed_out))
        return sorted(points, key=lambda point: (point.seconds, point.joules))

    @property
    def reference(self) -> OperatingPoint:
        """Point that savings refer to."""
        return self.frontier.fastest if self.default is None else self.default

    def role(self, point: OperatingPoint) -> str:
        """Role of a point, a key of ``_ROLES``."""
        if point == self.chosen:
            return "chosen"
        if point == self.default:
            return "default"
        return "frontier" if point in self.frontier.points else "dominated"


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
    view = _FrontierView(frontier, cloud, default, chosen)
    versus = "the default" if default is not None else "the fastest"
    return Report(
        title,
        origins(view.points),
        (
            *([Paragraph(summary)] if summary else []),
            _chart(view, title),
            _table(view),
            Paragraph(f"Every point, fastest first; saved and lost against {versus}.", soft=True),
        ),
        sources(view.points),
    )


def _chart(view: _FrontierView, title: str) -> Chart:
    points = view.points
    series = [Series.curve("", [(p.seconds, p.joules) for p in view.frontier])]
    for role in _ROLES:
        members = [point for point in points if view.role(point) == role]
        if members:
            series.append(_series(role, members, view.reference, len(points)))
    return Chart(
        title,
        time_axis(p.seconds for p in points),
        energy_axis(p.joules for p in points),
        tuple(series),
        _description(view.frontier),
    )


def _table(view: _FrontierView) -> Table:
    points, reference = view.points, view.reference
    seconds, joules = seconds_unit(p.seconds for p in points), joules_unit(p.joules for p in points)

    def gain(point: OperatingPoint, name: str) -> str:
        return percent(getattr(gains(point, reference), name)) if reference.joules else ""

    columns: dict[str, Callable[[OperatingPoint], str]] = {
        "setting": _label,
        ">time": lambda point: seconds.text(point.seconds),
        ">energy": lambda point: joules.text(point.joules),
        ">mean power": lambda point: f"{point.watts:.1f} W",
        ">energy saved": lambda point: gain(point, "energy"),
        ">time lost": lambda point: gain(point, "time"),
        "point": view.role,
        "provenance": lambda point: str(point.provenance.origin),
    }
    for name in ("point", "provenance"):  # what is the same for all points is said elsewhere
        if len(set(map(columns[name], points))) == 1:
            del columns[name]
    return Table.of(points, columns, kinds=[view.role(point) for point in points])


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
    comparison = ""
    if reference.joules:
        difference = gains(point, reference)
        comparison = f"; energy {-difference.energy:+.1f} %, time {difference.time:+.1f} %"
    return (
        f"{_label(point)}, {role}: {point.seconds:.4g} s, {point.joules:.4g} J, "
        f"{point.watts:.1f} W{comparison} ({point.provenance.origin})"
    )


def _description(frontier: Frontier) -> str:
    first, last = frontier.fastest, frontier.least_energy
    return (
        f"{len(frontier)} points from {first.seconds:.4g} s and {first.joules:.4g} J to "
        f"{last.seconds:.4g} s and {last.joules:.4g} J."
    )


def draw_before_after(before: OperatingPoint, after: OperatingPoint, title: str) -> Drawing:
    """A picture of what a setting saves, and what it costs.

    Args:
        before: Point of the default setting.
        after: Point of the chosen one.
        title: Subject in one line.
    """
    joules, seconds = (before.joules, after.joules), (before.seconds, after.seconds)
    change, origin = gains(after, before), origins((before, after))
    shapes = [
        *_bars(f"Energy ({origin})", joules, joules_unit(joules).text, -change.energy, 0.0),
        *_bars(f"Time ({origin})", seconds, seconds_unit(seconds).text, change.time, _GROUP),
    ]
    labels = (f"default {_label(before)}", f"chosen {_label(after)}")
    for row, label in enumerate((*labels, *labels)):
        y = row // 2 * _GROUP + row % 2 * _ROW + 58
        shapes.append(Words(_LEFT - 12, y, label, anchor="end", size=17))
    words = f"Energy {-change.energy:+.0f} %, time {change.time:+.0f} % ({origin})."
    return Drawing(_WIDTH, 2 * _GROUP, title, words, tuple(shapes))


def _bars(
    name: str,
    values: tuple[float, float],
    text: Callable[[float, int], str],
    per_cent: float,
    top: float,
) -> Iterator[Shape | Words]:
    """The two bars of a quantity, the difference in large letters beside the second."""
    yield Words(_LEFT, top + 22, name, "soft", size=17)
    for row, (value, colour) in enumerate(zip(values, ("s5", "s2"), strict=True)):
        y, right = top + 32 + row * _ROW, _LEFT + _LONGEST * value / max(values)
        corners = ((_LEFT, y), (right, y), (right, y + _BAR), (_LEFT, y + _BAR))
        yield Shape(corners, colour)
        yield Words(right + 10, y + 25, text(value, 3), bold=True, size=18)
    difference = f"{abs(per_cent):.0f} % {'less' if per_cent < 0 else 'more'}"
    colour = "s2" if per_cent < 0 else "ink"
    yield Words(_WIDTH - 16, top + 84, difference, colour, "end", bold=True, size=30)
