import itertools
import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from joulery.cli.frontier_view import (
    Canvas,
    FrontierView,
    Kind,
    html_page,
    joules_unit,
    seconds_unit,
    terminal_plot,
    write_png,
)
from joulery.cli.frontier_view.axis import joules_axis, round_ticks, seconds_axis
from joulery.errors import FileError, MissingExtraError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting

SIMULATED = Provenance(Origin.SIMULATED, "a model <of> sorts")


def _point(seconds, joules, watts, provenance=SIMULATED):
    return OperatingPoint(seconds, joules, Setting(power_limit_watts=watts), provenance)


CLOUD = (
    _point(100.0, 30e3, 300.0),
    _point(105.0, 25e3, 250.0),
    _point(115.0, 20e3, 200.0),
    _point(140.0, 21e3, 150.0),
)


@pytest.fixture
def view():
    """Four points, one of them dominated."""
    return FrontierView(
        Frontier.from_points(CLOUD), "A title with <angles>", CLOUD, CLOUD[0], CLOUD[2], "edp"
    )


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


@pytest.mark.parametrize("make", [seconds_axis, joules_axis])
@pytest.mark.parametrize("values", [[5.0], [1.0, 1.0 + 1e-12], [1e-6, 1e9], [0.5, 0.6]])
def test_points_lie_within_the_frame(make, values):
    """A point on or outside the frame would be cut off."""
    axis = make(values)
    assert all(0.0 < axis.share(value) < 1.0 for value in values)


def test_rounding_is_not_magnified():
    """Figures that differ in the last bits must fall on one spot, not across the plot."""
    axis = joules_axis([5000.0, 5000.001])
    assert axis.share(5000.001) - axis.share(5000.0) < 1e-3


def test_marks_tell_the_kinds_apart(view):
    """The default and the choice must be visible, dominated points must not pose as choices."""
    kinds = {mark.label: mark.kind for mark in view.marks()}
    assert kinds == {
        "300 W": Kind.DEFAULT,
        "250 W": Kind.FRONTIER,
        "200 W": Kind.CHOSEN,
        "150 W": Kind.DOMINATED,
    }


def test_origin_names_every_kind_of_figure():
    """A drawing that mixes measured and simulated points has to say both."""
    measured = _point(90.0, 40e3, 350.0, Provenance(Origin.MEASURED, "counter"))
    mixed = FrontierView(Frontier.from_points(CLOUD), "t", (*CLOUD, measured))
    assert mixed.origin == "measured and simulated"


def test_many_marks_keep_only_the_captions_that_matter(view):
    """Fifty labels on top of each other say nothing."""
    crowd = tuple(_point(100.0 + i, 30e3 - 10 * i, 300.0 - i) for i in range(50))
    crowded = FrontierView(Frontier.from_points(crowd), "t", crowd, crowd[0], crowd[9])
    captions = [crowded.caption(mark) for mark in crowded.marks()]
    assert [caption for caption in captions if caption] == ["default 300 W", "chosen 291 W"]
    assert "250 W" in [view.caption(mark) for mark in view.marks()]


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_terminal_plot_keeps_within_the_width(view, columns):
    """A line that wraps destroys the picture."""
    lines = terminal_plot(view, Canvas(columns=columns)).splitlines()
    legend = lines.pop()
    assert max(map(len, lines)) <= max(40, columns)
    assert "default 300 W" in legend
    assert "chosen 200 W" in legend
    assert len(lines) == 14 + 4


@pytest.mark.parametrize("slowest", [1150.0, 1300.0, 1352.4, 1380.0])
def test_tick_labels_keep_within_the_width(slowest):
    """A tick at the very end must not push its label over the edge."""
    ends = (_point(700.0, 30e3, 300.0), _point(slowest, 20e3, 100.0))
    plot = terminal_plot(FrontierView(Frontier(ends), "t"), Canvas(columns=87))
    assert max(map(len, plot.splitlines()[:-1])) <= 87


def test_terminal_plot_shows_marks_labels_and_origin(view):
    """What the picture is for: the points, which is which, and that it is simulated."""
    text = terminal_plot(view, Canvas(columns=80))
    picture, _, legend = text.rpartition("\n")
    for shown in ("◆", "●", "★", "×", "300 W", "250 W", "200 W", "150 W"):
        assert shown in picture
    assert legend.split("   ")[-2:] == ["◆ default 300 W", "★ chosen 200 W"]
    assert "energy in kJ (simulated)" in text
    assert "time in s (simulated)" in text
    assert "\x1b" not in text


