"""One layout of charts in pixels, written as SVG for pages and as PNG for slides.

A chart becomes a list of shapes in pixels first; both writers draw the same shapes, so a page and
its picture agree. Labels are placed so that they cover neither each other nor a symbol.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, MissingExtraError
from joulery.files import check_replaceable
from joulery.reports._chart import Chart, Gantt, round_ticks, seconds_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from joulery.reports._chart import Scale, Series

# Colours in light and dark pages; the first six are told apart by people with any kind of colour
# blindness when used with different symbols.
PALETTE = {
    "s0": ("#2563a8", "#7db4ee"),
    "s1": ("#b4500b", "#f2a065"),
    "s2": ("#14743a", "#63d38c"),
    "s3": ("#7c3aad", "#c79bf0"),
    "s4": ("#a3174f", "#f48fb1"),
    "s5": ("#57606a", "#a3acb6"),
    "paper": ("#ffffff", "#14171b"),
    "ink": ("#1b1f24", "#e8ebee"),
    "soft": ("#57606a", "#a3acb6"),
    "rule": ("#d8dee4", "#343b43"),
    "lane": ("#eceff2", "#22272e"),
    "cold": ("#fbe9ab", "#4d3a78"),
    "warm": ("#ee8a3d", "#c14f5f"),
    "hot": ("#a3171b", "#ffc24a"),
}
SERIES_COLOURS = 6  # s0 to s5 of the palette
HEATS = 12  # by hand: steps of a colour scale that still look even
_BAR_SHARE, _WIDEST_BAR = 0.75, 60.0  # by hand: of the distance of bars; and in pixels
_LOSS_COLOUR = "s4"  # red
_LETTER = 7.2  # width of an average character, in pixels
_DASHES = {"solid": (), "dashed": (5, 4), "dotted": (2, 4)}
_SYMBOLS = ("dot", "square", "triangle", "diamond", "cross")


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0
    dash: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text; ``turned`` reads upwards."""

    x: float
    y: float
    text: str
    colour: str = "ink"
    anchor: str = "start"
    bold: bool = False
    turned: bool = False
    size: int = 13
    halo: bool = True


@dataclass(frozen=True, slots=True)
class Shape:
    """A symbol or a box, filled, with a tip for mouse and screen reader."""

    outline: tuple[tuple[float, float], ...]
    colour: str
    tip: str = ""
    filled: bool = True


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area of a chart within its drawing."""

    x: Scale
    y: Scale
    left: float
    right: float
    top: float
    bottom: float

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        across = self.left + self.x.share(point[0]) * (self.right - self.left)
        upwards = self.bottom - self.y.share(point[1]) * (self.bottom - self.top)
        return round(across, 1), round(upwards, 1)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes in a picture of so many pixels.

    Attributes:
        width: Width in pixels.
        height: Height in pixels.
        name: Title.
        description: Content for screen readers.
        shapes: Shapes, later ones on top.
        frame: Plotting area of a chart; None for others.
        ticks: Number of shapes, from the first, that belong to the ticks to the right.
        plot: Number of the first shape that belongs to the points.
    """

    width: float
    height: float
    name: str
    description: str
    shapes: tuple[Stroke | Words | Shape, ...]
    frame: Frame | None = None
    ticks: int = 0
    plot: int = 0


def draw(chart: Chart | Gantt, width: float = 760, height: float = 440) -> Drawing:
    """The shapes of a chart; a Gantt chart is as high as its rows need."""
    return _draw_gantt(chart) if isinstance(chart, Gantt) else _draw_chart(chart, width, height)


def series_symbol(number: int) -> Any:
    """A symbol for the series of a number, so that shape tells apart what colour does."""
    return _SYMBOLS[number % len(_SYMBOLS)]


