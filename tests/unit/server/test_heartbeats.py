"""Heartbeats of runs under way: shown to people, within bounds, and rarely stored."""

import asyncio

import pytest

from joulery.client import ProgressReport
from joulery.jobs import LiveDevice, LiveState, Outcome
from joulery.jobs.policies import RunEnd
from joulery.server._config import LIMITS
from joulery.server._heartbeats import HeartbeatLog
from joulery.storage import Store
from support.caller import Caller
from support.server_process import OUTCOME

LIVE = {
    "seconds": 12.0,
    "phase": "holding 160 W",
    "steps_per_second": 3.5,
    "devices": [{"name": "A40 0", "watts": 151.0, "clock_hertz": 1.23e9, "limit_watts": 160.0}],
    "processes": 4,
}


@pytest.fixture
def caller(tmp_path):
    """A caller of an application on an empty store."""
    with Store.open(tmp_path / "store.sqlite") as store:
        yield Caller(store, LIMITS)


def beat(seconds, devices=0):
    """A heartbeat after so many seconds."""
    told = tuple(LiveDevice(f"gpu {number}", 100.0) for number in range(devices))
    live = LiveState(seconds, devices=told) if devices else None
    return ProgressReport(Outcome(RunEnd.ABANDONED, 1.0, seconds, 2.0 * seconds), live)


def test_heartbeats_are_remembered_within_bounds():
    """If this fails, long runs or many of them fill the memory, or lose their beginning."""
    log = HeartbeatLog()
    for seconds in range(1000):
        log.note("1.1", beat(float(seconds)), 0.0)
    kept = log.of("1.1")
    assert len(kept) <= 400
    assert (kept[0].seconds, kept[-1].seconds) == (0.0, 999.0)
    for number in range(2000):
        log.note(f"2.{number}", beat(1.0), 0.0)
    assert log.of("1.1") == ()
    assert len(log.of("2.1999")) == 1


def test_many_devices_count_as_many_figures():
    """If this fails, runs of whole machines fill the memory of a server."""
    log = HeartbeatLog()
    for seconds in range(300):
        for run in range(20):
            log.note(f"1.{run}", beat(float(seconds), 64), 0.0)
    kept = [log.of(f"1.{run}") for run in range(20)]
    assert sum(65 * len(beats) for beats in kept) <= 300_000
    assert len(kept[-1]) >= 100


def tell(caller, decision, seconds, live=LIVE):
    """The answer to a heartbeat."""
    progress = {"end": "abandoned", "epochs": 1, "seconds": seconds, "joules": 100.0 * seconds}
    body = {"progress": progress, "live": live}
    path = f"/v1/decisions/{decision['id']}/heartbeat"
    return asyncio.run(caller.ask("POST", path, body, decision["token"]))


def stored(caller):
    """Seconds of progress that the store has of the first decision."""
    with caller.context.store.reading() as transaction:
        progress = transaction.decisions(1)[0].progress
    return None if progress is None else progress["seconds"]


def test_live_heartbeats_are_shown_at_once_and_stored_every_minute(caller):
    """If this fails, people do not see what a run does, or watching it wears out the disk."""
    job = asyncio.run(caller.job())
    path = f"/v1/jobs/{job}/decisions"
    decision = asyncio.run(caller.ask("POST", path, {"key": "a"}))[2]
    seen = []
    for seconds in range(12, 73, 12):
        caller.clock.sleep(12.0)
        status, _, lease = tell(caller, decision, float(seconds), LIVE | {"seconds": seconds})
        assert (status, lease["held"]) == (200, True)
        assert lease["expires_wall_seconds"] - caller.clock.wall() > 540
        seen.append(stored(caller))
    assert seen == [12.0, 12.0, 12.0, 12.0, 12.0, 72.0]
    cookie = caller.browser()
    page = f"/jobs/{job}/runs/{decision['id'].partition('.')[2]}"
    text = asyncio.run(caller.ask("GET", page, b"", "none", headers=cookie))[2].decode()
    for words in ("A40 0", "151 W", "1230 MHz", "holding 160 W", "3.5 steps", "rank 0"):
        assert words in text, words
    outcome = {"key": "a", "outcome": OUTCOME}
    path = f"/v1/decisions/{decision['id']}/outcome"
    assert asyncio.run(caller.ask("PUT", path, outcome, decision["token"]))[0] == 200
    assert tell(caller, decision, 73.0)[2]["held"] is False


def test_heartbeats_without_live_figures_are_stored_always(caller):
    """If this fails, what a client told of its run is lost when the server restarts."""
    job = asyncio.run(caller.job())
    decision = asyncio.run(caller.ask("POST", f"/v1/jobs/{job}/decisions", {"key": "a"}))[2]
    for seconds in (1.0, 2.0, 3.0):
        caller.clock.sleep(1.0)
        assert tell(caller, decision, seconds, None)[0] == 200
        assert stored(caller) == seconds


@pytest.mark.parametrize(
    "wrong",
    [
        {"phase": 1},
        {"seconds": -1.0},
        {"devices": [LIVE["devices"][0]] * 65},
        {"devices": [{"watts": 1.0}]},
        {"phase": "x" * 201},
        {"temperature": 1.0},
    ],
)
def test_wrong_live_figures_are_refused(caller, wrong):
    """If this fails, a client can fill the memory of a server, or break its pages."""
    job = asyncio.run(caller.job())
    decision = asyncio.run(caller.ask("POST", f"/v1/jobs/{job}/decisions", {"key": "a"}))[2]
    assert tell(caller, decision, 0.0, LIVE | wrong)[0] == 422


def test_the_latest_heartbeat_is_that_of_the_jobs_asked_for():
    """If this fails, power on the overview stands still, or moves with another team's runs."""
    log = HeartbeatLog()
    log.note("1.1", beat(1.0), 100.0)
    log.note("12.3", beat(1.0), 200.0)
    assert log.latest_seconds([1]) == 100.0
    assert log.latest_seconds([1, 12]) == 200.0
    assert log.latest_seconds([2]) == 0.0
