"""The range that a reader picks for the overview: of dates, by day, week or month, in a measure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, cast, get_args

from joulery.jobs import PeriodUnit
from joulery.reports import Measure, OverviewRange, all_time, suitable_unit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

    from joulery.jobs import JobTotals

RANGES = {"7": "7 days", "30": "30 days", "90": "90 days", "365": "a year", "all": "all time"}
UNITS = ("", *get_args(PeriodUnit))  # the empty one for what suits the range
MEASURES = {"energy": "energy", "co2": "CO2", "money": "money"}
_DEFAULT_DAYS = "30"
_DAY = 86_400.0
_LONGEST = 30 * 366 * _DAY  # by hand: months that a chart shows


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """What a reader has asked for, as text that may be anything.

    Attributes:
        days: One of ``RANGES``.
        first: First day, as ISO date; in place of ``days``.
        last: Last day, as ISO date.
        unit: Length of periods; what suits the range unless it is a length.
        measure: Quantity of charts.
    """

    days: str = ""
    first: str = ""
    last: str = ""
    unit: str = ""
    measure: str = ""

    def resolve(self, jobs: Sequence[JobTotals], now: float, zone: tzinfo) -> OverviewRange:
        """The range; what makes no sense is left out."""
        chosen = self.measure if self.measure in MEASURES else "energy"
        measure = cast("Measure", chosen)
        whole = all_time(jobs, now, measure, zone)
        first, last = _midnight(self.first, zone), _midnight(self.last, zone, days=1)
        end = last if last is not None else whole.end_wall_seconds
        start = whole.start_wall_seconds
        if first is not None:
            start = first
        elif self.days != "all" and last is None:
            days = int(self.days if self.days in RANGES else _DEFAULT_DAYS)
            today = datetime.fromtimestamp(now, zone).date()
            start = _midnight((today - timedelta(days=days - 1)).isoformat(), zone) or start
        start = min(max(start, end - _LONGEST), end)
        unit = self.unit if self.unit in UNITS[1:] else suitable_unit(end - start)
        if suitable_unit(end - start) == "month":
            unit = "month"
        return OverviewRange(start, end, cast("PeriodUnit", unit), measure, zone)

    def values(self, span: OverviewRange) -> dict[str, Any]:
        """Values of the form."""
        dates = _is_date(self.first) or _is_date(self.last)
        return {
            "days": "" if dates else self.days if self.days in RANGES else _DEFAULT_DAYS,
            "first": self.first if _is_date(self.first) else "",
            "last": self.last if _is_date(self.last) else "",
            "unit": self.unit if self.unit in UNITS else "",
            "measure": span.measure,
            "ranges": RANGES,
            "units": UNITS,
            "measures": MEASURES,
        }


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _midnight(text: str, zone: tzinfo, days: int = 0) -> float | None:
    """Unix time at which a day begins, some days later; None for what is no day."""
    try:
        day = date.fromisoformat(text) + timedelta(days=days)
        return datetime.combine(day, time(), zone).timestamp()
    except (ValueError, OverflowError):
        return None
