"""Draw the frontier of an iteration with the bound below it and the plans on it."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_axis, seconds_axis

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.cli.frontier_view.axis import Axis
    from joulery.cli.plan_view.study import Study

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 16, 52
# Room that a label needs to the right of its mark, in pixels.
_LABEL_ROOM = 190


def curve(study: Study) -> str:
    """The chart as inline SVG."""
    marks = [(study.unplanned.seconds, study.unplanned.joules, "full clocks", "before")]
    for outcome in study.outcomes:
        label = f"{outcome.name}: {100 * outcome.saved:.1f} % saved"
        marks.append((outcome.deadline_seconds, outcome.plan.joules, label, "after"))
    time = seconds_axis([row.seconds for row in study.frontier] + [mark[0] for mark in marks])
    energy = joules_axis(
        [row.lower_bound_joules for row in study.frontier]
        + [row.joules for row in study.frontier]
        + [mark[1] for mark in marks]
    )
    planned = ((row.seconds, row.joules) for row in study.frontier)
    bound = ((row.seconds, row.lower_bound_joules) for row in study.frontier)
    name = escape(_described(study))
    return "\n".join(
        [
            f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">',
            *_grid(time, energy),
            f'<polyline class="bound" points="{_places(bound, time, energy)}"/>',
            f'<polyline class="line" points="{_places(planned, time, energy)}"/>',
            _tail(study, time, energy),
            *(_mark(_x(time, x), _y(energy, y), label, kind) for x, y, label, kind in marks),
            "</svg>",
        ]
    )


def _tail(study: Study, time: Axis, energy: Axis) -> str:
    """From the plan of least energy on there is nothing to gain but waiting."""
    last, latest = study.frontier[-1], max(study.outcomes, key=lambda o: o.deadline_seconds)
    if latest.deadline_seconds <= last.seconds:
        return ""
    return (
        f'<line class="tail" x1="{_x(time, last.seconds)}" y1="{_y(energy, last.joules)}" '
        f'x2="{_x(time, latest.deadline_seconds)}" y2="{_y(energy, latest.plan.joules)}"/>'
    )


def _described(study: Study) -> str:
    first, last = study.frontier[0], study.frontier[-1]
    return (
        f"Energy over iteration time: from {first.joules:.4g} J in {first.seconds:.4g} s to "
        f"{last.joules:.4g} J in {last.seconds:.4g} s; full clocks need "
        f"{study.unplanned.joules:.4g} J in {study.unplanned.seconds:.4g} s"
    )


def _x(axis: Axis, seconds: float) -> float:
    return round(_LEFT + axis.share(seconds) * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(axis: Axis, joules: float) -> float:
    return round(_TOP + (1 - axis.share(joules)) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _places(points: Iterable[tuple[float, float]], time: Axis, energy: Axis) -> str:
    return " ".join(f"{_x(time, x)},{_y(energy, y)}" for x, y in points)


def _grid(time: Axis, energy: Axis) -> list[str]:
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
        f'<text class="name" x="{middle_x}" y="{_HEIGHT - 10}">'
        f"iteration time in {time.unit.name}</text>"
        f'<text class="name" x="18" y="{middle_y}" transform="rotate(-90 18 {middle_y})">'
        f"energy in {energy.unit.name}</text>"
    )
    return parts


def _mark(x: float, y: float, label: str, kind: str) -> str:
    fits = x < _WIDTH - _RIGHT - _LABEL_ROOM
    place = f'x="{x + 13}"' if fits else f'x="{x - 13}" text-anchor="end"'
    shape = f'<path d="M{x},{y - 8}l8,8l-8,8l-8,-8z"/>' if kind == "before" else _star(x, y)
    return f'<g class="{kind}">{shape}<text {place} y="{y - 6}">{escape(label)}</text></g>'


def _star(x: float, y: float) -> str:
    corners = (
        (x + radius * math.sin(math.pi * turn / 5), y - radius * math.cos(math.pi * turn / 5))
        for turn, radius in zip(range(10), (11, 4.6) * 5, strict=True)
    )
    return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"/>'
