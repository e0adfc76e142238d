"""Journey: power over time by what the grid says, events that come and go, swings of power."""

import json
import math
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from joulery.cli import main
from joulery.grid import read_signal
from joulery.hardware import catalog, settle

HOURS = 6


def printed(capsys, *words, code=0):
    """Document of a command that ends with this code."""
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_shaped_budget_does_the_work_with_less_carbon(tmp_path, draw, capsys):
    """The work is late, the plan is dearer than none, or hosts get no watts of the agent."""
    board = catalog.board(draw.choice(("A100", "V100", "A40")))
    work, gpus = catalog.workload(draw.choice(("resnet50", "bert")), board), draw.randrange(2, 9)
    limits = [board.min_limit_watts, 0.7 * board.default_limit_watts, board.default_limit_watts]
    points = [[watts, 1 / settle(board, work, watts).seconds] for watts in limits]
    (tmp_path / "jobs.json").write_text(
        json.dumps({"jobs": [{"id": "job", "gpus": gpus, "points": points}]})
    )
    grams, start = [draw.uniform(50, 600) for _ in range(HOURS)], datetime(2026, 5, 3, tzinfo=UTC)
    rows = [f"{start + timedelta(hours=n):%Y-%m-%dT%H:%MZ},{grams[n]}" for n in range(HOURS)]
    (tmp_path / "grid.csv").write_text("\n".join(["utc,grams", *rows, ""]))
    asked, overhead = draw.uniform(2.0, 4.5), draw.uniform(100.0, 3000.0)
    document = printed(
        capsys,
        *("cluster", "shape", "--jobs", tmp_path / "jobs.json", "--signal", tmp_path / "grid.csv"),
        *("--start", f"{start:%Y-%m-%dT%H:%MZ}", "--deadline", "6h", "--work", f"{asked}h"),
        *("--out", tmp_path / "budget.csv", "--overhead", f"{overhead}W"),
    )
    budget = read_signal(tmp_path / "budget.csv")
    done = sum(step["performance"] * step["seconds"] for step in document["steps"])
    assert done == pytest.approx(3600 * asked, rel=1e-6)
    assert start.timestamp() <= budget.start
    assert document["end"] <= start.timestamp() + 3600 * HOURS + 1e-6
    # What the agent's jobs may draw in each hour, without hosts, at the grams of that hour.
    watts = [
        (step["watts"], step["seconds"], grams[int((step["start"] - start.timestamp()) // 3600)])
        for step in document["steps"]
    ]
    assert document["amount"] == pytest.approx(sum(math.prod(row) for row in watts) / 3.6e6)
    full = gpus * board.default_limit_watts
    hours = [min(1.0, max(0.0, asked - n)) for n in range(HOURS)]
    at_once = sum(full * share * g for share, g in zip(hours, grams, strict=True)) / 1000
    assert document["amount"] <= document["amount_at_once"] * (1 + 1e-9)
    assert document["amount_at_once"] == pytest.approx(at_once, rel=1e-6)
    shaped = [step["watts"] + overhead for step in document["steps"]]
    assert set(map(round, shaped)) == set(map(round, budget.values))
    assert overhead <= min(budget.values) <= max(budget.values) <= overhead + full + 0.01


@contextmanager
def open_adr(events):
    """Address of a server of OpenADR 3 that lists these events at one call after the other."""
    calls = iter(events)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            """Answer with a token, or with the events of this call."""
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            answer = [] if "skip=0" not in self.path else next(calls)  # all on the first page
            token = self.path.startswith("/auth/token")
            body = json.dumps({"access_token": "t"} if token else answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the base class looks for this name

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_events_of_a_utility_are_announced_and_cancelled(tmp_path, draw, capsys):
    """Whoever watches sees an event come, but not that it was cancelled or changed."""
    start, watts = datetime.now(UTC) + timedelta(hours=1), draw.randrange(20, 90)

    def event(name, kilowatts):
        payloads = [{"type": "IMPORT_CAPACITY_LIMIT", "values": [kilowatts]}]
        return {
            "id": name,
            "programID": "p",
            "intervalPeriod": {"start": start.isoformat(), "duration": "PT1H"},
            "intervals": [{"id": 0, "payloads": payloads}],
        }

    changed = [event("peak", watts), event("other", watts)], [event("peak", watts + 5)], []
    state = tmp_path / "state"
    (state / "events").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    with open_adr(changed) as url:
        words = ["--state", state, "--openadr", url, "--client", "id", "--every", "0"]
        words += ["--secret", tmp_path / "secret", "--times", len(changed)]
        assert main(["cluster", "listen", *map(str, words)]) == 0
    said = [line.split(" from ")[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(said[:2]) == [
        f"event {name}#0: at most {watts:.1f} kW" for name in ("other", "peak")
    ]
    assert sorted(said[2:4]) == [
        "event other#0 is cancelled",
        f"event peak#0: at most {watts + 5:.1f} kW",
    ]
    assert said[4:] == ["event peak#0 is cancelled"]
    assert not list((state / "events").glob("*.json"))


def test_swings_of_jobs_in_step_are_found_and_remedied(tmp_path, draw, capsys):
    """Jobs in step swing the grid unnoticed, or a remedy does not do what it promises."""
    hertz = draw.choice((0.2, 0.5, 1.0))
    high, low = draw.uniform(1500, 3000), draw.uniform(200, 900)
    times = [n / 20 for n in range(1200)]
    power = [high if (hertz * t) % 1.0 < 0.5 else low for t in times]
    trace, limits = tmp_path / "power.csv", tmp_path / "limits.toml"
    rows = [f"{t},{w},{w / 1e3}" for t, w in zip(times, power, strict=True)]
    trace.write_text("\n".join(["seconds,a,b_kw", *rows]))
    limits.write_text(f"range_watts = {0.5 * (high - low)}\nband_watts = {0.4 * (high - low)}\n")
    document = printed(capsys, "cluster", "swings", trace, "--limits", limits, code=1)
    whole, swing = document["swings"]["all"], high - low
    assert whole["range_watts"] == pytest.approx(2 * swing)
    assert whole["mean_watts"] == pytest.approx(high + low, rel=0.01)
    assert whole["hertz"] == pytest.approx(hertz, rel=0.05)
    assert whole["band_watts"] == pytest.approx(swing, rel=0.1), "half of the range of a square"
    assert document["swings"]["a"]["range_watts"] == pytest.approx(swing)
    remedies = {remedy["name"]: remedy for remedy in document["remedies"]}
    floor = remedies["floor"]
    added = 0.5 * (floor["watts"] - 2 * low) / (high + low)
    assert floor["energy_share"] == pytest.approx(added, rel=0.02)
    assert floor["range_watts"] <= 0.5 * swing * (1 + 1e-6)
    assert remedies["stagger"]["range_watts"] == pytest.approx(0.0, abs=0.01 * swing)
    assert main(["cluster", "swings", str(trace), "--limits", str(limits)]) == 1
    assert "stagger" in capsys.readouterr().out
    assert printed(capsys, "cluster", "swings", trace)["is_within"], "without limits"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "fewer than two rows"),
        ("name,color\na,red\nb,blue\n", "has the columns name, color"),
        ("seconds,a\n0,5\n", "fewer than two rows"),
        ("seconds,a\n0,red\n1,blue\n", "line 2: 'red' is not a number"),
        ("seconds,a\n" + "".join(f"{n},5\n" for n in range(60)), "a value every 1 s"),
        ("seconds,a\n" + "".join(f"{n / 10},-5\n" for n in range(60)), "below zero"),
    ],
)
def test_what_is_no_recording_is_refused_in_words(tmp_path, capsys, text, says):
    """A file without numbers is said to have one every inf s."""
    (tmp_path / "power.csv").write_text(text)
    assert main(["cluster", "swings", str(tmp_path / "power.csv")]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "inf" not in said
    assert "→" in said
