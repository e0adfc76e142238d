"""The range of the overview: what a reader picks, whatever the address says."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from joulery.server._dashboard import RangeQuery

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0


def resolve(zone="UTC", **names):
    """The range of a query, of a store without runs."""
    return RangeQuery(**names).resolve([], NOW, ZoneInfo(zone))


@pytest.mark.parametrize(
    ("names", "days", "unit"),
    [
        ({}, 29.5, "day"),
        ({"days": "7"}, 6.5, "day"),
        ({"days": "365"}, 364.5, "week"),
        ({"days": "365", "unit": "month"}, 364.5, "month"),
        ({"days": "nonsense", "unit": "year", "measure": "?"}, 29.5, "day"),
        ({"first": "2026-11-01", "last": "2026-11-03"}, 3.0, "day"),
        ({"first": "2026-11-10"}, 7.5, "day"),
        ({"first": "2026-11-03", "last": "2026-11-01"}, 0.0, "day"),
        ({"first": "0001-01-01"}, 30 * 366.0, "month"),
        ({"first": "0001-01-01", "unit": "day"}, 30 * 366.0, "month"),
    ],
)
def test_ranges_begin_and_end_with_days(names, days, unit):
    """If this fails, the overview shows other days than were asked for, or thousands of bars."""
    span = resolve(**names)
    length = span.end_wall_seconds - span.start_wall_seconds
    assert length == pytest.approx(days * DAY, abs=2.0)
    assert (span.unit, span.measure) == (unit, "energy")


def test_days_are_those_of_the_reader():
    """If this fails, a reader far from Greenwich sees parts of other days."""
    span = resolve("Asia/Tokyo", first="2026-11-01", last="2026-11-01", measure="co2")
    assert span.start_wall_seconds == datetime(2026, 10, 31, 15, tzinfo=UTC).timestamp()
    assert span.end_wall_seconds - span.start_wall_seconds == DAY
    assert span.measure == "co2"


def test_the_form_repeats_only_what_makes_sense():
    """If this fails, a form shows what the page does not, or text of an attacker."""
    values = RangeQuery("7", "<b>", "", "year").values(resolve(days="7"))
    assert (values["days"], values["first"], values["unit"]) == ("7", "", "")
    assert RangeQuery("9").values(resolve())["days"] == "30"