def _draw_chart(chart: Chart, width: float, height: float) -> Drawing:
    x, y = chart.x_scale(int(width / 80)), chart.y_scale(6)
    left = 34 + _LETTER * max(len(chart.y.text(tick)) for tick in y.ticks or (0.0,))
    legend = _legend(chart, left, width)
    top = 14.0 + max((words.y for words in legend if isinstance(words, Words)), default=0.0)
    frame = Frame(x, y, left, width - 18, top, height - 50)
    shapes: list[Stroke | Words | Shape] = list(_ticks(chart, frame))
    ticks = len(shapes)
    shapes += [*_grid(chart, frame), *legend]
    plot = len(shapes)
    for series in chart.series:
        shapes += _series(series, frame)
    shapes += _labels(chart, frame)
    texts = chart.title, chart.description
    return Drawing(width, height, *texts, tuple(shapes), frame, ticks, plot)


def _ticks(chart: Chart, frame: Frame) -> Iterable[Stroke | Words]:
    for tick in frame.x.ticks:
        x = round(frame.left + frame.x.tick_share(tick) * (frame.right - frame.left), 1)
        yield Stroke(((x, frame.top), (x, frame.bottom)), "rule")
        yield Words(x, frame.bottom + 18, chart.x.text(tick), "soft", "middle")


