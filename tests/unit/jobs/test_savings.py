"""Savings by day, week and month: they add up, in any time zone."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from joulery.jobs import job_totals, open_runs, savings_history
from joulery.storage import Store, job_heads
from support.dashboard_store import fill_for_dashboard

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """A transaction on a month of a small team."""
    path = tmp_path_factory.mktemp("savings") / "store.sqlite"
    with Store.open(path) as store:
        fill_for_dashboard(store, NOW)
        with store.reading() as transaction:
            yield transaction


@pytest.fixture(scope="module")
def jobs(reading):
    """Figures of its jobs."""
    return job_totals(reading, job_heads(reading))


def test_recurrences_add_up_to_the_savings_of_their_job(jobs):
    """If this fails, the chart of savings and their sum contradict each other."""
    for job in jobs:
        saved = sum(recurrence.saved_joules for recurrence in job.ended)
        assert saved == pytest.approx(job.saved_joules, abs=1e-6)
        assert sum(recurrence.joules for recurrence in job.ended) == pytest.approx(job.joules)
        assert sum(recurrence.counts for recurrence in job.ended) == job.recurrences


@pytest.mark.parametrize("unit", ["day", "week", "month"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "Europe/Berlin", "Pacific/Chatham"])
def test_periods_add_up_to_the_whole(jobs, unit, zone):
    """If this fails, energy is lost or counted twice at the edge of a period."""
    span = NOW - 40 * DAY, NOW + 1.0
    history = savings_history(jobs, *span, unit, ZoneInfo(zone))
    periods, whole = history.periods, history.total
    for name in ("recurrences", "joules", "saved_joules", "default_joules"):
        assert sum(getattr(period, name) for period in periods) == pytest.approx(
            getattr(whole, name)
        )
    assert whole.joules == pytest.approx(sum(job.joules for job in jobs))
    assert len({period.end_wall_seconds for period in periods}) == len(periods)


def test_periods_follow_the_calendar():
    """If this fails, days shift by an hour when clocks change, or weeks begin on any day."""
    berlin = ZoneInfo("Europe/Berlin")
    start = datetime(2026, 10, 24, 15, tzinfo=berlin).timestamp()
    days = savings_history([], start, start + 2 * DAY, "day", berlin).periods
    lengths = [day.end_wall_seconds - day.start_wall_seconds for day in days]
    assert lengths == [24 * 3600.0, 25 * 3600.0, 24 * 3600.0]
    (week, *_) = savings_history([], start, start + DAY, "week", berlin).periods
    assert (
        datetime.fromtimestamp(week.start_wall_seconds, berlin).isoformat()[:13] == "2026-10-19T00"
    )
    months = savings_history([], start, start + 70 * DAY, "month", berlin).periods
    names = [f"{datetime.fromtimestamp(m.start_wall_seconds, berlin):%b}" for m in months]
    assert names == ["Oct", "Nov", "Dec", "Jan"]


def test_only_the_range_counts(jobs):
    """If this fails, the savings of a week contain those of a month."""

    def total(start, end):
        return savings_history(jobs, start, end, "day", UTC).total

    week, month = total(NOW - 7 * DAY, NOW), total(NOW - 40 * DAY, NOW + 1.0)
    assert 0 < week.recurrences < month.recurrences
    assert 0 < week.saved_error_joules < month.saved_error_joules
    assert total(NOW + DAY, NOW + 2 * DAY).joules == 0


def test_runs_under_way_are_found(reading, jobs):
    """If this fails, the overview does not show what draws power now."""
    (run,) = open_runs(reading, jobs)
    assert run.job.head.name == "resnet-nightly"
    assert (run.batch_size, run.limit_watts) == (64, 150.0)
    assert run.joules > 0
    assert open_runs(reading, []) == []
