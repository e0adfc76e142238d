"""Providers of grid signals and OpenADR, against a server on this machine."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from joulery.cli import main
from joulery.clock import VirtualClock
from joulery.cluster import MeterReading, open_feeder_meter
from joulery.errors import InvalidValueError, NotPossibleHereError
from joulery.grid import (
    Eia,
    ElectricityMaps,
    Entsoe,
    OpenAdr,
    WattTime,
    fetch_signal,
    provider_signal,
    static_intensity,
)
from joulery.grid._http import SignalError
from joulery.grid._openadr import grid_events, usage_report

HOUR = 3600.0
DAY = 1_700_006_400.0  # 2023-11-15 00:00 UTC


@contextmanager
def serving(answer):
    """A server that answers ``answer(method, path, query, headers, body)`` and its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            """Answer one request."""
            size = int(self.headers.get("Content-Length") or 0)
            parts = urlsplit(self.path)
            query = {k: v[0] for k, v in parse_qs(parts.query).items()}
            status, body = answer(
                self.command,
                parts.path,
                query,
                {k.title(): v for k, v in self.headers.items()},
                self.rfile.read(size),
            )
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815 - the base class looks for this name

        def log_message(self, *_):
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_electricity_maps_is_read():
    """The forecast of Electricity Maps is refused or shifted."""

    def answer(_method, path, query, headers, _body):
        assert (path, query, headers["Auth-Token"]) == (
            "/carbon-intensity/forecast",
            {"zone": "DE"},
            "secret",
        )
        rows = [
            {"datetime": f"2023-11-15T0{h}:00:00.000Z", "carbonIntensity": 100 + h}
            for h in range(3)
        ]
        return 200, {"zone": "DE", "forecast": rows}

    with serving(answer) as url:
        found = ElectricityMaps("DE", "secret", url).fetch(DAY, DAY + HOUR)
    assert (found.start, found.step_seconds, found.values) == (DAY, HOUR, (100, 101, 102))


def test_watttime_logs_in_and_converts_pounds():
    """Pounds per MWh are taken for grams per kWh."""

    def answer(_method, path, query, headers, _body):
        if path == "/login":
            assert headers["Authorization"].startswith("Basic ")
            return 200, {"token": "t"}
        assert headers["Authorization"] == "Bearer t"
        assert query["region"] == "CAISO_NORTH"
        rows = [
            {"point_time": f"2023-11-15T00:{m:02d}:00+00:00", "value": 1000.0} for m in (0, 5, 10)
        ]
        return 200, {"meta": {"units": "lbs_co2_per_mwh"}, "data": rows}

    with serving(answer) as url:
        found = WattTime("CAISO_NORTH", "user", "password", url).fetch(DAY, DAY + HOUR)
    assert found.step_seconds == 300
    assert found.values[0] == pytest.approx(453.6, abs=0.1)


def test_entsoe_repeats_left_out_positions():
    """Prices that ENTSO-E leaves out because they repeat shift the later ones."""
    points = "".join(
        f"<Point><position>{p}</position><price.amount>{v}</price.amount></Point>"
        for p, v in ((1, 50), (3, 80))
    )
    document = (
        '<?xml version="1.0"?><Publication_MarketDocument xmlns="urn:iec62325.351:7:3">'
        "<TimeSeries><Period>"
        "<timeInterval><start>2023-11-15T00:00Z</start><end>2023-11-15T04:00Z</end></timeInterval>"
        f"<resolution>PT60M</resolution>{points}</Period></TimeSeries></Publication_MarketDocument>"
    )

    def answer(_method, _path, query, _headers, _body):
        assert query["documentType"] == "A44"
        assert query["periodStart"] == "202311150000"
        return 200, document.encode()

    with serving(answer) as url:
        found = Entsoe("10Y1001A1001A82H", "token", url).fetch(DAY, DAY + 4 * HOUR)
    assert found.values == pytest.approx((0.05, 0.05, 0.08, 0.08))


