"""Frontiers as charts, tables and pages; the axes, labels and writers that all reports share."""

import itertools
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, strategies as st

from joulery.errors import FileError, MissingExtraError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.reports import (
    Axis,
    Chart,
    Heading,
    Report,
    Series,
    Terminal,
    Unit,
    draw,
    draw_before_after,
    frontier_report,
    joules_unit,
    seconds_unit,
    write_png,
)
from joulery.reports._chart import Bar, Gantt, round_ticks, scale_of
from joulery.reports._drawing import Shape, Words, svg
from joulery.reports._terminal import plot

SIMULATED = Provenance(Origin.SIMULATED, "a model <of> sorts")


def _point(seconds, joules, watts, provenance=SIMULATED):
    return OperatingPoint(seconds, joules, Setting(power_limit_watts=watts), provenance)


CLOUD = (
    _point(100.0, 30e3, 300.0),
    _point(105.0, 25e3, 250.0),
    _point(115.0, 20e3, 200.0),
    _point(140.0, 21e3, 150.0),
)
FRONTIER = Frontier.from_points(CLOUD)
POINTED_OUT = {"cloud": CLOUD, "default": CLOUD[0], "chosen": CLOUD[2]}
REPORT = frontier_report(
    FRONTIER, "A title with <angles>", summary="A summary & more", **POINTED_OUT
)
(CHART,) = REPORT.charts


def _chart(*arguments, **points):
    (chart,) = frontier_report(*arguments, **points).charts
    return chart


@pytest.mark.parametrize(
    ("low", "high", "most"), [(0, 1, 5), (98, 131, 6), (-3, 4, 4), (1e-9, 3e-9, 6), (5e6, 9e6, 3)]
)
def test_ticks_are_round_inside_and_few(low, high, most):
    """Ticks outside the frame or at odd values make an axis unreadable."""
    ticks = round_ticks(low, high, most)
    assert 1 <= len(ticks) <= most
    assert all(low <= tick <= high for tick in ticks)
    steps = {f"{b - a:.3e}"[0] for a, b in itertools.pairwise(ticks)}
    assert steps <= {"1", "2", "5"}


def test_units_suit_the_largest_figure():
    """One unit for a whole table, so that its figures compare at a glance."""
    assert joules_unit([10.0, 25e3]).text(12345.0) == "12.3 kJ"
    assert seconds_unit([500.0]).text(499.96) == "500.0 s"
    assert seconds_unit([5 * 3600.0]).text(5400.0) == "1.5 h"
    assert joules_unit([0.0]).name == "mJ"


@pytest.mark.parametrize("values", [[5.0], [1.0, 1.0 + 1e-12], [1e-6, 1e9], [0.5, 0.6], [0.0]])
def test_points_lie_within_the_frame(values):
    """A point on or outside the frame would be cut off."""
    scale = scale_of(values, Axis("x", Unit("kJ", 1e3)), 6)
    assert all(0.0 < scale.share(value) < 1.0 for value in values)


def test_nothing_yet_is_drawn_upwards_from_zero():
    """A run without an epoch so far would have an axis of minus one epoch."""
    assert min(scale_of([0.0, 0.0], Axis("epochs"), 6).ticks) == 0.0


def test_rounding_is_not_magnified():
    """Figures that differ in the last bits must fall on one spot, not across the plot."""
    scale = scale_of([5000.0, 5000.001], Axis("x"), 6)
    assert scale.share(5000.001) - scale.share(5000.0) < 1e-3


def test_marks_tell_the_kinds_apart():
    """The default and the choice must be visible, dominated points must not pose as choices."""
    assert {s.name: (s.symbol, len(s.points)) for s in CHART.series if s.name} == {
        "dominated": ("cross", 1),
        "frontier": ("dot", 1),
        "default 300 W": ("diamond", 1),
        "chosen 200 W": ("star", 1),
    }


def test_origin_names_every_kind_of_figure():
    """A drawing that mixes measured and simulated points has to say both."""
    measured = _point(90.0, 40e3, 350.0, Provenance(Origin.MEASURED, "counter"))
    mixed = frontier_report(FRONTIER, "t", cloud=(*CLOUD, measured))
    assert mixed.origin == "measured and simulated"
    assert "provenance" in mixed.text(Terminal(120))


def test_many_points_keep_only_the_labels_that_matter():
    """Fifty labels on top of each other say nothing."""
    many = tuple(_point(100.0 + i, 30e3 - 10 * i, 300.0 - i) for i in range(50))
    chart = _chart(Frontier(many), "t", default=many[0], chosen=many[9])
    labels = [label for series in chart.series for label in series.labels]
    assert labels == ["default 300 W", "chosen 291 W"]


places = st.tuples(st.floats(1.0, 1.2), st.floats(1.0, 1.2))