def test_terminal_plot_puts_faster_left_and_leaner_low(view):
    """A mirrored axis would turn the advice around."""
    lines = terminal_plot(view, Canvas(columns=80)).splitlines()[:-1]
    (top,) = [(row, line.index("◆")) for row, line in enumerate(lines) if "◆" in line]
    (low,) = [(row, line.index("★")) for row, line in enumerate(lines) if "★" in line]
    assert top[0] < low[0]
    assert top[1] < low[1]


def test_terminal_plot_in_plain_ascii(view):
    """Logs and old terminals get the same picture in letters."""
    text = terminal_plot(view, Canvas(columns=80, unicode=False))
    assert text.isascii()
    assert {"D", "o", "*", "x", "300", "200"} <= set(re.split(r"[\s.|]+", text))


def test_colour_changes_nothing_but_colour(view):
    """Colour codes must not shift the picture."""
    plain = terminal_plot(view, Canvas(columns=80))
    coloured = terminal_plot(view, Canvas(columns=80, colour=True))
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_chosen_default_is_said():
    """Where nothing changes, one mark stands for both, and the legend says so."""
    same = FrontierView(Frontier.from_points(CLOUD), "t", CLOUD, CLOUD[0], CLOUD[0])
    assert "★ chosen 300 W (the default)" in terminal_plot(same, Canvas())


def test_single_point_can_be_drawn():
    """One limit swept is still a frontier."""
    single = FrontierView(Frontier(CLOUD[:1]), "t")
    assert "● 300 W" in terminal_plot(single, Canvas())
    assert "300 W" in html_page(single)


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.fetched = []

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        self.fetched += [names[key] for key in ("src", "href") if key in names]
        if tag in ("script", "link", "iframe", "img"):
            self.fetched.append(tag)


def test_page_fetches_nothing(view):
    """The page must work offline, years from now."""
    page, links = html_page(view), _Links()
    links.feed(page)
    assert links.fetched == []
    assert "url(" not in page
    assert "@import" not in page


def test_page_has_the_figures_and_says_simulated(view):
    """Every point with its figures in a table, for screen readers and for copying."""
    page = html_page(view, "A summary & more")
    assert "every figure here is simulated" in page
    assert "A summary &amp; more" in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<tr class=") == 4
    assert '<th scope="row">200 W</th><td>115.0 s</td><td>20.0 kJ</td><td>173.9 W</td>' in page
    assert "<td>33.3 %</td><td>15.0 %</td><td>chosen</td><td>simulated</td>" in page
    assert "a model &lt;of&gt; sorts" in page
    assert "$" not in page


def test_page_drawing_is_well_formed_and_named(view):
    """Screen readers need a name, mice a tooltip per mark, and browsers valid SVG."""
    svg = re.search(r"<svg.*</svg>", html_page(view), re.DOTALL)
    drawing = ET.fromstring(svg[0])  # noqa: S314 - our own text
    assert drawing.get("role") == "img"
    assert drawing.find("title").text == "A title with <angles>, simulated"
    tips = [group.find("title").text for group in drawing.findall("g")]
    assert len(tips) == 4
    assert all("(simulated)" in tip for tip in tips)


def test_page_without_default_compares_with_the_fastest():
    """A frontier from a file knows no default."""
    assert "against the fastest" in html_page(FrontierView(Frontier.from_points(CLOUD), "t"))


def test_png_is_written(view, tmp_path):
    """The picture for slides and reports."""
    pytest.importorskip("matplotlib")
    write_png(view, tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_png_into_a_missing_folder_is_explained(view, tmp_path):
    """A folder that vanished is the user's to fix, in one line."""
    pytest.importorskip("matplotlib")
    with pytest.raises(FileError, match="cannot write"):
        write_png(view, tmp_path / "missing" / "frontier.png")


def test_png_without_matplotlib_names_the_extra(view, tmp_path, monkeypatch):
    """The plotting package is optional; its absence must name the remedy."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError) as raised:
        write_png(view, tmp_path / "frontier.png")
    assert "joulery[plots]" in raised.value.remedy
