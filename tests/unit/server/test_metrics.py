"""Figures for Prometheus."""

from joulery.server._metrics import Metrics


def test_requests_are_counted_by_operation_and_status():
    """The load and the latency of the server would be unknown."""
    metrics = Metrics()
    metrics.observe("decide", 200, 0.002)
    metrics.observe("decide", 200, 0.3)
    metrics.observe("report", 503, 0.3)
    metrics.observe("none", 404, 0.1)
    text = metrics.text({"jobs": 3, "events": 40, "open_decisions": 5}).decode()
    assert 'joulery_requests_total{operation="decide",status="200"} 2.0\n' in text
    assert 'joulery_requests_total{operation="report",status="503"} 1.0\n' in text
    assert 'joulery_requests_total{operation="none",status="404"} 1.0\n' in text
    assert 'joulery_request_seconds_bucket{le="0.0025",operation="decide"} 1.0\n' in text
    assert 'joulery_request_seconds_bucket{le="+Inf",operation="decide"} 2.0\n' in text
    assert 'joulery_request_seconds_count{operation="decide"} 2.0\n' in text
    assert "joulery_open_decisions 5.0\n" in text


def test_two_servers_in_a_process_do_not_share_counters():
    """A test, or an application that embeds the server, would see another's requests."""
    Metrics().observe("decide", 200, 0.1)
    assert "decide" not in Metrics().text(None).decode()


def test_totals_are_unknown_without_a_store():
    """An outage would look like an empty store."""
    assert "joulery_jobs NaN\n" in Metrics().text(None).decode()


def test_every_family_says_what_it_is():
    """Prometheus would not know counters from gauges."""
    lines = Metrics().text({"jobs": 1, "events": 2, "open_decisions": 3}).decode().splitlines()
    names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    typed = {line.split(" ")[2] for line in lines if line.startswith("# TYPE")}
    assert {name for name in names if not name.startswith("joulery_request_seconds_")} <= typed
