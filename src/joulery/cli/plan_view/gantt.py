"""Gantt charts of an iteration: a row per rank, with the clock as colour."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import Unit, round_ticks, seconds_unit
from joulery.pipeline import FORWARD, LETTERS

if TYPE_CHECKING:
    from joulery.pipeline import Instruction, PipelineProblem, Timetable

_WIDTH, _LEFT, _RIGHT, _TOP = 1160, 58, 12, 6
_ROW, _BOX, _SMALL_BOX = 26, 22, 16
_LETTERS = {kind: letter for letter, kind in LETTERS.items()}
# As many shades as the style sheet has, slowest first.
SHADES = 12
# Room in pixels for a letter, and for the letter with its microbatch.
_LETTER_WIDTH, _WORD_WIDTH = 11, 26


@dataclass(frozen=True, slots=True)
class GanttFrame:
    """What the charts of a page have in common, so that they are easy to compare.

    Attributes:
        problem: Pipeline.
        seconds: Time that the width stands for; later work is cut off.
        lowest_hertz: Clock of the first shade.
        highest_hertz: Clock of the last shade.
    """

    problem: PipelineProblem
    seconds: float
    lowest_hertz: float
    highest_hertz: float

    @property
    def bottom(self) -> int:
        """Lower edge of the rows."""
        return _TOP + self.problem.ranks * _ROW

    def x(self, seconds: float) -> float:
        """Horizontal position of a time."""
        return _LEFT + min(seconds, self.seconds) / self.seconds * (_WIDTH - _LEFT - _RIGHT)

    def shade(self, hertz: float) -> int:
        """The shade of a clock."""
        span = self.highest_hertz - self.lowest_hertz
        share = (hertz - self.lowest_hertz) / span if span > 0 else 1.0
        return round(share * (SHADES - 1))


def gantt(frame: GanttFrame, table: Timetable, name: str) -> str:
    """One chart with a row per rank; ``name`` is its accessible label."""
    size = f'viewBox="0 0 {_WIDTH} {frame.bottom + 40}"'
    parts = [
        f'<svg class="gantt" {size} role="img" aria-label="{escape(name)}">',
        *_rows(frame, table),
    ]
    boxes = zip(
        frame.problem.instructions,
        table.starts.tolist(),
        table.durations.tolist(),
        table.clocks_hertz.tolist(),
        strict=True,
    )
    parts += [_box(frame, *box) for box in boxes if box[1] < frame.seconds]
    return "\n".join([*parts, "</svg>"])


def _rows(frame: GanttFrame, table: Timetable) -> list[str]:
    parts = []
    for rank in range(frame.problem.ranks):
        y = _TOP + rank * _ROW
        parts.append(
            f'<text class="tick left" x="{_LEFT - 8}" y="{y + 17}">rank {rank}</text>'
            f'<rect class="lane" x="{_LEFT}" y="{y + 1}" width="{_WIDTH - _LEFT - _RIGHT}" '
            f'height="{_ROW - 2}"/>'
        )
    unit = seconds_unit([frame.seconds])
    for tick in round_ticks(0.0, frame.seconds / unit.size, 9):
        x = round(frame.x(tick * unit.size), 1)
        parts.append(
            f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{frame.bottom + 4}"/>'
            f'<text class="tick" x="{x}" y="{frame.bottom + 19}">{tick:g}</text>'
        )
    parts.append(_axis_name(frame, unit))
    if table.seconds <= frame.seconds:
        x = round(frame.x(table.seconds), 1)
        parts.append(f'<line class="end" x1="{x}" x2="{x}" y1="{_TOP}" y2="{frame.bottom + 4}"/>')
    return parts


def _axis_name(frame: GanttFrame, unit: Unit) -> str:
    return (
        f'<text class="name" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{frame.bottom + 35}">'
        f"time in {unit.name}</text>"
    )


def _box(frame: GanttFrame, item: Instruction, start: float, duration: float, hertz: float) -> str:
    x = frame.x(start)
    width = max(frame.x(start + duration) - x, 0.5)
    height = _SMALL_BOX if item.kind == FORWARD else _BOX
    y = _TOP + item.rank * _ROW + (_ROW - height) / 2
    tip = f"{item}: {1000 * duration:.1f} ms at {hertz / 1e6:.0f} MHz"
    return (
        f'<g class="c{frame.shade(hertz)}"><title>{escape(tip)}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"/>'
        f"{_label(item, x + width / 2, y + height / 2 + 4, width)}</g>"
    )


def _label(item: Instruction, x: float, y: float, width: float) -> str:
    if width < _LETTER_WIDTH:
        return ""
    word = _LETTERS.get(item.kind, item.kind[:1].upper())
    if width >= _WORD_WIDTH and item.microbatch >= 0:
        word += str(item.microbatch)
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(word)}</text>'