def test_eia_adds_up_the_fuels():
    """The intensity of a mix is not the mean of its fuels by energy."""
    rows = [
        {"period": "2023-11-15T00", "fueltype": "NG", "value": "500"},
        {"period": "2023-11-15T00", "fueltype": "SUN", "value": "500"},
        {"period": "2023-11-15T01", "fueltype": "SUN", "value": "100"},
    ]
    with serving(lambda *_: (200, {"response": {"data": rows}})) as url:
        found = Eia("CISO", "key", url).fetch(DAY, DAY + HOUR)
    assert found.values == (215.0, 0.0)


def test_a_failing_provider_falls_back_to_the_cache_and_then_to_the_table(tmp_path):
    """A provider that is down leaves the cluster without a signal, or is asked at every tick."""
    calls, state = [], {"status": 200}
    rows = [{"datetime": f"2023-11-15T0{h}:00:00Z", "carbonIntensity": 100} for h in range(9)]

    def answer(*_):
        calls.append(1)
        return state["status"], {"forecast": rows}

    clock = VirtualClock(wall_seconds=DAY)
    with serving(answer) as url:
        provider = ElectricityMaps("DE", "secret", url)

        def fetch(time, fallback=None):
            window = (time, time + HOUR)
            return fetch_signal(
                provider, window, cache=tmp_path / "c", fallback=fallback, clock=clock
            )

        assert fetch(DAY).values[0] == 100
        assert fetch(DAY).values[0] == 100
        assert len(calls) == 1
        clock.sleep(1000)
        state["status"] = 503
        assert fetch(DAY).values[0] == 100
        assert len(calls) == 2
        late = DAY + 20 * HOUR
        assert fetch(late, static_intensity("DE")).values == static_intensity("DE").values
        with pytest.raises(SignalError, match="503"):
            fetch(late)
        state["status"] = 200
        rows[0]["datetime"] = "nonsense"
        with pytest.raises(SignalError, match="documents"):
            fetch(late)


def test_no_server_is_a_clear_error(tmp_path):
    """A dead address gives a traceback."""
    with pytest.raises(SignalError, match="does not answer"):
        ElectricityMaps("DE", "t", "http://127.0.0.1:9").fetch(0, 1)
    with pytest.raises(SignalError, match="not an address"):
        ElectricityMaps("DE", "t", "file:///etc").fetch(0, 1)


EVENT = {
    "id": "e1",
    "objectType": "EVENT",
    "createdDateTime": "2023-11-14T23:00:00Z",
    "programID": "p1",
    "eventName": "peak",
    "payloadDescriptors": [
        {
            "objectType": "EVENT_PAYLOAD_DESCRIPTOR",
            "payloadType": "IMPORT_CAPACITY_LIMIT",
            "units": "KW",
        }
    ],
    "intervalPeriod": {"start": "2023-11-15T16:00:00Z", "duration": "PT1H"},
    "intervals": [
        {"id": 0, "payloads": [{"type": "IMPORT_CAPACITY_LIMIT", "values": [70]}]},
        {"id": 1, "payloads": [{"type": "SIMPLE", "values": [2]}]},
        {"id": 2, "payloads": [{"type": "PRICE", "values": [0.2]}]},
    ],
}


def test_open_adr_reads_events_and_reports():
    """An OpenADR 3 server cannot be used end to end."""
    posted = {}

    def answer(method, path, _query, headers, body):
        if path == "/auth/token":
            return 200, {"access_token": "t", "token_type": "Bearer"}
        assert headers["Authorization"] == "Bearer t"
        if method == "POST":
            posted[path] = json.loads(body)
            return 201, {**posted[path], "id": "new"}
        return 200, {"/events": [EVENT]}[path]

    with serving(answer) as url:
        client = OpenAdr(url, "id", "secret")
        first, second = client.events()
        client.report(EVENT, [(DAY, 70_000.0), (DAY + 60, 69_000.0)])
    assert (first.target_watts, first.start, first.end) == (
        70_000,
        DAY + 16 * HOUR,
        DAY + 17 * HOUR,
    )
    assert (second.reduction, second.start) == (0.25, DAY + 17 * HOUR)
    assert first.announced == DAY - HOUR
    assert set(posted) == {"/reports"}