def _grid(chart: Chart, frame: Frame) -> Iterable[Stroke | Words]:
    for tick in frame.y.ticks:
        y = round(frame.bottom - frame.y.tick_share(tick) * (frame.bottom - frame.top), 1)
        yield Stroke(((frame.left, y), (frame.right, y)), "rule")
        yield Words(frame.left - 8, y + 4, chart.y.text(tick), "soft", "end")
    if chart.reference is not None:
        y = frame.place((0.0, chart.reference))[1]
        yield Stroke(((frame.left, y), (frame.right, y)), "soft", 1.0, _DASHES["dashed"])
    middle = (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2
    yield Words(middle[0], frame.bottom + 40, chart.x.name, "soft", "middle")
    yield Words(16, middle[1], chart.y_name, "soft", "middle", turned=True)


def _legend(chart: Chart, left: float, width: float) -> list[Stroke | Words | Shape]:
    """The named series in lines above the chart; nothing where there is only one."""
    entries = [series for series in chart.series if series.name]
    if len(entries) < 2:
        return []
    shapes: list[Stroke | Words | Shape] = []
    x, y = left, 16.0
    for series in entries:
        length = 48 + _LETTER * len(series.name)
        if x > left and x + length > width:
            x, y = left, y + 20
        if series.line:
            dash = _DASHES[series.line]
            shapes.append(Stroke(((x, y), (x + 18, y)), _colour(series), 1.8, dash))
        if series.symbol == "bar":
            shapes.append(Shape(_rectangle(x + 3, y - 6, 12, 12), _colour(series)))
        elif series.symbol:
            shapes.append(_symbol(series, (x + 9, y)))
        shapes.append(Words(x + 24, y + 4, series.name))
        x += length
    return shapes


def _series(series: Series, frame: Frame) -> Iterable[Stroke | Words | Shape]:
    positions = [frame.place(point) for point in series.points]
    colour = _colour(series)
    if series.line and len(positions) > 1:
        yield Stroke(tuple(positions), colour, 1.8, _DASHES[series.line])
    for number, ((x, y), (_, value)) in enumerate(zip(positions, series.points, strict=True)):
        error = series.errors[number] if series.errors else 0.0
        low, high = frame.place((0.0, value - error))[1], frame.place((0.0, value + error))[1]
        if low - high >= 9:  # a bar within its own symbol would only smudge it
            ends = ((x - 3, high), (x + 3, high), (x, high), (x, low), (x - 3, low), (x + 3, low))
            yield Stroke(ends, colour)
        tip = series.tips[number] if series.tips else ""
        if series.symbol == "bar":
            yield _bar(series, frame, (x, y), tip)
        elif series.symbol:
            yield _symbol(series, (x, y), tip)


def _bar(series: Series, frame: Frame, top: tuple[float, float], tip: str) -> Shape:
    """A bar from 0 to a point; below 0 in the colour of losses."""
    base = frame.place((0.0, 0.0))[1]
    spacing = frame.place((series.spacing, 0.0))[0] - frame.place((0.0, 0.0))[0]
    width = min(_WIDEST_BAR, max(1.0, _BAR_SHARE * spacing))
    outline = _rectangle(top[0] - width / 2, min(base, top[1]), width, abs(base - top[1]))
    return Shape(outline, _colour(series) if top[1] <= base else _LOSS_COLOUR, tip)


def _colour(series: Series) -> str:
    return f"s{series.colour % SERIES_COLOURS}"


def _symbol(series: Series, centre: tuple[float, float], tip: str = "") -> Shape:
    filled = series.symbol != "cross"
    return Shape(_OUTLINES[series.symbol](*centre), _colour(series), tip, filled)


def _polygon(x: float, y: float, radii: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Corners around a centre, the first straight up."""
    turns = [2 * math.pi * number / len(radii) for number in range(len(radii))]
    return tuple(
        (round(x + radius * math.sin(turn), 1), round(y - radius * math.cos(turn), 1))
        for radius, turn in zip(radii, turns, strict=True)
    )


_OUTLINES: dict[str, Any] = {
    "dot": lambda x, y: _polygon(x, y, (4.5,) * 16),
    "square": lambda x, y: ((x - 4, y - 4), (x + 4, y - 4), (x + 4, y + 4), (x - 4, y + 4)),
    "triangle": lambda x, y: ((x, y - 5), (x + 5, y + 4), (x - 5, y + 4)),
    "cross": lambda x, y: ((x - 4, y - 4), (x + 4, y + 4), (x, y), (x + 4, y - 4), (x - 4, y + 4)),
    "diamond": lambda x, y: _polygon(x, y, (8,) * 4),
    "star": lambda x, y: _polygon(x, y, (11, 4.6) * 5),
}
_SYMBOL_ROOM = {"diamond": 8, "star": 10}


def _labels(chart: Chart, frame: Frame) -> list[Words]:
    """Labels beside their symbols, none on top of another; plain ones give way to emphasised."""
    series = chart.series
    labels = [
        (frame.place(point), line.labels[number], line)
        for line in sorted(series, key=lambda s: not s.emphasis)
        for number, point in enumerate(line.points)
        if line.labels and line.labels[number]
    ]
    boxes = [
        _box_around(frame.place(point), _SYMBOL_ROOM.get(line.symbol, 5))
        for line in series
        if line.symbol
        for point in line.points
    ]
    lines = [box for line in series if line.line for box in _boxes_along(line, frame)]
    if chart.reference is not None:
        height = frame.place((0.0, chart.reference))[1]
        lines.append((frame.left, height - 3, frame.right, height + 3))
    placed = []
    for (x, y), text, line in labels:
        width = _LETTER * len(text) * (1.06 if line.emphasis else 1.0)
        options = [
            (anchor, at_x, y + dy, _text_box(at_x, y + dy, width, anchor))
            for anchor, dx, dy in _LABEL_OFFSETS
            for at_x in (_moved_inside(x + dx, width, anchor, frame),)
        ]
        hidden = [_overlap(box, boxes) + _outside(box, frame) for *_, box in options]
        crossed = [_overlap(box, lines) for *_, box in options]
        best = min(range(len(options)), key=lambda at: hidden[at] + crossed[at])
        if hidden[best] > 0 and not line.emphasis:
            continue
        anchor, at_x, at_y, box = options[best]
        boxes.append(box)
        colour = _colour(line) if line.emphasis else "ink"
        placed.append(Words(at_x, at_y, text, colour, anchor, line.emphasis))
    return placed


# by hand, in pixels: places for a label around its symbol, the preferred first
_LABEL_OFFSETS = (
    ("start", 11.0, -8.0),
    ("end", -11.0, -8.0),
    ("start", 12.0, 16.0),
    ("end", -12.0, 16.0),
    ("middle", 0.0, -15.0),
    ("middle", 0.0, 25.0),
    ("start", 14.0, 4.0),
    ("end", -14.0, 4.0),
    ("middle", 0.0, -31.0),
    ("middle", 0.0, 41.0),
    ("start", 11.0, -24.0),
    ("start", 11.0, -40.0),
)
_Box = tuple[float, float, float, float]


def _box_around(centre: tuple[float, float], room: float) -> _Box:
    return centre[0] - room, centre[1] - room, centre[0] + room, centre[1] + room


def _boxes_along(series: Series, frame: Frame) -> Iterable[_Box]:
    """Small boxes along a line, for labels to keep off."""
    for (x0, y0), (x1, y1) in itertools.pairwise(map(frame.place, series.points)):
        steps = max(1, round(math.hypot(x1 - x0, y1 - y0) / 6))
        for share in (step / steps for step in range(steps)):
            yield _box_around((x0 + share * (x1 - x0), y0 + share * (y1 - y0)), 3)


def _text_box(x: float, y: float, width: float, anchor: str) -> _Box:
    left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
    return left, y - 11, left + width, y + 3


def _moved_inside(x: float, width: float, anchor: str, frame: Frame) -> float:
    """``x`` of a text, moved until the text is within the frame."""
    left, _, right, _ = _text_box(x, 0.0, width, anchor)
    return x + max(0.0, frame.left - left) - max(0.0, right - frame.right)


def _overlap(box: _Box, boxes: Iterable[_Box]) -> float:
    total = 0.0
    for obstacle in boxes:
        across = min(box[2], obstacle[2]) - max(box[0], obstacle[0])
        upwards = min(box[3], obstacle[3]) - max(box[1], obstacle[1])
        total += max(0.0, across) * max(0.0, upwards)
    return total


def _outside(box: _Box, frame: Frame) -> float:
    beyond = (frame.left - box[0], frame.top - box[1], box[2] - frame.right, box[3] - frame.bottom)
    return 100 * sum(max(0.0, excess) for excess in beyond)


# by hand, in pixels: a wide screen, room for names of ranks, and rows that hold a line of text
_GANTT_WIDTH, _GANTT_LEFT, _GANTT_RIGHT, _GANTT_TOP, _LANE = 1160.0, 58.0, 12.0, 6.0, 26.0


def _draw_gantt(gantt: Gantt) -> Drawing:
    bottom = _GANTT_TOP + len(gantt.rows) * _LANE
    room = _GANTT_WIDTH - _GANTT_LEFT - _GANTT_RIGHT
    shapes: list[Stroke | Words | Shape] = []

    def across(seconds: float) -> float:
        return _GANTT_LEFT + min(seconds, gantt.seconds) / gantt.seconds * room

    for number, name in enumerate(gantt.rows):
        y = _GANTT_TOP + number * _LANE
        shapes.append(Words(_GANTT_LEFT - 8, y + 17, name, "soft", "end"))
        shapes.append(Shape(_rectangle(_GANTT_LEFT, y + 1, room, _LANE - 2), "lane"))
    unit = seconds_unit([gantt.seconds])
    for tick in round_ticks(0.0, gantt.seconds / unit.size, 9):
        x = round(across(tick * unit.size), 1)
        shapes.append(Stroke(((x, _GANTT_TOP), (x, bottom + 4)), "rule"))
        shapes.append(Words(x, bottom + 19, f"{tick:g}", "soft", "middle"))
    middle = _GANTT_LEFT + room / 2
    shapes.append(Words(middle, bottom + 35, f"time in {unit.name}", "soft", "middle"))
    for bar in gantt.bars:
        if bar.start_seconds < gantt.seconds:
            height = 16.0 if bar.low else 22.0
            x = across(bar.start_seconds)
            width = max(across(bar.start_seconds + bar.seconds) - x, 0.5)
            y = _GANTT_TOP + bar.row * _LANE + (_LANE - height) / 2
            heat = round(bar.heat * (HEATS - 1))
            shapes.append(Shape(_rectangle(x, y, width, height), f"heat{heat}", bar.tip))
            if width >= 4 + _LETTER * len(bar.label):
                ink = "ink" if heat < 2 * HEATS // 3 else "paper"
                centre = x + width / 2, y + height / 2 + 4
                shapes.append(Words(*centre, bar.label, ink, "middle", size=11, halo=False))
    if gantt.end_seconds <= gantt.seconds:
        x = round(across(gantt.end_seconds), 1)
        end = ((x, _GANTT_TOP), (x, bottom + 4))
        shapes.append(Stroke(end, "ink", 1.0, _DASHES["dashed"]))
    return Drawing(_GANTT_WIDTH, bottom + 40, gantt.title, "", tuple(shapes))


def _rectangle(x: float, y: float, width: float, height: float) -> tuple[tuple[float, float], ...]:
    right, bottom = round(x + width, 1), round(y + height, 1)
    x, y = round(x, 1), round(y, 1)
    return (x, y), (right, y), (right, bottom), (x, bottom)


def heat_legend() -> str:
    """Boxes from cold to hot, as SVG."""
    boxes = "".join(
        f'<rect x="{22 * heat}" width="22" height="14" fill="var(--heat{heat})"/>'
        for heat in range(HEATS)
    )
    return f'<svg class="heat" viewBox="0 0 {22 * HEATS} 14" aria-hidden="true">{boxes}</svg>'


def bar_svg(share: float, error: float, lowest: float = 0.0) -> str:
    """A bar from 0 to a share, with one standard error to both sides; losses are red, to the left.

    Args:
        share: Share that was saved; negative for a loss.
        error: One standard error of that.
        lowest: Share at the left end, at most 0; the same for all bars of a column.
    """
    left = 100 * max(-1.0, lowest)
    end, low, high = (
        min(100.0, max(left, 100 * value)) for value in (share, share - error, share + error)
    )
    colour = "s2" if share >= 0 else _LOSS_COLOUR
    size = f"{left:.1f} 0 {100 - left:.1f} 12"
    return (
        f'<svg class="bar" viewBox="{size}" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="{min(0.0, end):.1f}" width="{abs(end):.1f}" y="2" height="8" '
        f'fill="var(--{colour})"/><rect width="1" height="12" fill="var(--soft)"/>'
        f'<rect x="{low:.1f}" width="{high - low:.1f}" y="5" height="2" fill="var(--ink)"/></svg>'
    )


def palette_css() -> str:
    """The palette as CSS variables for light and dark pages."""
    light, dark = (
        " ".join(f"--{name}: {colours[theme]};" for name, colours in PALETTE.items())
        for theme in (0, 1)
    )
    heats = " ".join(f"--heat{heat}: {_css_heat(heat)};" for heat in range(HEATS))
    return (
        f":root {{ color-scheme: light dark; {light} {heats} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} {heats} }} }}"
    )


def _css_heat(heat: int) -> str:
    position = 2 * heat / (HEATS - 1)
    low, high, share = (
        ("cold", "warm", position) if position <= 1 else ("warm", "hot", position - 1)
    )
    return f"color-mix(in srgb, var(--{high}) {100 * share:.0f}%, var(--{low}))"


def svg(drawing: Drawing, name: str) -> str:
    """A drawing as inline SVG in the page's colours; ``name`` tells apart the ids of a page."""
    size = f"0 0 {drawing.width:g} {drawing.height:g}"
    labels = f'aria-labelledby="{name}-name {name}-text"{_frame_attribute(drawing.frame)}'
    parts = [
        f'<svg viewBox="{size}" role="img" {labels}>',
        f'<title id="{name}-name">{escape(drawing.name)}</title>',
        f'<desc id="{name}-text">{escape(drawing.description)}</desc>',
    ]
    shapes = [_svg_shape(shape) for shape in drawing.shapes]
    if drawing.frame is None:
        return "\n".join([*parts, *shapes, "</svg>"])
    ticks = ['<g class="ticks">', *shapes[: drawing.ticks], "</g>"]
    plot = ['<g class="plot">', *shapes[drawing.plot :], "</g>"]
    frame = shapes[drawing.ticks : drawing.plot]
    return "\n".join([*parts, *ticks, *frame, *plot, "</svg>"])


def _frame_attribute(frame: Frame | None) -> str:
    """Edges of the plotting area in pixels, and the values at them, for scripts."""
    if frame is None:
        return ""
    pixels = frame.left, frame.right, frame.top, frame.bottom
    values = frame.x.low, frame.x.high, frame.y.low, frame.y.high
    return f' data-frame="{" ".join(f"{edge:.8g}" for edge in (*pixels, *values))}"'


def _svg_shape(shape: Stroke | Words | Shape) -> str:
    if isinstance(shape, Words):
        turned = f' transform="rotate(-90 {shape.x:g} {shape.y:g})"' if shape.turned else ""
        bold = ' font-weight="600"' if shape.bold else ""

        bare = "" if shape.halo else ' class="bare"'
        return (
            f'<text x="{shape.x:g}" y="{shape.y:g}" text-anchor="{shape.anchor}" '
            f'fill="var(--{shape.colour})"{bold}{bare}{turned}>{escape(shape.text)}</text>'
        )
    if isinstance(shape, Stroke):
        dash = f' stroke-dasharray="{" ".join(map(str, shape.dash))}"' if shape.dash else ""
        return (
            f'<polyline points="{_pairs(shape.points)}" fill="none" '
            f'stroke="var(--{shape.colour})" stroke-width="{shape.width:g}"{dash}/>'
        )
    tip = f"<title>{escape(shape.tip)}</title>" if shape.tip else ""
    focus = ' tabindex="0"' if shape.tip else ""
    points, colour = _pairs(shape.outline), f"var(--{shape.colour})"
    if shape.filled:
        outline = f'<polygon points="{points}" fill="{colour}"/>'
    else:
        outline = f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return f"<g{focus}>{tip}{outline}</g>"


def _pairs(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def write_png(drawings: Sequence[Drawing], path: Path, columns: int = 1) -> None:
    """Write drawings of charts side by side to a PNG, in the light colours of the pages.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: The file cannot be written.
    """
    try:
        # No pyplot: it would look for a display and keep the figure alive.
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "matplotlib is not installed, so there is no PNG",
            remedy="pip install 'joulery[plots]'",
        ) from None
    heading = 34.0  # for the name of each drawing
    width = max(drawing.width for drawing in drawings)
    rows = [drawings[at : at + columns] for at in range(0, len(drawings), columns)]
    heights = [heading + max(drawing.height for drawing in row) for row in rows]
    size = width * min(columns, len(drawings)), sum(heights)
    figure = Figure(figsize=(size[0] / 100, size[1] / 100), dpi=150, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
    axes.axis("off")
    for row, drawing_row in enumerate(rows):
        for column, drawing in enumerate(drawing_row):
            corner = column * width, sum(heights[:row]) + heading
            # Titles as large as fits: phones show a third of the picture's pixels.
            letters = int(min(18.0, max(13.0, 1.5 * drawing.width / len(drawing.name))))
            title = Words(
                drawing.width / 2, -12, drawing.name, anchor="middle", bold=True, size=letters
            )
            for shape in (title, *drawing.shapes):
                _png_shape(axes, shape, *corner)
    try:
        check_replaceable(path)
        figure.savefig(path)
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror}", remedy="choose another folder with --out"
        ) from None


def _png_shape(axes: Any, shape: Stroke | Words | Shape, left: float, top: float) -> None:
    colour = PALETTE[shape.colour][0]
    if isinstance(shape, Words):
        axes.text(
            left + shape.x,
            top + shape.y,
            shape.text,
            color=colour,
            ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
            va="center" if shape.turned else "baseline",
            rotation=90 if shape.turned else 0,
            fontsize=0.68 * shape.size,
            fontweight="bold" if shape.bold else "normal",
            zorder=3,
        )
        return
    points = shape.points if isinstance(shape, Stroke) else shape.outline
    across, upwards = [left + x for x, _ in points], [top + y for _, y in points]
    if isinstance(shape, Stroke):
        style = (0, shape.dash) if shape.dash else "-"
        axes.plot(across, upwards, color=colour, linewidth=0.72 * shape.width, linestyle=style)
    elif shape.filled:
        axes.fill(across, upwards, color=colour, linewidth=0, zorder=2)
    else:
        axes.plot(across, upwards, color=colour, linewidth=1.4, zorder=2)
