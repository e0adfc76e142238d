"""The demonstration's run under way: alive while a server runs, ended with it."""

import threading

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.demo import LiveRun
from joulery.jobs import JobService
from joulery.jobs.policies import RunEnd
from joulery.storage import Store

NOW = 1.8e9


@pytest.fixture
def path(tmp_path):
    """Path of an empty store."""
    return tmp_path / "team.sqlite"


def test_power_and_progress_go_on_while_it_runs(path):
    """If this fails, the dashboard of the demonstration looks dead."""
    clock = VirtualClock(wall_seconds=NOW)
    with Store.open(path) as store:
        run = LiveRun(store, begun_seconds=3600.0, clock=clock)
        run.start(str(path), "")
        clock.sleep(60.0)
        service = JobService(store, clock, team="vision")
        (early,), _ = service.runs()
        clock.sleep(600.0)
        (late,), _ = service.runs()
        assert (early.ended, early.origin) == (False, "simulated")
        assert late.seconds == pytest.approx(early.seconds + 600.0, abs=61.0)
        assert late.joules > early.joules
        curves = {curve.quantity for curve in service.run(late.id).curves}
        assert curves == {"watts", "limit_watts", "clock_hertz", "steps_per_second"}
        run.end(store)
        (last,), _ = service.runs()
        assert last.ended
        (entry,), _ = service.decisions(service.job("resnet-nightly").id)
        assert entry.outcome.end == RunEnd.ABANDONED


def test_another_run_begins_when_one_has_reached_its_target(path):
    """If this fails, a dashboard that stays open over night looks dead in the morning."""
    clock = VirtualClock(wall_seconds=NOW)
    with Store.open(path) as store:
        run = LiveRun(store, begun_seconds=8 * 3600.0, clock=clock)
        run.start(str(path), "")
        clock.sleep(60.0)
        entries, _ = JobService(store, clock, team="vision").decisions(1)
        ends = [entry.outcome.end for entry in entries if entry.outcome is not None]
        assert ends
        assert set(ends) == {RunEnd.REACHED}
        assert len(entries) == len(ends) + 1
        run.end(store)


def test_no_thread_is_left_and_no_server_needed(path):
    """If this fails, the demonstration hangs at its end, or an error covers its last lines."""
    with Store.open(path) as store:
        run = LiveRun(store, clock=REAL_CLOCK)
        run.start("http://127.0.0.1:1", "token")
        JobService(store, team="vision").delete(1)
        run.end(store)
        assert "joulery-demo" not in {thread.name for thread in threading.enumerate()}
