"""Draw a chart of a sweep as inline SVG."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulery.cli.frontier_view.axis import Axis
    from joulery.cli.sweep_view.charts import Chart, Series

_WIDTH, _HEIGHT = 520, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 34, 50
# As many colours as the page defines; further lines begin again.
_COLOURS = 6
_LEGEND_PIXELS_PER_LETTER = 7.5


def svg(chart: Chart, number: int) -> str:
    """One chart; ``number`` tells its parts from those of the page's other charts."""
    across, upwards = chart.x_axis(), chart.y_axis()
    name, text = f"chart-{number}-name", f"chart-{number}-text"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name} {text}">',
        f'<title id="{name}">{escape(chart.title)}</title>',
        f'<desc id="{text}">{escape(_described(chart))}</desc>',
        *_grid(chart, across, upwards),
        *_legend(chart),
    ]
    for position, line in enumerate(chart.series):
        parts.append(_line(chart, line, position % _COLOURS, across, upwards))
    return "\n".join([*parts, "</svg>"])


def _described(chart: Chart) -> str:
    ends = [
        f"{line.name}: from {line.points[0][1]:.3g} at {line.points[0][0]:g} "
        f"to {line.points[-1][1]:.3g} at {line.points[-1][0]:g}"
        + ("" if line.best is None else f", best at {line.points[line.best][0]:g}")
        for line in chart.series
    ]
    return f"{chart.y_name} over {chart.x_name}. {'; '.join(ends)}."


def _x(axis: Axis, value: float) -> float:
    return round(_LEFT + axis.share(value) * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    return round(_TOP + (1 - axis.share(value)) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _grid(chart: Chart, across: Axis, upwards: Axis) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick in across.ticks:
        x = _x(across, tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 17}">{tick:g}</text>')
    for tick in upwards.ticks:
        y = _y(upwards, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick left" x="{_LEFT - 7}" y="{y + 4}">{tick:g}</text>')
    if chart.reference is not None:
        y = _y(upwards, chart.reference)
        parts.append(f'<line class="reference" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
    middle_x, middle_y = (_LEFT + right) / 2, (_TOP + bottom) / 2
    parts.append(
        f'<text class="name" x="{middle_x}" y="{_HEIGHT - 12}">{escape(chart.x_name)}</text>'
    )
    parts.append(
        f'<text class="name" x="15" y="{middle_y}" transform="rotate(-90 15 {middle_y})">'
        f"{escape(chart.y_name)}</text>"
    )
    return parts


def _legend(chart: Chart) -> list[str]:
    parts = []
    x = float(_LEFT)
    for position, line in enumerate(chart.series):
        colour = position % _COLOURS
        parts.append(
            f'<g class="s{colour}"><line class="line" x1="{x}" x2="{x + 18}" y1="16" y2="16"/>'
            f'{_dot(colour, x + 9, 16)}<text x="{x + 24}" y="20">{escape(line.name)}</text></g>'
        )
        x += 42 + _LEGEND_PIXELS_PER_LETTER * len(line.name)
    return parts


def _line(chart: Chart, line: Series, colour: int, across: Axis, upwards: Axis) -> str:
    places = [(_x(across, x), _y(upwards, y)) for x, y in line.points]
    parts = [
        f'<g class="s{colour}">',
        f'<polyline class="line" points="{" ".join(f"{x},{y}" for x, y in places)}"/>',
    ]
    for position, (x, y) in enumerate(places):
        value, error = line.points[position], line.errors[position]
        best = position == line.best
        tip = f"{line.name}, {value[0]:g}: {value[1]:.4g}" + (f" ± {error:.2g}" if error else "")
        bar = _bar(upwards, x, value[1], error)
        mark = _star(x, y) if best else _dot(colour, x, y)
        label = f'<text class="best" x="{x}" y="{y - 13}">{value[0]:g} W</text>' if best else ""
        parts.append(
            f"<g><title>{escape(tip)}{' (best)' * best}; {escape(chart.y_name)}</title>"
            f"{bar}{mark}{label}</g>"
        )
    return "".join([*parts, "</g>"])


def _bar(upwards: Axis, x: float, value: float, error: float) -> str:
    top, bottom = _y(upwards, value + error), _y(upwards, value - error)
    # A bar within its own dot would only smudge it.
    if bottom - top < 9:
        return ""
    return f'<path class="bar" d="M{x - 3},{top}h6m-3,0V{bottom}m-3,0h6"/>'


def _dot(colour: int, x: float, y: float) -> str:
    """Another shape for each line, for those who cannot tell the colours."""
    if colour % 3 == 1:
        return f'<rect class="dot" x="{x - 3.5}" y="{y - 3.5}" width="7" height="7"/>'
    if colour % 3 == 2:
        return f'<path class="dot" d="M{x},{y - 4.8}l4.8,8.4h-9.6z"/>'
    return f'<circle class="dot" cx="{x}" cy="{y}" r="3.8"/>'


def _star(x: float, y: float) -> str:
    corners = (
        (x + radius * math.sin(math.pi * turn / 5), y - radius * math.cos(math.pi * turn / 5))
        for turn, radius in zip(range(10), (10, 4.2) * 5, strict=True)
    )
    return f'<polygon class="dot" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"/>'
