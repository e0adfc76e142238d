"""``joulery cluster``: one decision, a replay, and what is wrong with bad input."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from joulery.cli import cluster_site, main
from joulery.client import open_backend
from joulery.clock import REAL_CLOCK
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.grid import read_signal
from joulery.jobs import Definition, Job, ProfileEntry
from joulery.objectives import Cost, LeastEnergy
from support.dashboard_store import AGENT_STATUS

JOBS = {
    "jobs": [
        {"id": "compute", "gpus": 2, "points": [[100, 25], [200, 60], [300, 85], [400, 100]]},
        {"id": "memory", "gpus": 2, "points": [[100, 60], [160, 99], [250, 100]], "tier": "flex-1"},
    ]
}


@pytest.fixture
def jobs(tmp_path):
    """A file of two jobs."""
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps(JOBS))
    return file


def output(capsys, *words):
    """The JSON document that a command prints."""
    assert main(["cluster", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_allocate_prints_the_documented_document(capsys, jobs):
    """Tools that read the machine output break."""
    found = output(capsys, "allocate", "--jobs", jobs, "--budget", 800, "--policy", "max-min")
    assert {
        "policy",
        "budget_watts",
        "used_watts",
        "weighted_performance",
        "worst_performance",
    } < set(found)
    assert [set(job) for job in found["jobs"]] == [{"id", "watts", "performance"}] * 2
    assert found["used_watts"] == pytest.approx(800)
    assert found["gpu_hours_of_delay_per_megawatt_hour"] > 0
    assert main(["cluster", "allocate", "--jobs", str(jobs), "--budget", "800"]) == 0
    assert "weighted performance" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "100"), "need at least"),
        ((), "no budget"),
        (("--budget", "nan"), "not a number"),
        (("--budget", "800", "--policy", "best"), "is not a policy"),
    ],
)
def test_a_bad_budget_is_explained(capsys, jobs, words, said):
    """A user sees a traceback, or a budget that cannot be is accepted."""
    assert main(["cluster", "allocate", "--jobs", str(jobs), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_job_without_a_frontier_is_named(capsys, tmp_path):
    """A job without a frontier is left out in silence."""
    file = tmp_path / "jobs.json"
    file.write_text('{"jobs": [{"id": "mystery"}]}')
    assert main(["cluster", "allocate", "--jobs", str(file), "--budget", "800"]) == 2
    assert "mystery" in capsys.readouterr().err


def test_simulate_reports_skipped_rows(capsys, jobs, tmp_path):
    """A trace is replayed without saying which rows were left out."""
    trace = tmp_path / "trace.csv"
    trace.write_text("submit_seconds,duration_seconds,gpus\n0,100,2\n5,x,1\n10,50,1\n")
    words = ("simulate", "--trace", trace, "--jobs", jobs, "--gpus", 4)
    found = output(capsys, *words, "--budget", "0:900W,50s:500", "--grid", "SE")
    assert found["ended"] == 2
    assert sum(found["skipped_rows"].values()) == 1
    assert found["violation_seconds"] == 0
    assert found["carbon_kilograms"] > 0
    page = tmp_path / "page.html"
    assert main(["cluster", *map(str, words), "--budget", "900", "--html", str(page)]) == 0
    assert "Jain index" in capsys.readouterr().out
    assert "Power over time" in page.read_text()
    assert "duration_seconds is not a number" in page.read_text()
    events = tmp_path / "events.json"
    events.write_text('[{"id": "a", "start": 20, "end": 60, "reduction": 0.3}]')
    assert output(capsys, *words, "--budget", 900, "--events", events)["peak_watts"] <= 900
    assert main(["cluster", *map(str, words), "--events", str(events)]) == 2
    price = tmp_path / "price.csv"
    price.write_text("timestamp,price\n2026-05-03 10:00,0.1\n2026-05-03 11:00,0.2\n")
    assert main(["cluster", *map(str, words), "--price", str(price)]) == 2
    assert "zone" in capsys.readouterr().err
    assert output(capsys, *words, "--price", price, "--zone", "Europe/Berlin")["cost"] > 0
    trace.with_name("empty.csv").touch()
    for flaw in (
        ("--budget", "x"),
        ("--budget", "50"),
        ("--gpus", "many"),
        ("--gpus", "a=1,b"),
        ("--gpus", "a=1,a=2"),
        ("--budget", "0:900,0:800"),
        ("--overhead", "nan"),
        ("--zone", "Mars"),
        ("--trace", f"{tmp_path}/empty.csv"),
    ):
        assert main(["cluster", *map(str, words), *flaw]) == 2, flaw


def test_replay_follows_a_recorded_power(capsys, jobs, tmp_path):
    """A recorded event cannot be replayed."""
    power = tmp_path / "power.csv"
    power.write_text(
        "utc,total\n2025-05-03T16:00Z,1000\n2025-05-03T16:01Z,800\n2025-05-03T16:02Z,800\n"
    )
    found = output(capsys, "replay", "--jobs", jobs, "--power", power)
    assert found["steps"] == 3
    assert found["used_watts"] <= found["budget_watts"] + 1e-6
    assert 0.5 < found["worst_performance"] < 1


def test_a_plan_takes_pauses_corrections_and_yearly_means(capsys, jobs, tmp_path):
    """A cluster's plan costs more with pauses, or ignores what the grid turned out to be."""
    hours = [300, 100, 90, 310, 320, 330]
    rows = [f"2026-05-03T{10 + n}:00Z,{value}" for n, value in enumerate(hours)]
    signal, budget = tmp_path / "grid.csv", tmp_path / "budget.csv"
    signal.write_text("\n".join(["utc,grams", *rows, ""]))
    words = ("--jobs", jobs, "--signal", signal, "--start", "2026-05-03T10:20Z", "--deadline", "5h")
    found = output(capsys, "shape", *words, "--work", "3h")
    paused = output(capsys, "shape", *words, "--work", "3h", "--pause")
    assert paused["amount"] <= found["amount"] + 1e-9
    corrected = output(capsys, "shape", *words, "--work", "3h", "--pause", "--now", "600")
    assert corrected["steps"][1]["watts"] <= paused["steps"][1]["watts"], "carbon falls later"
    followed = output(capsys, "shape", *words, "--work", "3h", "--pause", "--actual", signal)
    assert followed["amount"] == pytest.approx(paused["amount"]), "of a perfect forecast"
    for work in ("7h", "0"):
        assert main(["cluster", "shape", *map(str, words), "--work", work]) == 2
    yearly = ("--jobs", jobs, "--signal", "DE", "--start", "2026-05-03T10:20Z", "--deadline", "5h")
    found = output(capsys, "shape", *yearly, "--work", "3h", "--out", budget)
    written = read_signal(budget)
    assert written.start <= found["steps"][0]["start"] < written.start + 3600
    assert set(written.values) == {round(found["steps"][0]["watts"], 3)}
    assert written.end >= found["end"]


