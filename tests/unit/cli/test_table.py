"""Tables of text."""

import pytest

from joulery.cli.table import table


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


def test_rows_of_another_length_are_refused():
    """A cell dropped in silence would shift figures under the wrong header."""
    with pytest.raises(ValueError, match="zip"):
        table(["a", "b"], [["1"]])
