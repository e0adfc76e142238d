"""Figures for Prometheus."""

import mmap

from joulery.server.metrics import NO_OPERATION, SHARED_BYTES, Metrics
from joulery.storage.listing import Totals


def test_requests_of_all_workers_are_told():
    """Whichever worker is asked would tell of itself only."""
    shared = mmap.mmap(-1, SHARED_BYTES)
    first, second = (Metrics(number, shared, ["decide", "report"]) for number in range(2))
    first.observe(0, 200, 0.002)
    second.observe(0, 200, 0.3)
    second.observe(1, 503, 0.3)
    text = first.text(Totals(jobs=3, events=40, open_decisions=5))
    assert 'joulery_requests_total{operation="decide",status="200"} 2\n' in text
    assert 'joulery_requests_total{operation="report",status="503"} 1\n' in text
    assert 'joulery_request_seconds_bucket{operation="decide",le="0.0025"} 1\n' in text
    assert 'joulery_request_seconds_bucket{operation="decide",le="+Inf"} 2\n' in text
    assert 'joulery_request_seconds_count{operation="decide"} 2\n' in text
    assert "joulery_open_decisions 5\n" in text


def test_unknown_addresses_and_statuses_are_counted_too():
    """Attacks would not show."""
    metrics = Metrics()
    metrics.observe(NO_OPERATION, 404, 0.1)
    metrics.observe(NO_OPERATION, 418, 0.1)
    text = metrics.text(None)
    assert 'operation="none",status="404"} 1\n' in text
    assert 'operation="none",status="other"} 1\n' in text
    assert "joulery_jobs" not in text


def test_a_worker_that_comes_back_goes_on_counting():
    """Counters would fall, which Prometheus takes for a restart of all."""
    shared = mmap.mmap(-1, SHARED_BYTES)
    before = Metrics(3, shared, ["decide"])
    before.observe(0, 200, 0.1)
    before.note_in_flight(7)
    text = Metrics(3, shared, ["decide"]).text(None)
    assert 'status="200"} 1\n' in text
    assert "joulery_requests_in_flight 0\n" in text


def test_every_family_says_what_it_is():
    """Prometheus would not know counters from gauges."""
    lines = Metrics().text(Totals(1, 2, 3)).splitlines()
    names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    typed = {line.split(" ")[2] for line in lines if line.startswith("# TYPE")}
    assert {name for name in names if not name.startswith("joulery_request_seconds_")} <= typed