def test_status_and_event_without_an_agent_are_explained(capsys, tmp_path):
    """A user sees a traceback where no agent runs."""
    assert main(["cluster", "status", "--state", str(tmp_path)]) == 2
    words = ["cluster", "event", "--state", str(tmp_path), "--id", "a", "--reduce", "0.2"]
    assert main([*words, "--duration", "5min"]) == 2
    assert "cluster agent" in capsys.readouterr().err
    (tmp_path / "events").mkdir()
    assert main([*words, "--duration", "5min", "--start", "2020-01-01T00:00Z"]) == 2
    assert "ago" in capsys.readouterr().err
    assert main([*words, "--duration", "5min", "--start", "2020-01-01T00:00"]) == 2
    assert "time zone" in capsys.readouterr().err
    target = [*words[:-2], "--budget", "3kW", "--baseline", "4kW"]
    assert main([*target, "--duration", "5min"]) == 2, "a baseline is not ignored"
    assert main([*words, "--duration", "5min"]) == 0
    assert json.loads((tmp_path / "events" / "a.json").read_text())["reduction"] == 0.2


def test_listening_to_a_server_that_does_not_answer_fails(capsys, tmp_path):
    """If this fails, a script takes a wrong address for one without events."""
    secret = tmp_path / "secret"
    secret.write_text("word")
    words = ["--state", tmp_path, "--openadr", "http://127.0.0.1:1", "--client", "me"]
    words += ["--secret", secret, "--every", "0", "--times", "2"]
    assert main(["cluster", "listen", *map(str, words)]) == 3
    assert capsys.readouterr().err.count("does not answer") == 2


def test_the_agent_finds_frontiers_in_a_store(tmp_path):
    """Profiles of recurring jobs are not used, or an unknown job ends the agent."""
    path = tmp_path / "store.sqlite"
    backend = open_backend(path, "default")
    spec = Job("nightly", (64,), 64, Cost(0.5, 300.0), LeastEnergy(0.05), 40, (150.0, 200.0))
    job = backend.define(Definition(spec, "V100")).id
    points = [OperatingPoint(10.0 + n, 6000.0 - 900.0 * n, Setting(devices=2)) for n in range(3)]
    with ExitStack() as stack:
        find = cluster_site._profiles(str(path), stack)
        assert find("nightly") is None
        backend.put_profile(job, ProfileEntry(64, "V100", Frontier.from_points(points)))
        with ThreadPoolExecutor(1) as pool:  # as the agent does
            found = pool.submit(find, "nightly").result()
        assert found.most_watts == pytest.approx(300)  # of one of two GPUs
        assert find("unheard-of") is None
    backend.close()


