"""Signals of the grid and their files."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest

from joulery.errors import FileError, InvalidValueError
from joulery.grid import (
    REGIONS,
    GridEvent,
    Signal,
    read_events,
    read_signal,
    static_intensity,
)
from joulery.prediction import Assumptions

HOURLY = Signal(0.0, 3600.0, (10.0, 20.0, 30.0))


def test_a_window_cuts_the_first_and_last_step():
    """Energy in a part of an hour is charged for the whole of it."""
    starts, seconds, values = HOURLY.window(1800, 7200)
    assert starts.tolist() == [1800, 3600]
    assert seconds.tolist() == [1800, 3600]
    assert values.tolist() == [10, 20]
    assert HOURLY.at(3600) == 20


def test_times_outside_are_refused():
    """A signal is made up beyond its end."""
    for start, end in ((-1, 10), (0, 10801), (10800, 10800)):
        with pytest.raises(InvalidValueError, match="covers"):
            HOURLY.window(start, end)


def test_a_file_in_utc_is_read(tmp_path):
    """A documented file is refused."""
    file = tmp_path / "a.csv"
    file.write_text("utc,grams,other\n1970-01-01T01:00Z,2,7\n1970-01-01T00:00Z,1,8\n")
    assert read_signal(file).values == (1.0, 2.0)
    assert read_signal(file, "other").values == (8.0, 7.0)
    with pytest.raises(FileError, match="columns"):
        read_signal(file, "none")


def test_a_parquet_file_is_read(tmp_path):
    """Parquet gives other values than CSV."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"t_s": [0, 2, 4], "regd": [0.1, -0.2, 0.3]}), file)
    assert read_signal(file) == Signal(0.0, 2.0, (0.1, -0.2, 0.3), "a.parquet")


def test_times_without_a_zone_need_one(tmp_path):
    """Local times are taken for UTC in silence."""
    file = tmp_path / "a.csv"
    file.write_text("timestamp,price\n1970-01-01 02:00,1\n1970-01-01 03:00,2\n")
    with pytest.raises(FileError, match="zone"):
        read_signal(file)
    assert read_signal(file, zone=timezone(timedelta(hours=2))).start == 0


def test_overlapping_forecasts_are_refused(tmp_path):
    """Hours of two forecasts are mixed into one series."""
    file = tmp_path / "a.csv"
    hours = [(0, 1), (1, 2), (2, 3), (1, 20), (2, 30), (3, 40)]
    file.write_text("\n".join(["utc,g", *(f"1970-01-01T0{h}:00Z,{g}" for h, g in hours), ""]))
    with pytest.raises(FileError, match="there twice"):
        read_signal(file)


def test_gaps_are_named_and_filled_only_on_request(tmp_path):
    """Missing hours shift all later ones, or are filled in what a user gave."""
    file = tmp_path / "a.csv"
    file.write_text(
        "utc,g\n1970-01-01T00:00,1\n1970-01-01T01:00,2\n1970-01-01T02:00,3\n1970-01-01T04:00,5\n"
    )
    with pytest.raises(FileError, match="1 steps are missing after 1970-01-01 02:00"):
        read_signal(file)
    rows = [(0, 1), (3600, 2), (7200, 3), (14400, 5)]
    assert Signal.from_rows(rows, most_gap_steps=1).values == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    "row", ["1970-01-01T01:00,x", "yesterday,2", "1970-01-01T00:00,2", "1970-01-01T00:31,2"]
)
def test_broken_rows_are_refused_with_their_place(tmp_path, row):
    """A malformed or repeated row is used or dropped in silence."""
    file = tmp_path / "a.csv"
    file.write_text(f"utc,g\n1970-01-01T00:00,1\n{row}\n1970-01-01T02:00,3\n1970-01-01T03:00,3\n")
    with pytest.raises(FileError):
        read_signal(file)


def test_the_built_in_table_is_constant():
    """A region is unknown, or its mean changes within the day."""
    assert static_intensity("se").at(0) == static_intensity("SE").at(1.8e9)
    with pytest.raises(InvalidValueError, match="WORLD"):
        static_intensity("Atlantis")


def test_the_world_is_the_one_of_predictions():
    """A recommendation and an account of the same training would differ in carbon."""
    assert REGIONS["WORLD"] == Assumptions().grid()


def test_events_say_what_is_wrong_with_them(tmp_path):
    """An event that makes no sense, or is over, is obeyed."""
    event = GridEvent("a", 100, 200, reduction=0.25)
    assert event.budget(1000) == 750
    event.check_not_past(150)
    with pytest.raises(InvalidValueError, match="ended 50 s ago"):
        event.check_not_past(250)
    for flaw in ({"end": 50}, {"reduction": 1.5}, {"target_watts": 5.0}):
        with pytest.raises(InvalidValueError):
            GridEvent(**({"id": "a", "start": 100, "end": 200, "reduction": 0.2} | flaw))
    file = tmp_path / "events.json"
    file.write_text('[{"id": "a", "start": 1, "end": 2, "target_watts": 5000}]')
    assert read_events(file)[0].budget(1) == 5000
    file.write_text('[{"id": "a"}]')
    with pytest.raises(FileError):
        read_events(file)
