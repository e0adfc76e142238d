"""The frontier of an iteration as a chart, with the bound below it and the plans on it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_axis, seconds_axis
from joulery.cli.frontier_view.frame import Frame, diamond, star

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.cli.plan_view.rows import PlanView

_HEIGHT = 400
# Room that a label needs to the right of its mark, in pixels.
_LABEL_ROOM = 190


def curve(view: PlanView) -> str:
    """The chart as inline SVG."""
    full, plans = view.plan.full_clocks, view.plan.frontier_plans
    marks = [(full.seconds, full.joules, "full clocks", "before")]
    for saving in view.savings:
        label = f"{saving.name}: {100 * saving.saved:.1f} % saved"
        marks.append((saving.seconds, saving.joules, label, "after"))
    time = seconds_axis([plan.seconds for plan in plans] + [mark[0] for mark in marks])
    energy = joules_axis(
        [plan.lower_bound_joules for plan in plans]
        + [plan.joules for plan in plans]
        + [mark[1] for mark in marks]
    )
    frame = Frame(time, energy, _HEIGHT)
    planned = ((plan.seconds, plan.joules) for plan in plans)
    bound = ((plan.seconds, plan.lower_bound_joules) for plan in plans)
    name = escape(_described(view))
    return "\n".join(
        [
            (
                f'<svg class="curve" viewBox="0 0 {frame.width} {_HEIGHT}" role="img" '
                f'aria-label="{name}">'
            ),
            *frame.grid(f"iteration time in {time.unit.name}", f"energy in {energy.unit.name}"),
            f'<polyline class="bound" points="{_places(bound, frame)}"/>',
            f'<polyline class="line" points="{_places(planned, frame)}"/>',
            _tail(view, frame),
            *(_mark(frame, mark) for mark in marks),
            "</svg>",
        ]
    )


def _tail(view: PlanView, frame: Frame) -> str:
    """Beyond the plan of least energy devices only wait."""
    last = view.plan.frontier_plans[-1]
    latest = max(view.savings, key=lambda saving: saving.seconds)
    if latest.seconds <= last.seconds:
        return ""
    return (
        f'<line class="tail" x1="{frame.x(last.seconds)}" y1="{frame.y(last.joules)}" '
        f'x2="{frame.x(latest.seconds)}" y2="{frame.y(latest.joules)}"/>'
    )


def _described(view: PlanView) -> str:
    first, last = view.plan.frontier_plans[0], view.plan.frontier_plans[-1]
    full = view.plan.full_clocks
    return (
        f"Energy over iteration time: from {first.joules:.4g} J in {first.seconds:.4g} s to "
        f"{last.joules:.4g} J in {last.seconds:.4g} s; full clocks need "
        f"{full.joules:.4g} J in {full.seconds:.4g} s"
    )


def _places(points: Iterable[tuple[float, float]], frame: Frame) -> str:
    return " ".join(f"{frame.x(seconds)},{frame.y(joules)}" for seconds, joules in points)


def _mark(frame: Frame, mark: tuple[float, float, str, str]) -> str:
    seconds, joules, label, kind = mark
    x, y = frame.x(seconds), frame.y(joules)
    place = frame.label_place(x, 13, _LABEL_ROOM)
    shape = diamond(x, y) if kind == "before" else star(x, y)
    return f'<g class="{kind}">{shape}<text {place} y="{y - 12}">{escape(label)}</text></g>'
