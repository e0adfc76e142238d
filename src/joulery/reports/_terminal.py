"""Charts and tables with characters, as wide as the terminal and in the alphabet that it has."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from joulery.reports._chart import Axis, Chart, Scale, Series

_SYMBOLS = {
    "bar": "▪",
    "dot": "●",
    "square": "■",
    "triangle": "▲",
    "cross": "×",
    "diamond": "◆",
    "star": "★",
}
_ASCII_SYMBOLS = {
    "bar": "#",
    "dot": "o",
    "square": "#",
    "triangle": "^",
    "cross": "x",
    "diamond": "D",
    "star": "*",
}
# ANSI codes of the palette's colours: plain, yellow, green, magenta, red, dim.
_ANSI = ("", "33", "1;32", "35", "31", "2")
# Bit of each of the 2 × 4 dots of a braille character, by column and row from the top.
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_NARROWEST_PLOT, _PLOT_ROWS = 40, 14  # by hand: half a terminal of 80 columns and 24 rows
_NARROWEST_NAME, _NARROWEST_CELL = 12, 16  # by hand: narrower columns break most words
_BESIDE = (0, 1, -1, 2, -2)  # by hand: columns that still read as the same place
_UNLIMITED = 1_000_000  # columns that no line reaches


@dataclass(frozen=True, slots=True)
class Terminal:
    """Capabilities of a terminal.

    Attributes:
        columns: Characters across.
        colour: Whether to send colour codes.
        unicode: Whether to use more than ASCII.
    """

    columns: int = 80
    colour: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO | None = None, widest: int = 100) -> Terminal:
        """The terminal behind a stream, standard output unless given, up to ``widest`` columns."""
        output = sys.stdout if stream is None else stream
        colour = output.isatty() and not os.environ.get("NO_COLOR")
        return cls(min(widest, terminal_columns()), colour, _shows(output, "●★⠉"))

    def paint(self, text: str, code: str) -> str:
        """``text`` in an ANSI colour, where the terminal shows any."""
        return f"\x1b[{code}m{text}\x1b[0m" if code and self.colour else text

    def bold(self, text: str) -> str:
        """``text`` in bold."""
        return self.paint(text, "1")


def _shows(stream: TextIO, text: str) -> bool:
    """Whether the encoding of a stream has the characters."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def terminal_columns() -> int:
    """Width of the terminal; practically unlimited where output goes to a file or a pipe."""
    return shutil.get_terminal_size((_UNLIMITED, 24)).columns