@given(st.lists(places, min_size=1, max_size=16), places, places, st.sampled_from([380.0, 760.0]))
def test_labels_do_not_cover_each_other(points, default, chosen, width):
    """A label on top of another can be read as neither, or as something else."""

    def named(role, found, *, emphasis):
        labels = tuple(f"{role} {100 + number} W" for number in range(len(found)))
        return Series(role, tuple(found), labels=labels, line="", emphasis=emphasis)

    chart = Chart(
        "t",
        Axis("x"),
        Axis("y"),
        (
            named("", points, emphasis=False),
            named("default", [default], emphasis=True),
            named("chosen", [chosen], emphasis=True),
        ),
    )
    words = [
        shape
        for shape in draw(chart, width).shapes
        if isinstance(shape, Words) and shape.text.endswith(" W") and shape.y > 40
    ]
    boxes = []
    for word in words:
        length = 7.2 * len(word.text)
        left = {"start": word.x, "middle": word.x - length / 2, "end": word.x - length}[word.anchor]
        boxes.append((left, word.y - 10, left + length, word.y + 2))
    emphasised = [word.bold for word in words]
    for (a, a_bold), (b, b_bold) in itertools.combinations(zip(boxes, emphasised, strict=True), 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart or (a_bold and b_bold)


def test_the_first_picture_of_the_demonstration_is_readable():
    """The chosen limit and its neighbour once lay on top of each other."""
    near = (_point(196.1, 29.2e3, 160.0), _point(224.2, 29.6e3, 140.0), _point(175.0, 40e3, 250.0))
    chart = _chart(Frontier.from_points(near), "t", cloud=near, default=near[2], chosen=near[0])
    words = [s.text for s in draw(chart).shapes if isinstance(s, Words)]
    assert {"chosen 160 W", "140 W", "default 250 W"} <= set(words)


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_terminal_plot_keeps_within_the_width(columns):
    """A line that wraps destroys the picture."""
    lines = plot(CHART, Terminal(columns)).splitlines()
    assert max(map(len, lines)) <= max(40, columns)
    legend = "".join(lines[14 + 4 :])
    assert "default 300 W" in legend
    assert "chosen 200 W" in legend
    assert "frontier" in legend


@pytest.mark.parametrize("slowest", [1150.0, 1300.0, 1352.4, 1380.0])
def test_tick_labels_keep_within_the_width(slowest):
    """A tick at the very end must not push its label over the edge."""
    ends = (_point(700.0, 30e3, 300.0), _point(slowest, 20e3, 100.0))
    text = plot(_chart(Frontier(ends), "t"), Terminal(87))
    assert max(map(len, text.splitlines()[:-1])) <= 87


def test_terminal_plot_shows_marks_labels_and_origin():
    """What the picture is for: the points, which is which, and that it is simulated."""
    text = plot(CHART, Terminal(80))
    picture, _, legend = text.rpartition("\n")
    for shown in ("◆", "●", "★", "×", "300 W", "250 W", "200 W", "150 W"):
        assert shown in picture
    assert legend.split("   ")[-2:] == ["◆ default 300 W", "★ chosen 200 W"]
    assert "energy in kJ (simulated)" in text
    assert "\x1b" not in text


def test_terminal_plot_puts_faster_left_and_less_energy_low():
    """A mirrored axis would turn the advice around."""
    lines = plot(CHART, Terminal(80)).splitlines()[:-1]
    (top,) = [(row, line.index("◆")) for row, line in enumerate(lines) if "◆" in line]
    (low,) = [(row, line.index("★")) for row, line in enumerate(lines) if "★" in line]
    assert top[0] < low[0]
    assert top[1] < low[1]


def test_terminal_plot_in_plain_ascii():
    """Logs and old terminals get the same picture in letters."""
    text = plot(CHART, Terminal(80, unicode=False))
    assert text.isascii()
    assert {"D", "o", "*", "x", "300", "200"} <= set(re.split(r"[\s.|]+", text))


def test_colour_changes_nothing_but_colour():
    """Colour codes must not shift the picture."""
    plain, coloured = plot(CHART, Terminal(80)), plot(CHART, Terminal(80, colour=True))
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_chosen_default_is_said():
    """Where nothing changes, one mark stands for both, and the legend says so."""
    same = _chart(FRONTIER, "t", cloud=CLOUD, default=CLOUD[0], chosen=CLOUD[0])
    assert "★ chosen 300 W (the default)" in plot(same, Terminal())


def test_single_point_can_be_drawn():
    """One limit swept is still a frontier."""
    single = Frontier(CLOUD[:1])
    assert "● 300 W" in plot(_chart(single, "t"), Terminal())
    assert "300 W" in frontier_report(single, "t").html()


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.fetched = []

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        self.fetched += [names[key] for key in ("src", "href") if key in names]
        if tag in ("script", "link", "iframe", "img"):
            self.fetched.append(tag)


def test_page_fetches_nothing():
    """The page must work offline, years from now."""
    page, links = REPORT.html(), _Links()
    links.feed(page)
    assert links.fetched == []
    assert "url(" not in page
    assert "@import" not in page
    assert "http" not in page


def test_page_has_the_figures_and_says_simulated():
    """Every point with its figures in a table, for screen readers and for copying."""
    page = REPORT.html()
    assert "every figure here is simulated" in page
    assert "<h1>A title with &lt;angles&gt;</h1>" in page
    assert "A summary &amp; more" in page
    assert "prefers-color-scheme: dark" in page
    cells = ("200 W", "115.0 s", "20.0 kJ", "173.9 W", "33.3 %", "15.0 %", "chosen")
    row = re.search(r'<tr class="chosen">(.*)</tr>', page)[1]
    assert tuple(re.findall(r"<td[^>]*>([^<]*)</td>", row)) == cells
    assert "a model &lt;of&gt; sorts" in page


def test_page_drawing_is_well_formed_and_named():
    """Screen readers need a name, mice a tooltip per mark, and browsers valid SVG."""
    drawing = ET.fromstring(svg(draw(CHART), "c"))  # noqa: S314 - our own text
    assert drawing.get("role") == "img"
    assert drawing.find("title").text == "A title with <angles>"
    tips = [title.text for title in drawing.iterfind(".//g/title")]
    assert len(tips) == 4
    assert all("(simulated)" in tip for tip in tips)


def test_page_without_default_compares_with_the_fastest():
    """A frontier from a file knows no default."""
    assert "against the fastest" in frontier_report(FRONTIER, "t").html()


def test_gantt_charts_are_drawn_to_scale():
    """A bar at the wrong place or of the wrong length would show another schedule."""
    bars = (Bar(0, 0.0, 1.0, 0.0, "F0", "first"), Bar(1, 1.0, 3.0, 1.0, "B0", "last"))
    gantt = Gantt("who works when", ("rank 0", "rank 1"), bars, 4.0, 4.0)
    first, last = [s for s in draw(gantt).shapes if getattr(s, "tip", "")]
    widths = [shape.outline[1][0] - shape.outline[0][0] for shape in (first, last)]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert last.outline[0][0] == pytest.approx(first.outline[1][0])
    assert last.outline[0][1] > first.outline[0][1]
    assert "rank 1" in Report("t", "predicted", (Heading("h"), gantt)).html()


def test_png_is_written(tmp_path):
    """The picture for slides and reports."""
    pytest.importorskip("matplotlib")
    write_png([draw(CHART), draw(CHART), draw(CHART)], tmp_path / "frontier.png", columns=2)
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_png_into_a_missing_folder_is_explained(tmp_path):
    """A folder that vanished is the user's to fix, in one line."""
    pytest.importorskip("matplotlib")
    with pytest.raises(FileError, match="cannot write"):
        write_png([draw(CHART)], tmp_path / "missing" / "frontier.png")


def test_png_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    """The plotting package is optional; its absence must name the remedy."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError) as raised:
        write_png([draw(CHART)], tmp_path / "frontier.png")
    assert "joulery[plots]" in raised.value.remedy


def test_before_and_after_are_bars_from_zero():
    """The first picture that people see exaggerates, or passes for a measurement."""
    before, after = _point(700.0, 160e3, 250.0), _point(770.0, 120e3, 160.0)
    drawing = draw_before_after(before, after, "twice")
    texts = [shape.text for shape in drawing.shapes if isinstance(shape, Words)]
    for text in ("Energy (simulated)", "Time (simulated)", "25 % less", "10 % more", "160 kJ"):
        assert text in texts
    bars = [shape.outline for shape in drawing.shapes if isinstance(shape, Shape)]
    lengths = [outline[1][0] - outline[0][0] for outline in bars]
    assert lengths[1] / lengths[0] == pytest.approx(0.75)
    assert lengths[2] / lengths[3] == pytest.approx(700 / 770)
    assert draw_before_after(after, before, "back").description.startswith("Energy +33 %, time -9")


@pytest.mark.parametrize("at", [5, 10, 15, 20, 25, 38])
def test_a_long_label_on_a_phone_keeps_off_the_curve(at):
    """A label lies across the line that it explains, or ends outside the picture."""
    curve = tuple((1 + n / 40, 1 / (0.1 + n / 40)) for n in range(41))
    star = Series("", (curve[at],), labels=("straggler x 1.1: 25.0 % saved",), symbol="star")
    star = replace(star, line="", emphasis=True)
    chart = Chart("", Axis("s"), Axis("J"), (Series("", curve, symbol=""), star))
    drawing = draw(chart, 380, 360)
    (label,) = [shape for shape in drawing.shapes if getattr(shape, "text", "") == star.labels[0]]
    # 7.5 pixels per bold letter: measured in Chromium.
    width = 7.5 * len(label.text)
    left = label.x - {"start": 0, "middle": width / 2, "end": width}[label.anchor]
    assert left >= drawing.frame.left - 1
    assert left + width <= drawing.frame.right + 1
    for x, y in map(drawing.frame.place, curve):
        assert not (left < x < left + width and label.y - 10 < y < label.y + 2)