def test_events_of_a_server_reach_the_agent(tmp_path, capsys):
    """An announced OpenADR event is not passed on, or a past one is."""
    start = datetime.now(UTC) + timedelta(hours=1)
    coming = EVENT | {
        "id": "/../soon",
        "intervalPeriod": {"start": start.isoformat(), "duration": "PT1H"},
    }
    events = [EVENT, coming, {"id": "broken", "intervals": [{}]}]
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "events").mkdir()

    asked = []

    def answer(_method, path, *_):
        asked.append(path)
        if path == "/auth/token":
            return 200, {"access_token": "t"}
        # The first token has expired.
        return (401, {}) if asked.count("/auth/token") == 1 else (200, events)

    with serving(answer) as url:
        words = ["--state", str(tmp_path), "--openadr", url, "--client", "id", "--times", "2"]
        listen = ["cluster", "listen", *words, "--every", "0", "--secret", str(secret)]
        assert main(listen) == 0
        said = capsys.readouterr().err
        assert "401" in said
        assert "broken" in said
    names = sorted(path.name for path in (tmp_path / "events").iterdir())
    assert names == ["-..-soon#0.json", "-..-soon#1.json"]


def test_messages_are_those_of_another_open_adr_client():
    """Our reports and reading of events differ from the openadr3 package's."""
    models = pytest.importorskip("openadr3.entities.models")
    theirs = models.Event.from_raw(EVENT)
    ours = grid_events(EVENT)
    assert theirs.interval_period.start.timestamp() == ours[0].start
    assert theirs.interval_period.period[1].timestamp() == ours[0].end
    report = models.Report.from_raw(usage_report(EVENT, [(DAY, 70_000.0)], "joulery") | {"id": "r"})
    interval = report.resources[0].intervals[0]
    assert interval.payloads[0].type == "DEMAND"
    assert float(interval.payloads[0].values[0]) == 70.0
    assert interval.interval_period.start.timestamp() == DAY


def test_a_broken_event_is_a_clear_error():
    """A malformed event gives a traceback or is obeyed in part."""
    broken = EVENT | {"intervals": [{"id": 0, "payloads": [{"type": "SIMPLE"}]}]}
    with pytest.raises(SignalError, match="e1"):
        grid_events(broken)


def production(kind, megawatts, out=""):
    """A series of ENTSO-E's production by type, of two hours."""
    points = "".join(
        f"<Point><position>{n}</position><quantity>{w}</quantity></Point>"
        for n, w in enumerate(megawatts, 1)
    )
    return (
        f"<TimeSeries>{out}<MktPSRType><psrType>{kind}</psrType></MktPSRType><Period>"
        "<timeInterval><start>2023-11-15T00:00Z</start><end>2023-11-15T02:00Z</end></timeInterval>"
        f"<resolution>PT60M</resolution>{points}</Period></TimeSeries>"
    )


def test_providers_are_reached_by_name(tmp_path, monkeypatch):
    """`--grid electricitymaps:DE` and its like do not work, or say nothing about a missing key."""
    pumps = "<outBiddingZone_Domain.mRID>x</outBiddingZone_Domain.mRID>"
    series = [production("B04", [300, 100]), production("B16", [100, 300])]
    series.append(production("B10", [500, 500], pumps))
    mix = f'<GL_MarketDocument xmlns="urn:x">{"".join(series)}</GL_MarketDocument>'.encode()
    forecast = [{"datetime": f"2023-11-15T0{h}:00:00Z", "carbonIntensity": 200} for h in range(9)]

    def answer(_method, path, query, _headers, _body):
        if "forecast" in path:
            return 200, {"forecast": forecast}
        assert (query["documentType"], query["in_Domain"]) == ("A75", "10YFR-RTE------C")
        return 200, mix

    clock = VirtualClock(wall_seconds=DAY + 2.5 * HOUR)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with serving(answer) as url:
        keys = {"ELECTRICITYMAPS_TOKEN": "secret", "ENTSOE_TOKEN": "t"}
        environ = keys | {"ELECTRICITYMAPS_URL": url, "ENTSOE_URL": url}
        carbon = provider_signal("electricitymaps:FR", environ, clock)
        produced = provider_signal("entsoe:FR", environ, clock)
    assert carbon.at(clock.wall()) == 200
    assert produced.values[:2] == (300.0, 100.0)
    assert produced.at(clock.wall()) == 100, "the last hour counts until there is another"
    again = provider_signal("electricitymaps:FR", environ, clock)
    assert again.values == carbon.values, "a fresh answer is not asked for again"
    assert provider_signal("forecast.csv", environ, clock) is None
    for source, said in (("watttime:CAISO", "needs a key"), ("mars:X", "no provider 'mars:X'")):
        with pytest.raises(InvalidValueError, match=said):
            provider_signal(source, environ, clock)


