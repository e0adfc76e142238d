"""Draw the frontier of an iteration with the bound below it and the plans on it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_axis, seconds_axis
from joulery.cli.frontier_view.frame import Frame, diamond, star

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.cli.plan_view.study import Study

_HEIGHT = 400
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
    frame = Frame(time, energy, _HEIGHT)
    planned = ((row.seconds, row.joules) for row in study.frontier)
    bound = ((row.seconds, row.lower_bound_joules) for row in study.frontier)
    name = escape(_described(study))
    return "\n".join(
        [
            (
                f'<svg class="curve" viewBox="0 0 {frame.width} {_HEIGHT}" role="img" '
                f'aria-label="{name}">'
            ),
            *frame.grid(f"iteration time in {time.unit.name}", f"energy in {energy.unit.name}"),
            f'<polyline class="bound" points="{_places(bound, frame)}"/>',
            f'<polyline class="line" points="{_places(planned, frame)}"/>',
            _tail(study, frame),
            *(_mark(frame, mark) for mark in marks),
            "</svg>",
        ]
    )


def _tail(study: Study, frame: Frame) -> str:
    """From the plan of least energy on there is nothing to gain but waiting."""
    last, latest = study.frontier[-1], max(study.outcomes, key=lambda o: o.deadline_seconds)
    if latest.deadline_seconds <= last.seconds:
        return ""
    return (
        f'<line class="tail" x1="{frame.x(last.seconds)}" y1="{frame.y(last.joules)}" '
        f'x2="{frame.x(latest.deadline_seconds)}" y2="{frame.y(latest.plan.joules)}"/>'
    )


def _described(study: Study) -> str:
    first, last = study.frontier[0], study.frontier[-1]
    return (
        f"Energy over iteration time: from {first.joules:.4g} J in {first.seconds:.4g} s to "
        f"{last.joules:.4g} J in {last.seconds:.4g} s; full clocks need "
        f"{study.unplanned.joules:.4g} J in {study.unplanned.seconds:.4g} s"
    )


def _places(points: Iterable[tuple[float, float]], frame: Frame) -> str:
    return " ".join(f"{frame.x(seconds)},{frame.y(joules)}" for seconds, joules in points)


def _mark(frame: Frame, mark: tuple[float, float, str, str]) -> str:
    seconds, joules, label, kind = mark
    x, y = frame.x(seconds), frame.y(joules)
    place = frame.label_place(x, 13, _LABEL_ROOM)
    shape = diamond(x, y) if kind == "before" else star(x, y)
    return f'<g class="{kind}">{shape}<text {place} y="{y - 12}">{escape(label)}</text></g>'
