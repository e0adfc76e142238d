"""Draw a frontier as one HTML page: inline SVG and a table, nothing to fetch."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_axis, joules_unit, seconds_axis, seconds_unit
from joulery.cli.frontier_view.view import Kind
from joulery.cli.page import html_document
from joulery.objectives import gains

if TYPE_CHECKING:
    from joulery.cli.frontier_view.axis import Axis
    from joulery.cli.frontier_view.view import FrontierView, Mark
    from joulery.frontier import OperatingPoint

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 20, 56
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
    line = " ".join(f"{_x(time, p.seconds)},{_y(energy, p.joules)}" for p in view.frontier)
    described = (
        f"{len(view.frontier)} points from {time.unit.text(view.frontier.fastest.seconds)} and "
        f"{energy.unit.text(view.frontier.fastest.joules)} to "
        f"{time.unit.text(view.frontier.least_energy.seconds)} and "
        f"{energy.unit.text(view.frontier.least_energy.joules)}; the table below has every figure."
    )
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="plot-name plot-text">',
        f'<title id="plot-name">{escape(view.title)}, {view.origin}</title>',
        f'<desc id="plot-text">{escape(described)}</desc>',
        *_grid(time, energy, view.origin),
        f'<polyline class="line" points="{line}"/>',
        *(_mark(view, mark, time, energy) for mark in view.marks()),
        "</svg>",
    ]
    return "\n".join(parts)


def _x(axis: Axis, seconds: float) -> float:
    return round(_LEFT + axis.share(seconds) * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(axis: Axis, joules: float) -> float:
    return round(_TOP + (1 - axis.share(joules)) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _grid(time: Axis, energy: Axis, origin: str) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick in time.ticks:
        x = _x(time, tick * time.unit.size)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 18}">{tick:g}</text>')
    for tick in energy.ticks:
        y = _y(energy, tick * energy.unit.size)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick left" x="{_LEFT - 8}" y="{y + 4}">{tick:g}</text>')
    middle_x, middle_y = (_LEFT + right) / 2, (_TOP + bottom) / 2
    parts.append(
        f'<text class="name" x="{middle_x}" y="{_HEIGHT - 12}">'
        f"time in {time.unit.name} ({origin})</text>"
    )
    parts.append(
        f'<text class="name" x="18" y="{middle_y}" transform="rotate(-90 18 {middle_y})">'
        f"energy in {energy.unit.name} ({origin})</text>"
    )
    return parts


def _mark(view: FrontierView, mark: Mark, time: Axis, energy: Axis) -> str:
    x, y = _x(time, mark.point.seconds), _y(energy, mark.point.joules)
    # Labels to the right of a mark, except where they would leave the frame.
    fits = x < _WIDTH - _RIGHT - 110
    place = f'x="{x + 11}"' if fits else f'x="{x - 11}" text-anchor="end"'
    saved = gains(mark.point, _reference(view))
    tip = (
        f"{mark.label}, {mark.kind}: {time.unit.text(mark.point.seconds)}, "
        f"{energy.unit.text(mark.point.joules)}, {mark.point.watts:.1f} W; "
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
        return f'<path d="M{x},{y - 8}l8,8l-8,8l-8,-8z"/>'
    if kind is Kind.CHOSEN:
        corners = (
            (
                x + radius * math.sin(math.pi * turn / 5),
                y - radius * math.cos(math.pi * turn / 5),
            )
            for turn, radius in zip(range(10), (11, 4.6) * 5, strict=True)
        )
        return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"/>'
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
