"""Draw a frontier with characters: lines in braille dots, marks on top."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_axis, seconds_axis
from joulery.cli.frontier_view.view import Kind

if TYPE_CHECKING:
    from joulery.cli.frontier_view.axis import Axis
    from joulery.cli.frontier_view.view import FrontierView, Mark

_SYMBOLS = {Kind.DOMINATED: "×", Kind.FRONTIER: "●", Kind.DEFAULT: "◆", Kind.CHOSEN: "★"}
_PLAIN_SYMBOLS = {Kind.DOMINATED: "x", Kind.FRONTIER: "o", Kind.DEFAULT: "D", Kind.CHOSEN: "*"}
# ANSI colour codes: dim, plain, yellow, bold green.
_COLOURS = {Kind.DOMINATED: "2", Kind.FRONTIER: "", Kind.DEFAULT: "33", Kind.CHOSEN: "1;32"}
# Bit of each of the 2 × 4 dots of a braille character, by column and row from the top.
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_NARROWEST = 40


@dataclass(frozen=True, slots=True)
class Canvas:
    """How much room there is, and what the terminal can show.

    Attributes:
        columns: Characters across, axis labels included.
        rows: Lines of the plotting area.
        colour: Whether to send colour codes.
        unicode: Whether to use more than ASCII.
    """

    columns: int = 80
    rows: int = 14
    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, colour: str) -> str:
        """``text`` in an ANSI colour, where the terminal shows any."""
        return f"\x1b[{colour}m{text}\x1b[0m" if colour and self.colour else text


class _Grid:
    """Characters with an optional colour each, over lines of dots."""

    def __init__(self, columns: int, rows: int, canvas: Canvas) -> None:
        self.columns, self.rows = columns, rows
        self._canvas = canvas
        self._dots: dict[tuple[int, int], int] = {}
        self._cells: dict[tuple[int, int], tuple[str, str]] = {}

    def dot(self, column: int, row: int) -> None:
        """One braille dot, counted in dots from the top left."""
        cell = (column // 2, row // 4)
        self._dots[cell] = self._dots.get(cell, 0) | _BRAILLE[column % 2][row % 4]

    def free(self, column: int, row: int, length: int) -> bool:
        """Whether neither text nor line is in the way."""
        return not any((column + i, row) in self._dots for i in range(length)) and self.fits(
            column, row, length
        )

    def fits(self, column: int, row: int, length: int) -> bool:
        """Whether that many cells are inside and have no text."""
        inside = 0 <= column <= self.columns - length and 0 <= row < self.rows
        return inside and not any((column + i, row) in self._cells for i in range(length))

    def write(self, column: int, row: int, text: str, colour: str = "") -> None:
        """Write ``text`` over whatever is there."""
        for offset, letter in enumerate(text):
            self._cells[column + offset, row] = letter, colour

    def line(self, row: int) -> str:
        """One line of the picture."""
        cells = [self._cell(column, row) for column in range(self.columns)]
        return "".join(
            self._canvas.paint("".join(letter for letter, _ in run), colour)
            for colour, run in itertools.groupby(cells, key=lambda cell: cell[1])
        )

    def _cell(self, column: int, row: int) -> tuple[str, str]:
        if (column, row) in self._cells:
            return self._cells[column, row]
        dots = self._dots.get((column, row), 0)
        if not dots:
            return " ", ""
        return (chr(0x2800 + dots) if self._canvas.unicode else "."), ""


def terminal_plot(view: FrontierView, canvas: Canvas) -> str:
    """The frontier as lines of text, energy upwards and time to the right."""
    width = max(_NARROWEST, canvas.columns)
    time = seconds_axis([p.seconds for p in view.points], most_ticks=max(2, width // 12))
    energy = joules_axis([p.joules for p in view.points], most_ticks=max(2, canvas.rows // 3))
    labels = [f"{tick:g}" for tick in energy.ticks]
    gutter = max(map(len, labels)) + 1
    grid = _Grid(width - gutter - 1, canvas.rows, canvas)
    _draw_line(grid, view, time, energy)
    drawn = _draw_marks(grid, view, time, energy, canvas)
    bar = "│┤" if canvas.unicode else "||"
    at_row = {
        _row(grid, energy.tick_share(t)): text for t, text in zip(energy.ticks, labels, strict=True)
    }
    lines = [f"{'':{gutter}}energy in {energy.unit.name} ({view.origin})"]
    for row in range(grid.rows):
        label = at_row.get(row, "")
        lines.append(f"{label:>{gutter - 1}} {bar[bool(label)]}{grid.line(row)}")
    lines += [f"{'':{gutter}}{line}" for line in _time_axis(grid, time, canvas)]
    lines.append(f"{f'time in {time.unit.name} ({view.origin})':>{width}}")
    lines.append(_legend(view, drawn, canvas))
    return "\n".join(line.rstrip() for line in lines)


def _column(grid: _Grid, share: float) -> int:
    return round(share * (grid.columns - 1))


def _row(grid: _Grid, share: float) -> int:
    return round((1 - share) * (grid.rows - 1))


def _draw_line(grid: _Grid, view: FrontierView, time: Axis, energy: Axis) -> None:
    # Half a character in, so that the line runs through the middle of its marks.
    places = [
        (
            2 * time.share(p.seconds) * (grid.columns - 1) + 0.5,
            4 * (1 - energy.share(p.joules)) * (grid.rows - 1) + 1.5,
        )
        for p in view.frontier
    ]
    for (x0, y0), (x1, y1) in itertools.pairwise(places):
        steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(steps + 1):
            share = step / steps
            grid.dot(round(x0 + share * (x1 - x0)), round(y0 + share * (y1 - y0)))


def _draw_marks(
    grid: _Grid, view: FrontierView, time: Axis, energy: Axis, canvas: Canvas
) -> set[Kind]:
    """Put down every mark that finds room; which kinds did."""
    symbols = _SYMBOLS if canvas.unicode else _PLAIN_SYMBOLS
    places: list[tuple[int, int, Mark]] = []
    # The most important first: they keep their place, and their label, where two collide.
    for mark in reversed(view.marks()):
        column = _column(grid, time.share(mark.point.seconds))
        row = _row(grid, energy.share(mark.point.joules))
        if grid.fits(column, row, 1):
            grid.write(column, row, symbols[mark.kind], _COLOURS[mark.kind])
            places.append((column, row, mark))
    for column, row, mark in places:
        _label(grid, column, row, mark)
    return {mark.kind for _, _, mark in places}


def _label(grid: _Grid, column: int, row: int, mark: Mark) -> None:
    # With a space on either side, so that labels never run into each other.
    text = f" {mark.label} "
    length = len(text)
    # Frontiers fall to the right, so the best places are to the right of a mark and above it.
    right, above, over = (column + 1, row), (column, row - 1), (column - length // 2, row - 1)
    places = (right, above, over, (column - length + 2, row - 1), (column - length, row))
    free = (place for place in places if grid.free(*place, length))
    fitting = (place for place in places if grid.fits(*place, length))
    place = next(itertools.chain(free, fitting), None)
    if place is not None:
        grid.write(*place, text, _COLOURS[mark.kind])


def _time_axis(grid: _Grid, time: Axis, canvas: Canvas) -> tuple[str, str]:
    """The axis with its ticks, and the labels below."""
    corner, dash, notch = ("└", "─", "┬") if canvas.unicode else ("+", "-", "+")
    axis, labels = [dash] * grid.columns, ""
    for tick in time.ticks:
        text, column = f"{tick:g}", _column(grid, time.tick_share(tick))
        start = max(0, column - len(text) // 2)
        if (labels and start <= len(labels)) or start + len(text) > grid.columns:
            continue
        axis[column] = notch
        labels = labels.ljust(start) + text
    return corner + "".join(axis), " " + labels


def _legend(view: FrontierView, drawn: set[Kind], canvas: Canvas) -> str:
    symbols = _SYMBOLS if canvas.unicode else _PLAIN_SYMBOLS
    words = []
    for kind in (kind for kind in Kind if kind in drawn):
        label = next(mark.label for mark in view.marks() if mark.kind is kind)
        named = kind in (Kind.DEFAULT, Kind.CHOSEN)
        word = f"{symbols[kind]} {kind}" + (f" {label}" if named else "")
        if kind is Kind.CHOSEN and view.chosen == view.default:
            word += " (the default)"
        words.append(canvas.paint(word, _COLOURS[kind]))
    return "  " + "   ".join(words)
