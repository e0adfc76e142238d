"""Draw a frontier as one HTML page: inline SVG and a table, nothing to fetch."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_axis, joules_unit, seconds_axis, seconds_unit
from joulery.cli.frontier_view.frame import Frame, diamond, star
from joulery.cli.frontier_view.view import Kind
from joulery.cli.page import html_document
from joulery.objectives import gains

if TYPE_CHECKING:
    from joulery.cli.frontier_view.view import FrontierView, Mark
    from joulery.frontier import OperatingPoint

_HEIGHT = 440
# Room that a label needs to the right of its mark, in pixels.
_LABEL_ROOM = 110
_CLASSES = {
    Kind.DOMINATED: "dominated",
    Kind.FRONTIER: "frontier",
    Kind.DEFAULT: "default",
    Kind.CHOSEN: "chosen",
}


def html_page(view: FrontierView, summary: str = "") -> str:
    """One self-contained page, readable in light and dark, without scripts.

    Args:
        view: What to draw.
        summary: A sentence above the drawing, for people.
    """
    return html_document(
        view.title,
        view.origin,
        "joulery.cli.frontier_view",
        summary=escape(summary),
        svg=_svg(view),
        rows="\n".join(_table_row(view, mark) for mark in _by_time(view)),
        versus="against the default" if view.default is not None else "against the fastest",
        sources=escape(view.sources),
        objective=escape(view.objective and f"Chosen by {view.objective}."),
    )


def _svg(view: FrontierView) -> str:
    time = seconds_axis([point.seconds for point in view.points])
    energy = joules_axis([point.joules for point in view.points])
    frame = Frame(time, energy, _HEIGHT)
    line = " ".join(f"{frame.x(p.seconds)},{frame.y(p.joules)}" for p in view.frontier)
    described = (
        f"{len(view.frontier)} points from {time.unit.text(view.frontier.fastest.seconds)} and "
        f"{energy.unit.text(view.frontier.fastest.joules)} to "
        f"{time.unit.text(view.frontier.least_energy.seconds)} and "
        f"{energy.unit.text(view.frontier.least_energy.joules)}; the table below has every figure."
    )
    parts = [
        (
            f'<svg viewBox="0 0 {frame.width} {_HEIGHT}" role="img" '
            'aria-labelledby="plot-name plot-text">'
        ),
        f'<title id="plot-name">{escape(view.title)}, {view.origin}</title>',
        f'<desc id="plot-text">{escape(described)}</desc>',
        *frame.grid(
            f"time in {time.unit.name} ({view.origin})",
            f"energy in {energy.unit.name} ({view.origin})",
        ),
        f'<polyline class="line" points="{line}"/>',
        *(_mark(view, mark, frame) for mark in view.marks()),
        "</svg>",
    ]
    return "\n".join(parts)


def _mark(view: FrontierView, mark: Mark, frame: Frame) -> str:
    x, y = frame.x(mark.point.seconds), frame.y(mark.point.joules)
    place = frame.label_place(x, 11, _LABEL_ROOM)
    saved = gains(mark.point, _reference(view))
    tip = (
        f"{mark.label}, {mark.kind}: {frame.time.unit.text(mark.point.seconds)}, "
        f"{frame.energy.unit.text(mark.point.joules)}, {mark.point.watts:.1f} W; "
        f"energy {-saved.energy:+.1f} %, time {saved.time:+.1f} % ({mark.point.provenance.origin})"
    )
    return (
        f'<g class="mark {_CLASSES[mark.kind]}" tabindex="0"><title>{escape(tip)}</title>'
        f"{_shape(mark.kind, x, y)}"
        f'<text {place} y="{y - 8}">{escape(view.caption(mark))}</text></g>'
    )


def _shape(kind: Kind, x: float, y: float) -> str:
    if kind is Kind.DOMINATED:
        return f'<path d="M{x - 5},{y - 5}l10,10m0,-10l-10,10"/>'
    if kind is Kind.DEFAULT:
        return diamond(x, y)
    if kind is Kind.CHOSEN:
        return star(x, y)
    return f'<circle cx="{x}" cy="{y}" r="5"/>'


def _reference(view: FrontierView) -> OperatingPoint:
    return view.frontier.fastest if view.default is None else view.default


def _by_time(view: FrontierView) -> list[Mark]:
    return sorted(view.marks(), key=lambda mark: (mark.point.seconds, mark.point.joules))


def _table_row(view: FrontierView, mark: Mark) -> str:
    point, saved = mark.point, gains(mark.point, _reference(view))
    cells = (
        seconds_unit(p.seconds for p in view.points).text(point.seconds),
        joules_unit(p.joules for p in view.points).text(point.joules),
        f"{point.watts:.1f} W",
        f"{saved.energy:.1f} %",
        f"{saved.time:.1f} %",
        str(mark.kind),
        str(point.provenance.origin),
    )
    figures = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return (
        f'<tr class="{_CLASSES[mark.kind]}"><th scope="row">{escape(mark.label)}</th>{figures}</tr>'
    )