def table_text(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str = "",
    columns: int | None = None,
) -> str:
    """A plain text table with a rule below its header, no wider than ``columns``.

    Where it is too wide, text continues in further lines first; then the table continues below with
    its first column repeated.

    Args:
        headers: Column titles.
        rows: Cells as text, one sequence per row.
        align: Letter ``l`` or ``r`` per column; missing ones are left-aligned.
        columns: Width to keep; the terminal's unless given.
    """
    width = terminal_columns() if columns is None else columns
    cells = [[_printable(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    # The first column is repeated where the table continues below, so it may be shorter.
    narrowest = [_NARROWEST_NAME, *[_NARROWEST_CELL] * (len(headers) - 1)]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        text_columns = [
            at
            for at in range(len(headers))
            if align[at : at + 1] != "r" and widths[at] > min(narrowest[at], width)
        ]
        if not text_columns:
            break
        widths[max(text_columns, key=widths.__getitem__)] -= 1
    parts = []
    for group in _column_groups(widths, width):
        spare = width - sum(widths[at] + 2 for at in group) + 2
        last = group[-1]  # takes what the others leave, up to what it has to say
        needed_width = max(_width(row[last]) for row in cells)
        room = [widths[at] for at in group[:-1]]
        room.append(min(needed_width, widths[last] + max(0, spare)))
        right = [align[at : at + 1] == "r" for at in group]
        parts.append(_table_part([[row[at] for at in group] for row in cells], room, right))
    return "\n\n".join(parts)


def _column_groups(widths: Sequence[int], width: int) -> list[list[int]]:
    """Columns that fit side by side; every group after the first repeats the first column."""
    groups: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        used = sum(widths[at] + 2 for at in groups[-1]) + widths[column]
        if used > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(column)
    return groups


def _table_part(cells: list[list[str]], widths: list[int], right: list[bool]) -> str:
    head, *rows = (_wrap(row, widths, right) for row in cells)
    rule = [["─" * width for width in widths]]
    return "\n".join(
        "  ".join(
            _pad(cell, width, right=flag)
            for cell, width, flag in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in itertools.chain(head, rule, *rows)
    )


def _wrap(row: list[str], widths: list[int], right: list[bool]) -> list[tuple[str, ...]]:
    """The lines of a row whose text continues below where it is too long."""
    pieces = [
        [cell]
        if flag or _width(cell) <= width
        else textwrap.wrap(
            " ".join(_break_at_hyphens(word, width) for word in cell.split()),
            width,
            break_on_hyphens=False,
        )
        for cell, width, flag in zip(row, widths, right, strict=True)
    ]
    return list(itertools.zip_longest(*pieces, fillvalue=""))


def _break_at_hyphens(word: str, width: int) -> str:
    """A word, with a blank after as few of its hyphens as let its parts fit."""
    lines = [""]
    for part in re.findall("[^-]*-|[^-]+", word):
        if lines[-1] and _width(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return " ".join(lines)


def _pad(cell: str, width: int, *, right: bool) -> str:
    if _width(cell) > width:
        while _width(cell) > width - 1:
            cell = cell[:-1]
        cell += "…"
    blank = " " * (width - _width(cell))
    return blank + cell if right else cell + blank


def _printable(cell: str) -> str:
    """Without the line breaks and terminal codes that text from a file may hold."""
    if "±" in cell and getattr(sys.stdout, "encoding", None) and not _shows(sys.stdout, "±"):
        cell = cell.replace("±", "+-")  # wider, so columns have to know
    return "".join(char if char.isprintable() else "�" for char in cell)


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


class _Cells:
    """Characters with an optional colour each, over lines of dots."""

    def __init__(self, columns: int, terminal: Terminal) -> None:
        self.columns, self.rows = columns, _PLOT_ROWS
        self._terminal = terminal
        self._dots: dict[tuple[int, int], int] = {}
        self._cells: dict[tuple[int, int], tuple[str, str]] = {}

    def dot(self, column: int, row: int) -> None:
        """One braille dot, counted in dots from the top left."""
        cell = (column // 2, row // 4)
        self._dots[cell] = self._dots.get(cell, 0) | _BRAILLE[column % 2][row % 4]

    def free(self, column: int, row: int, length: int) -> bool:
        """Whether neither text nor line is in the way."""
        dotted = any((column + i, row) in self._dots for i in range(length))
        return not dotted and self.fits(column, row, length)

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
            self._terminal.paint("".join(letter for letter, _ in run), colour)
            for colour, run in itertools.groupby(cells, key=lambda cell: cell[1])
        )

    def _cell(self, column: int, row: int) -> tuple[str, str]:
        if (column, row) in self._cells:
            return self._cells[column, row]
        dots = self._dots.get((column, row), 0)
        if not dots:
            return " ", ""
        return (chr(0x2800 + dots) if self._terminal.unicode else "."), ""


def plot(chart: Chart, terminal: Terminal) -> str:
    """A chart as lines of text: y upwards, x to the right, a legend below."""
    width = min(100, max(_NARROWEST_PLOT, terminal.columns))
    x, y = chart.x_scale(max(2, width // 12)), chart.y_scale(_PLOT_ROWS // 3)
    labels = [chart.y.text(tick) for tick in y.ticks]
    gutter = max(map(len, labels)) + 1
    cells = _Cells(width - gutter - 1, terminal)
    for member in chart.series:
        if member.line:
            _draw_line(cells, member, x, y)
    legible = _draw_symbols(cells, chart.series, x, y, terminal)
    bar = "│┤" if terminal.unicode else "||"
    at_row = {_row(cells, y.tick_share(t)): text for t, text in zip(y.ticks, labels, strict=True)}
    lines = [f"{'':{gutter}}{chart.y_name}"]
    for row in range(cells.rows):
        label = at_row.get(row, "")
        lines.append(f"{label:>{gutter - 1}} {bar[bool(label)]}{cells.line(row)}")
    lines += [f"{'':{gutter}}{line}" for line in _x_axis(cells, x, chart.x, terminal)]
    lines.append(f"{chart.x.name:>{width}}")
    lines.append(_legend(legible, width, terminal))
    return "\n".join(line.rstrip() for line in lines)


def _column(cells: _Cells, share: float) -> int:
    return round(share * (cells.columns - 1))


def _row(cells: _Cells, share: float) -> int:
    return round((1 - share) * (cells.rows - 1))


def _draw_line(cells: _Cells, series: Series, x: Scale, y: Scale) -> None:
    # Half a character in, so that the line runs through the middle of its symbols.
    positions = [
        (
            2 * x.share(across) * (cells.columns - 1) + 0.5,
            4 * (1 - y.share(upwards)) * (cells.rows - 1) + 1.5,
        )
        for across, upwards in series.points
    ]
    gap = 1 if series.line == "solid" else 3
    for (x0, y0), (x1, y1) in itertools.pairwise(positions):
        steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(0, steps + 1, gap):
            share = step / steps
            cells.dot(round(x0 + share * (x1 - x0)), round(y0 + share * (y1 - y0)))


def _draw_symbols(
    cells: _Cells, series: Sequence[Series], x: Scale, y: Scale, terminal: Terminal
) -> list[Series]:
    """Put down every symbol that finds room, the most important first; the series that did."""
    symbols = _SYMBOLS if terminal.unicode else _ASCII_SYMBOLS
    positions: list[tuple[int, int, str, Series]] = []
    for line in reversed([s for s in series if s.symbol]):
        points = [
            (_column(cells, x.share(across)), _row(cells, y.share(upwards)))
            for across, upwards in line.points
        ]
        for step in _BESIDE:  # beside its place only where no symbol of the series found any
            for number, (column, row) in enumerate(points):
                if cells.fits(column + step, row, 1):
                    colour = _ANSI[line.colour % len(_ANSI)]
                    cells.write(column + step, row, symbols[line.symbol], colour)
                    label = line.labels[number] if line.labels else ""
                    positions.append((column + step, row, label, line))
            if any(line is position[3] for position in positions):
                break
    for column, row, label, line in positions:
        if label:
            _label(cells, column, row, f" {label} ", _ANSI[line.colour % len(_ANSI)])
    lines = [s for s in series if s.line and not s.symbol]
    return [s for s in series if s in lines or any(s is position[3] for position in positions)]


def _label(cells: _Cells, column: int, row: int, text: str, colour: str) -> None:
    length = len(text)
    # Frontiers fall to the right, so the best places are to the right of a symbol and above it.
    beside, above, over = (column + 1, row), (column, row - 1), (column - length // 2, row - 1)
    positions = (beside, above, over, (column - length + 2, row - 1), (column - length, row))
    free = (position for position in positions if cells.free(*position, length))
    fitting = (position for position in positions if cells.fits(*position, length))
    position = next(itertools.chain(free, fitting), None)
    if position is not None:
        cells.write(*position, text, colour)


def _x_axis(cells: _Cells, x: Scale, axis: Axis, terminal: Terminal) -> tuple[str, str]:
    """The axis with its ticks, and the labels below."""
    corner, dash, notch = ("└", "─", "┬") if terminal.unicode else ("+", "-", "+")
    line, labels = [dash] * cells.columns, ""
    for tick in x.ticks:
        text, column = axis.text(tick), _column(cells, x.tick_share(tick))
        start = max(0, column - len(text) // 2)
        if (labels and start <= len(labels)) or start + len(text) > cells.columns:
            continue
        line[column] = notch
        labels = labels.ljust(start) + text
    return corner + "".join(line), " " + labels


def _legend(series: Sequence[Series], width: int, terminal: Terminal) -> str:
    """The named series, on as many lines as their names need."""
    symbols = _SYMBOLS if terminal.unicode else _ASCII_SYMBOLS
    solid, gaps = ("⠤⠤", "⠄⠄") if terminal.unicode else ("..", ". .")
    lines: list[list[str]] = [[]]
    room = width
    for member in series:
        if not member.name:
            continue
        sign = symbols.get(member.symbol) or (solid if member.line == "solid" else gaps)
        text = f"{sign} {member.name}"
        if room < len(text) + 2 and lines[-1]:
            lines.append([])
            room = width
        lines[-1].append(terminal.paint(text, _ANSI[member.colour % len(_ANSI)]))
        room -= len(text) + 3
    return "\n".join("  " + "   ".join(line) for line in lines)