def event(number, **more):
    """An event as a server of OpenADR 3 has it."""
    payloads = [{"type": "IMPORT_CAPACITY_LIMIT", "values": [5.0]}]
    period = {"start": "2030-01-01T00:00:00Z", "duration": "PT1H"}
    return {"id": str(number), "programID": "p", "intervalPeriod": period} | {
        "intervals": [{"id": 0, "payloads": payloads}],
        **more,
    }


def test_openadr_reads_all_pages_and_only_events_that_are_meant():
    """An event on the second page is withdrawn while it runs, or another site's is followed."""
    endless = {"start": "2030-01-01T00:00:00Z", "duration": "P9999Y"}
    rows = [event(n) for n in range(120)]
    rows[7]["targets"] = [{"type": "VEN_NAME", "values": ["elsewhere"]}]
    rows[8]["targets"] = [{"type": "GROUP", "values": ["west", "row-3"]}]
    rows[9]["targets"] = ["joulery"]
    rows[60]["intervalPeriod"] = endless
    calls = []

    def answer(_method, path, query, _headers, _body):
        if path == "/auth/token":
            return 200, {"access_token": "t"}
        calls.append(query)
        skip, limit = int(query["skip"]), min(20, int(query["limit"]))  # fewer than asked for
        return 200, rows[skip : skip + limit] if query.get("programID") == "p" else rows

    with serving(answer) as url:
        client = OpenAdr(url, "id", "secret", targets=("row-3",))
        events = {e.id: e for e in client.events("p")}
        everything = client.events()
    assert len(events) == 119
    assert "7#0" not in events
    assert {"8#0", "9#0", "60#0", "119#0"} < events.keys()
    assert events["60#0"].end - events["60#0"].start > 50 * 365 * 86400
    assert len(everything) == 119, "a server that knows no pages"
    assert not client.malformed


def test_a_feeder_is_read_through_prometheus():
    """The power of a hall is not read, or half of an answer is taken for all of it."""
    results = [{"metric": {}, "value": [1000.0, "1500"]}, {"metric": {}, "value": [998.0, "700.5"]}]
    answers = {"sum": [1000.0, "42"], "racks": results, "nothing": [], "broken": [{"value": [1]}]}
    answers["none"] = [{"value": [1.0, "NaN"]}]

    def answer(_method, path, query, _headers, _body):
        assert path == "/api/v1/query"
        return 200, {"status": "success", "data": {"result": answers[query["query"]]}}

    with serving(answer) as url:
        meters = {n: open_feeder_meter(f"prometheus+{url}/?query={n}") for n in answers}
        assert meters["sum"].read() == MeterReading(42.0, 1000.0)
        assert meters["racks"].read() == MeterReading(2200.5, 998.0)
        for name in ("nothing", "broken", "none"):
            with pytest.raises(NotPossibleHereError):
                meters[name].read()
    with pytest.raises(NotPossibleHereError, match="does not answer"):
        meters["sum"].read()
    for text in ("prometheus+http://x/", "watts", "snmp:x"):
        with pytest.raises(InvalidValueError, match="meter"):
            open_feeder_meter(text)