def test_the_status_of_a_dead_agent_is_a_failure(capsys, tmp_path):
    """A monitor that looks at exit codes takes a dead agent for a living one."""
    for age, code in ((1.0, 0), (31.0, 1)):
        status = AGENT_STATUS | {"at": REAL_CLOCK.wall() - age}
        (tmp_path / "status.json").write_text(json.dumps(status))
        assert main(["cluster", "status", "--state", str(tmp_path), "--json"]) == code
        assert json.loads(capsys.readouterr().out)["is_dead"] is bool(code)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"jobs": [{"id": "a", "gpus": 1.5, "points": [[100, 1]]}]}', "1.5 GPUs"),
        ('{"jobs": [{"id": "a", "gpus": true, "points": [[100, 1]]}]}', "True GPUs"),
        ('{"jobs": [{"id": "a", "wieght": 2, "points": [[100, 1]]}]}', "'wieght'"),
        ('{"jobs": [{"id": "a", "frontier": {}, "points": [[100, 1]]}]}', "points and frontier"),
        ('{"jobs": [{"id": "a", "frontier": "missing.json"}]}', "missing.json"),
    ],
)
def test_bad_jobs_are_refused_with_a_remedy(capsys, tmp_path, text, said):
    """A misspelt member or half a GPU is taken for something else, or ends in a traceback."""
    file = tmp_path / "jobs.json"
    file.write_text(text)
    assert main(["cluster", "allocate", "--jobs", str(file), "--budget", "800"]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "→" in errors


def test_a_budget_that_contradicts_the_tree_is_refused(capsys, jobs, tmp_path):
    """One of two budgets wins in silence."""
    tree = tmp_path / "tree.json"
    words = ["cluster", "allocate", "--jobs", str(jobs), "--tree", str(tree), "--budget", "800"]
    tree.write_text('{"name": "hall", "watts": 700}')
    assert main(words) == 2
    assert "contradicts" in capsys.readouterr().err
    tree.write_text('{"name": "hall", "wats": 700}')
    assert main(words) == 2
    assert "'wats'" in capsys.readouterr().err
    tree.write_text('{"name": "hall"}')
    assert main(words) == 0


def test_a_frontier_of_a_whole_job_may_stand_in_a_file(capsys, tmp_path):
    """A plan or prediction on eight GPUs counts as one of eight times the power."""
    points = [OperatingPoint(10.0 + n, 24000.0 - 3000.0 * n, Setting(devices=8)) for n in range(3)]
    plan = {"planned_seconds": 1.0, "frontier": Frontier.from_points(points).to_dict()}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    file = tmp_path / "jobs.json"
    file.write_text('{"jobs": [{"id": "a", "frontier": "plan.json"}]}')
    shares = output(capsys, "allocate", "--jobs", file, "--budget", 2400)
    assert shares["jobs"][0]["watts"] == pytest.approx(2400)
    assert shares["jobs"][0]["performance"] == 1
    rows = [{"seconds": point.seconds, "joules": point.joules} for point in points]
    (tmp_path / "plan.json").write_text(json.dumps({"devices": 8, "frontier": rows}))
    assert output(capsys, "allocate", "--jobs", file, "--budget", 2400)["jobs"] == shares["jobs"]


SWINGS = "range_watts = 500\nramp_watts_per_second = 900\nband_watts = 150\n"


def test_swings_of_slow_or_broken_recordings_say_what_they_cannot_show(capsys, tmp_path):
    """A recording with holes, or too slow for the band, passes for a whole one."""
    limits, trace = tmp_path / "limits.toml", tmp_path / "power.csv"
    limits.write_text(SWINGS)
    times = np.arange(0, 60, 0.1)
    words = ["cluster", "swings", str(trace), "--limits", str(limits)]
    sine = 6000 + 600 * np.sin(2 * np.pi * times)
    trace.write_text(
        "\n".join(
            ["seconds,a_kw", *(f"{t:.1f},{w / 1e3}" for t, w in zip(times, sine, strict=True))]
        )
    )
    assert main([*words, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["swings"]["all"]["ramp_watts_per_second"] == pytest.approx(1200, rel=0.1)
    assert all(not remedy["flaws"] for remedy in document["remedies"]), "also for the band"
    assert "nothing is known above 5 Hz" in document["messages"][0]
    holes = [f"{t:.1f},{'nan' if 3 < t < 40 else 1000}" for t in times]
    trace.write_text("\n".join(["seconds,a", *holes]))
    assert main(words) == 0
    assert "of the recording is missing" in capsys.readouterr().out
    limits.write_text("rang_watts = 5\n")
    assert main(words) == 2


def test_a_trial_of_the_agent_that_reaches_nobody_fails(tmp_path, monkeypatch, capsys):
    """An administrator starts the agent's unit after a trial that saw neither Slurm nor a node."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "agent.token").write_text("secret")
    settings = tmp_path / "agent.toml"
    settings.write_text(
        'budget_watts = 1000\ntick_seconds = 0.1\nstate = "state"\ntoken_file = "agent.token"\n'
        'node_watts = 400\n[nodes]\n"n1" = "127.0.0.1:9"\n'
    )
    words = ["cluster", "agent", "--settings", str(settings), "--shadow", "--ticks", "2"]
    assert main(words) == 3
    err = capsys.readouterr().err
    assert "made blindly: squeue: No such file or directory" in err
    assert "no node answered" in err
