"""Tables and charts of text."""

import io
import sys

import pytest

from joulery.reports import Axis, Chart, Report, Series, Terminal, table_text as table
from joulery.reports._drawing import series_symbol
from joulery.reports._terminal import plot


def test_columns_line_up():
    """Ragged columns make figures unreadable."""
    assert table(["name", "W"], [["a", "250"], ["longer", "5"]], "lr").splitlines() == [
        "name      W",
        "──────  ───",
        "a       250",
        "longer    5",
    ]


def test_no_rows_is_a_header():
    """A log without devices still prints."""
    assert table(["device", "energy"], []).splitlines() == ["device  energy", "──────  ──────"]


def test_missing_alignment_is_left():
    """Columns beyond the letters given are text."""
    assert table(["a", "b"], [["1", "x"], ["10", "xyz"]], "r").splitlines()[2:] == [
        " 1  x",
        "10  xyz",
    ]


@pytest.mark.parametrize(
    ("wide", "width"), [("日本", 4), ("é", 1), ("e\u0301", 1), ("°C", 2)], ids=ascii
)
def test_width_is_what_the_terminal_shows(wide, width):
    """Characters of two cells or none must not shift the next column."""
    header, rule, row = table(["h", "x"], [[wide, "|"]]).splitlines()
    assert rule.split()[0] == "─" * width
    assert row == f"{wide}  |"
    assert header.startswith("h")


@pytest.mark.parametrize("cell", ["a\nb", "a\rb", "a\tb", "a\x1b[31mb", "a\x00b", "a\u202eb"])
def test_cells_cannot_break_out(cell):
    """Text from a file must neither break rows nor command the terminal."""
    lines = table(["h", "x"], [[cell, "|"]]).splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_columns_line_up_where_plus_minus_takes_two_letters(monkeypatch):
    """If this fails, tables with errors are ragged in an ASCII locale."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    lines = table(["energy", "±", "W"], [["5 J", "± 3 %", "1"]], "rrr").splitlines()
    assert lines[0] == "energy      +-  W"
    assert lines[2] == "   5 J  +- 3 %  1"


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_legends_keep_within_the_terminal(columns):
    """If this fails, the names of a chart's lines wrap in the middle of a word."""
    names = ("frontier", "default 250 W", "chosen 160 W", "dominated", "measured again")
    series = tuple(Series(name, ((1.0, 2.0 + n), (2.0, 1.0))) for n, name in enumerate(names))
    chart = Chart("t", Axis("x"), Axis("y"), series)
    text = plot(chart, Terminal(columns))
    assert max(map(len, text.splitlines())) <= columns
    assert all(name in text for name in names)


def test_rows_of_another_length_are_refused():
    """A cell dropped in silence would shift figures under the wrong header."""
    with pytest.raises(ValueError, match="zip"):
        table(["a", "b"], [["1"]])


WIDE = (["setting", "time", "energy", "why"], [["a" * 30, "1.0 s", "2.0 kJ", "b" * 60]], "lrrl")


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_tables_keep_within_the_terminal(columns):
    """A line that wraps destroys a table."""
    lines = table(*WIDE, columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)
    assert any("2.0 kJ" in line for line in lines)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_words_that_do_not_fit_go_on_below(columns):
    """If this fails, the source of a figure or a remedy ends in dots."""
    words = "measured by a counter of the board whose error is stated"
    rows = [["energy", "2.0 kJ", words], ["time", "1.0 s", "clock"]]
    lines = table(["figure", "value", "source"], rows, "lrl", columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    found = [line.split() for line in lines]
    assert all(any(word in line for line in found) for word in words.split())
    assert sum("2.0" in line for line in found) == 1


def test_figures_are_never_cut():
    """A figure cut short is another figure: columns go on below instead."""
    headers = [f"column {number}" for number in range(8)]
    text = table(headers, [[f"{1000 + number} kJ" for number in range(8)]], "r" * 8, columns=40)
    assert max(map(len, text.splitlines())) <= 40
    assert all(f"{1000 + number} kJ" in text for number in range(8))
    assert text.count("column 0") == text.count("1000 kJ") > 1


def test_a_series_whose_place_is_taken_stands_beside_it():
    """A device type would be in the chart of a recommendation without symbol or legend."""
    pair = ((1.0, 1.0), (2.0, 2.0))
    hidden = Series("hidden", pair[:1], symbol="dot")
    chart = Chart("", Axis("x"), Axis("y"), (hidden, Series("over", pair, symbol="star")), "")
    text = plot(chart, Terminal(80))
    assert "●★" in text.replace(" ", "") or "★●" in text.replace(" ", "")
    assert "● hidden" in text


def test_five_series_have_five_symbols():
    """Device types of a chart would share a symbol where there is no colour."""
    assert len({series_symbol(number) for number in range(5)}) == 5


def test_a_long_word_continues_after_a_hyphen():
    """If this fails, the plan of a recommendation is cut in a narrow terminal."""
    lines = table(["plan", "W"], [["dp64-mb1-zero2-selective-recompute", "250"]], "lr", 24)
    plan = "".join(line.split()[0] for line in lines.splitlines()[2:])
    assert plan == "dp64-mb1-zero2-selective-recompute"


def test_charts_of_a_report_have_their_titles_and_names_of_their_ticks():
    """If this fails, charts of a terminal cannot be told apart, and bars have numbers as names."""
    x = Axis("job", ticks=(0.0, 1.0), labels=("nightly", "weekly"))
    line = Series("used", ((0.0, 1.0), (1.0, 2.0)), line="", symbol="bar")
    charts = [Chart(title, x, Axis("W"), (line,), "") for title in ("One", "Other")]
    text = Report("Page", "", tuple(charts)).text(Terminal(60))
    for words in ("One", "Other", "nightly", "weekly"):
        assert words in text
