"""``joulery report``: logs, frontiers and clouds, in text and JSON."""

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from joulery.cli import main
from joulery.client import open_backend
from joulery.clock import VirtualClock
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.jobs import Definition, EnergyEntry, Job, Outcome, Request, RunDevice, RunEntry
from joulery.jobs.policies import RunEnd
from joulery.objectives import Cost
from joulery.prediction import embodied_grams

CLOUD = [
    {"seconds": 100, "joules": 30e3, "setting": {"power_limit_watts": 300}, "origin": "measured"},
    {"seconds": 104, "joules": 24e3, "setting": {"power_limit_watts": 250}, "origin": "measured"},
    {"seconds": 120, "joules": 20e3, "setting": {"power_limit_watts": 200}, "origin": "measured"},
    {"seconds": 125, "joules": 25e3, "setting": {"power_limit_watts": 150}, "origin": "measured"},
]


def _session(name, seconds, joules, *, final=True, origin="measured"):
    return json.dumps(
        {
            "schema": "joulery.energy-log/1",
            "session": name,
            "label": "train",
            "started": 1.7e9,
            "final": final,
            "seconds": seconds,
            "joules": joules,
            "provenance": origin,
            "relative_error": 0.02,
            "systematic_error_joules": 0.0,
            "devices": {"gpu:0": joules},
            "flags": [],
        }
    )


@pytest.fixture
def file(tmp_path):
    """Writes a file and gives its name."""

    def write(content, name="given"):
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_a_cloud_becomes_its_frontier(file, capsys):
    """Dominated points are of no use to anybody."""
    assert main(["report", file(CLOUD), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("chosen") is None
    assert [point.seconds for point in Frontier.from_dict(document)] == [100, 104, 120]


def test_the_table_compares_with_the_fastest(file, capsys):
    """What a slower setting saves is the point of the table."""
    assert main(["report", file(CLOUD)]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line[:6] in ("300 W ", "250 W ", "200 W ")]
    assert [row.split()[0] for row in rows] == ["300", "250", "200"]
    assert "20.0 %" in rows[1]
    assert "4.0 %" in rows[1]
    assert "energy in kJ (measured)" in printed


@pytest.mark.parametrize(
    ("objective", "watts"),
    [("least-energy:slowdown=5%", 250), ("least-energy", 200), ("cost:eta=0", 300), ("edp", 200)],
)
def test_the_choice_is_marked(file, capsys, objective, watts):
    """The chosen point is the answer people came for."""
    path = file(CLOUD)
    options = ["--objective", objective, "--max-power", "300W"]
    assert main(["report", path, *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    marked = [line for line in printed if line.endswith("  chosen")]
    assert len(marked) == 1
    assert marked[0].split()[0] == str(watts)
    assert main(["report", path, *options, "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["chosen"]
    assert chosen["setting"] == {"power_limit_watts": watts}


def test_a_frontier_file_is_shown_as_it_is(file, capsys):
    """What the demonstration writes must be readable here."""
    frontier = Frontier((OperatingPoint(1.0, 0.0, Setting(device="V100")),), "idle")
    assert main(["report", file(frontier.to_json())]) == 0
    assert "V100" in capsys.readouterr().out


def test_a_log_adds_up_its_sessions(file, capsys):
    """Restarts of one training are one training; a crash's torn line is told, not guessed."""
    text = "\n".join(
        [
            _session("a", 10, 1000, final=False),
            _session("a", 60, 6000),
            _session("b", 30, 2500, final=False),
            _session("c", 1, 1)[:40],
        ]
    )
    path = file(text)
    assert main(["report", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["seconds"], document["joules"]) == (90, 8500)
    assert document["devices"] == {"gpu:0": 8500}
    assert (document["sessions"], document["unfinished"]) == (2, 1)
    assert document["damaged_lines"] == [4]
    assert document["provenance"] == "measured"
    assert main(["report", path]) == 0
    out = capsys.readouterr().out
    assert "2 sessions, 1 of them unfinished: 1 min 30 s, 2.36 Wh (measured" in out
    assert "left out: 4" in out
    assert "gpu:0" in out


def test_one_session_is_singular(file, capsys):
    """Small words, but people read them."""
    assert main(["report", file(_session("a", 60, 6000))]) == 0
    assert "\n1 session: 1 min 00 s" in capsys.readouterr().out


def test_the_same_energy_is_written_in_the_same_way(file, capsys):
    """A table in kJ below one in Wh would have to be converted by hand."""
    assert main(["report", file(_session("a", 60, 6000)), "--price", "0.2"]) == 0
    out = capsys.readouterr().out
    assert out.count("1.67 Wh") == 3
    assert "kJ" not in out
    (cost,) = [line for line in out.splitlines() if line.startswith("cost of the electricity")]
    assert "0.000333" in cost
    assert main(["report", file(_session("a", 60, 0.6)), "--price", "0.2"]) == 0
    assert "0.0000000333" in capsys.readouterr().out


def test_logs_are_compared_by_the_names_of_their_boards(file, capsys):
    """Ids of 40 characters would widen the table, and boards of one model would look unlike."""
    board = {"GPU-b5eaf035-4d04-55ea": "NVIDIA A100"}
    paths = []
    for name, joules in (("a", 600.0), ("b", 500.0)):
        log = {**json.loads(_session(name, 60, joules)), "accelerators": board}
        log |= {"devices": dict.fromkeys(board, joules), "started": 1.79e9}
        paths.append(file(json.dumps(log) + "\n", name))
    assert main(["compare", *paths]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA A100" in out
    assert "GPU-b5" not in out
    assert "J (−16.7 %)" in out
    assert "2026-" in out


def test_each_device_keeps_its_name_and_provenance(file, capsys):
    """An assumed processor beside an emulated board would pass for simulated without an error."""
    figures = {"relative_error": 0.05, "systematic_error_joules": 30.0, "source": "a counter"}
    cpu = {"name": "EPYC (estimated)", "provenance": "assumed", "source": "utilisation"}
    log = json.loads(_session("a", 60, 900, origin="simulated")) | {
        "devices": {"GPU-1": 600, "estimate:cpu": 300},
        "accelerators": {"GPU-1": "A100"},
        "device_figures": {
            "GPU-1": figures | {"name": "A100", "provenance": "simulated"},
            "estimate:cpu": figures | cpu | {"relative_error": 0.5},
        },
    }
    path = file(log)
    for words in (["report"], ["disclose"]):
        assert main([*words, path]) == 0
        rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
        (row,) = [row for row in rows if row[0] == "EPYC (estimated)"]
        assert row[-1] == "assumed ±50 % (utilisation)"
    assert main(["compare", path, path, "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["runs"][0]["devices"]
    named = [(device["name"], device["origin"], device["relative_error"]) for device in devices]
    assert named == [("A100", "simulated", 0.05), ("EPYC (estimated)", "assumed", 0.5)]


def test_tables_of_one_paper_have_captions_and_labels_of_their_own(file, capsys):
    """Two tables of one caption cannot be told apart, nor referred to."""
    lines = [_session("a", 60, joules, origin="simulated") for joules in (600, 900)]
    long = json.loads(lines[1]) | {"seconds": 90}
    path = file("\n".join([*lines, json.dumps(long)]))
    assert main(["disclose", path, "--latex"]) == 0
    latex = capsys.readouterr().out.splitlines()
    for command, start in (("caption", r"\caption{"), ("label", r"\label{tab:energy-")):
        texts = [line for line in latex if line.startswith(start)]
        assert len(texts) == len(set(texts)) == 3, command
    assert main(["disclose", path, "--markdown"]) == 0
    assert "Power over time" not in capsys.readouterr().out


def test_charts_of_simulated_energy_say_so(file, tmp_path, capsys):
    """A chart is put into a paper without the page around it, and would pass for measured."""
    lines = [json.loads(_session("a", at, 10 * at, origin="simulated")) for at in (30, 60, 90)]
    path, chart = file("\n".join(map(json.dumps, lines))), tmp_path / "power.svg"
    assert main(["report", path, "--charts", str(chart)]) == 0
    assert "power in W (simulated or assumed)" in capsys.readouterr().out
    assert "power in W (simulated or assumed)" in chart.read_text()
    measured = file("\n".join(json.dumps(line | {"provenance": "measured"}) for line in lines))
    assert main(["report", measured, "--charts", str(chart)]) == 0
    assert "simulated" not in capsys.readouterr().out + chart.read_text()


def test_unknown_energy_stays_unknown(file, capsys):
    """Nothing measured is not nothing used."""
    path = file(_session("a", 60, None))
    assert main(["report", path]) == 0
    assert "1 min 00 s, unknown" in capsys.readouterr().out
    assert main(["report", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["joules"] is None


def _frontier_document(*pairs, **more):
    return {"points": [{"seconds": s, "joules": j} for s, j in pairs], **more}


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("", [], "neither an energy log nor valid JSON"),
        ("{", [], "neither an energy log nor valid JSON"),
        ("\x00\x01", [], "neither an energy log nor valid JSON"),
        pytest.param("[" * 100_000, [], "neither", id="nested"),
        ("[]", [], "at least one point"),
        ("5", [], "not a frontier"),
        ([[100, 30000]], [], "[100, 30000] is not an operating point"),
        ({"schema": "other/1", "points": []}, [], "unknown frontier format"),
        (_frontier_document((1, 2), (1, 2)), [], "duplicate points"),
        (_frontier_document((1, 2), (2, 3)), [], "dominated"),
        ([{"seconds": "1", "joules": 1}], [], "must be a number"),
        ([{"seconds": 1}], [], "lacks 'joules'"),
        ([{"seconds": 1, "joules": 1, "setting": {"power_limit_watts": "x"}}], [], "a number"),
        ([{"seconds": 1, "joules": 1, "setting": {"volts": 1}}], [], "unknown knob 'volts'"),
        (CLOUD, ["--objective", ""], "--objective: the value is empty"),
        (CLOUD, ["--objective", "speed"], "unknown objective"),
        (CLOUD, ["--objective", "cost"], "max_watts"),
        (CLOUD, ["--objective", "least-energy:deadline=1"], "no operating point meets"),
        (CLOUD, ["--max-power", "x"], "is not a number"),
        (_session("a", 1, 1), ["--objective", "edp"], "no points to choose from"),
        (_session("a", 1, 1), ["--latex", "--markdown"], "--latex and --markdown at once"),
    ],
)
def test_bad_input_is_one_line_and_a_remedy(file, capsys, content, options, says):
    """Whatever the file holds, the answer is a sentence and exit code 2."""
    assert main(["report", file(content), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err.splitlines()[0]
    assert "internal error" not in err
    assert len(err.splitlines()) == 2


def test_missing_files_and_folders_are_named(tmp_path, capsys):
    """The path in the message is the one that was given."""
    for path in (tmp_path / "missing", tmp_path):
        assert main(["report", str(path)]) == 2
        assert f"cannot read {path}" in capsys.readouterr().err


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with two jobs: four runs that say how they were measured, and one that does not."""
    for name in ("JOULERY_STORE", "JOULERY_TEAM", "JOULERY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    clock = VirtualClock(wall_seconds=datetime(2026, 9, 30, 23, tzinfo=UTC).timestamp())
    backend = open_backend(tmp_path / "store.sqlite", "default", clock=clock)
    runs = []
    for name, ends in (("nightly", (256, 256, 64, 128)), ("other", (256,))):
        job = Job(name, (64, 128, 256), 256, Cost(0.5, 300.0), None, 40)
        number = backend.define(Definition(job, "NVIDIA A100-SXM4-80GB")).id
        for at, size in enumerate(ends):
            decision = backend.decide(number, Request(f"{name}{at}", only=size))
            end = RunEnd.STOPPED if size == 64 else RunEnd.REACHED
            seconds = {256: 3600.0, 128: 1800.0, 64: 600.0}[size]
            outcome = Outcome(end, 9.0, seconds, 250.0 * seconds, 250.0)
            backend.report(decision, outcome, f"{name}{at}")
            if name == "nightly":
                for device in ("GPU-1", "GPU-2"):
                    energy = EnergyEntry(
                        decision.id, device, seconds, 125.0 * seconds, "measured", "a counter", 0.05
                    )
                    backend.add_energy(number, energy)
            runs.append(decision.id)
            clock.sleep(1800.0)
    backend.close()
    return str(tmp_path / "store.sqlite"), runs


def _figures(capsys, *words, command="report"):
    assert main([command, *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    return document, {figure["name"]: figure for figure in document["figures"]}


def test_a_job_is_reported_with_savings_and_phases(store, capsys):
    """If this fails, what a job used, saved and spent on exploring cannot be published."""
    words = ("--job", "nightly", "--store", store[0], "--grid", "100")
    _, used = _figures(capsys, *words)
    document, figures = _figures(capsys, *words, command="disclose")
    assert used["energy saved"] == figures["energy saved"]
    energy = figures["energy of the devices"]
    assert energy["value"] == pytest.approx(250 * 9600 / 3.6e6)
    assert (energy["provenance"], energy["source"]) == ("measured", "a counter")
    # A sensor errs alike in all runs, the sensors of two boards do not.
    assert energy["relative_error"] == pytest.approx(0.05 / 2**0.5)
    assert document["jobs"][0]["relative_error"] == pytest.approx(0.05 / 2**0.5)
    assert figures["time"]["value"] == 9600
    embodied = embodied_grams("A100", 2 * 9600.0) / 1000
    assert figures["CO2 of making the hardware"]["value"] == pytest.approx(embodied)
    assert figures["energy saved"]["value"] == pytest.approx(100 * (1 - 9600 / (4 * 3600)))
    phases = {phase["name"]: phase["value"] for phase in document["life_cycle"]}
    assert phases["experiments"] == pytest.approx(250 * 600 / 3.6e6)
    assert phases["training"] == pytest.approx(250 * 9000 / 3.6e6)
    assert document["hardware"] == {"NVIDIA A100-SXM4-80GB": 2}
    for form in ("huggingface", "eu", "cyclonedx", "spdx"):
        assert main(["disclose", *words, "--as", form]) == 0
    assert '"hardware_days": 0.222' in capsys.readouterr().out


def test_months_runs_and_teams_are_told_apart(store, capsys):
    """If this fails, energy is booked to the wrong month, run or team."""
    path, runs = store
    _, october = _figures(capsys, "--job", "nightly", "--store", path, "--month", "2026-10")
    assert october["time"]["value"] == 600 + 1800
    _, september = _figures(capsys, "--month", "2026-09", "--store", path)
    assert september["time"]["value"] == 7200
    assert "energy saved" not in september
    one, single = _figures(capsys, "--job", "nightly", "--run", runs[2], "--store", path)
    assert single["time"]["value"] == 600
    assert runs[2] in one["name"]
    document, team = _figures(capsys, "--team", "default", "--store", path)
    chart = Path(path).with_name("team.svg")
    assert main(["report", "--team", "default", "--store", path, "--charts", str(chart)]) == 0
    capsys.readouterr()
    assert "Energy by job" in chart.read_text()
    assert [job["name"] for job in document["jobs"]] == ["nightly", "other"]
    assert team["energy of the devices"]["provenance"] == "assumed"
    assert "do not say how" in team["energy of the devices"]["source"]
    assert main(["report", "--team", "vision", "--store", path]) == 2
    assert "no jobs and no runs" in capsys.readouterr().err


def test_a_team_is_reported_with_every_run_and_each_joule_once(store, capsys):
    """A third of a team's energy would be missing from what it discloses, or be in it twice."""
    path, decisions = store
    job_joules = 250.0 * (9600 + 3600)
    wall = datetime(2026, 10, 1, 1, tzinfo=UTC).timestamp()
    boards = (RunDevice("A100 0", 1e6), RunDevice("A100 1", 1e6), RunDevice("a CPU", 1e3))
    fields = {"started_wall_seconds": wall, "seconds": 1e4, "origin": "measured"}
    with closing(open_backend(path, "default")) as backend:
        again = backend.decide(1, Request("killed", only=128)).id
        for key, more in {
            "recurs": {"joules": 9e5, "decision": decisions[0]},  # as its job reports it
            "around it": {"joules": 1e6, "kind": "measure"},
            "within": {"joules": 3e5, "part_of": "around it", "decision": decisions[1]},
            "fine-tune": {"joules": 2e6, "devices": boards, "relative_error": 0.05},
            "of it": {"joules": 1.5e6, "part_of": "fine-tune"},
            "killed": {"joules": 4e5, "decision": again, "ended": False},
            "job deleted": {"joules": 5e5, "decision": "99.1"},
            "unknown": {},
        }.items():
            backend.put_run(RunEntry(key, key, **fields, **more))
    joules = job_joules + (1e6 - 3e5) + 2e6 + 4e5 + 5e5
    for words in (("--team", "default"), ("--month", "2026-10")):
        document, figures = _figures(capsys, *words, "--store", path)
        month = words[0] == "--month"
        expected = joules - 250.0 * 7200 * month
        energy = figures["energy of the devices"]
        assert energy["value"] == pytest.approx(expected / 3.6e6)
        assert sum(run["joules"] for run in document["runs"]) == pytest.approx(joules - job_joules)
        jobs_joules = sum(job["joules"] for job in document["jobs"])
        assert jobs_joules == pytest.approx(job_joules - 250.0 * 7200 * month)
    disclosed, figures = _figures(capsys, "--team", "default", "--store", path, command="disclose")
    assert disclosed["hardware"] == {"NVIDIA A100-SXM4-80GB": 2, "A100": 2}
    assert main(["report", "--team", "default", "--store", path]) == 0
    assert "fine-tune" in capsys.readouterr().out
    assert main(["report", "--month", "2026-09", "--store", path]) == 0


def test_a_store_without_jobs_is_reported_by_its_runs(tmp_path, capsys, monkeypatch):
    """Whoever never trains the same twice would be told that nothing was measured."""
    monkeypatch.delenv("JOULERY_TEAM", raising=False)
    path = str(tmp_path / "store.sqlite")
    with closing(open_backend(path, "default")) as backend:
        backend.put_run(RunEntry("a", "a", 1e9, 1e4, 3.6e6))
    _, figures = _figures(capsys, "--team", "default", "--store", path)
    assert figures["energy of the devices"]["value"] == pytest.approx(1.0)
    assert main(["report", "--store", path]) == 0
    assert "1.00 kWh" in capsys.readouterr().out


def test_phases_and_pages_come_from_files(file, tmp_path, capsys, monkeypatch):
    """If this fails, a model's whole life cannot be reported, or not be sent to others."""
    log = file(_session("a", 100.0, 3.6e6))
    page, opened = tmp_path / "page.html", []
    monkeypatch.setattr("webbrowser.open", opened.append)
    words = ["disclose", log, "--phase", f"inference={log}", "--html", str(page), "--open"]
    assert main([*words, "--units", "2k", "--unit", "step", "--name", "tiny"]) == 0
    printed = capsys.readouterr().out
    assert "1.80 kJ per step" in printed
    assert "Energy and carbon of tiny" in page.read_text()
    assert opened == [page.as_uri()]
    options = ("--hardware", "H100=8", "--grid", "fr")
    _, figures = _figures(capsys, log, *options, command="disclose")
    assert figures["CO2 of the electricity"]["value"] == pytest.approx(0.06)
    assert figures["CO2 in all"]["value"] > 0.06


def test_boards_that_were_not_measured_are_not_disclosed(tmp_path, capsys):
    """The energy of a CPU would be filed as that of eight GPUs."""
    log = tmp_path / "cpu.jsonl"
    assert main(["measure", "--log", str(log), "--", "true"]) == 0
    assert main(["disclose", str(log), "--as", "eu", "--hardware", "H100=8"]) == 2
    assert "energy of 0 accelerators, not of 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a.json", "--job", "x"], "at once"),
        (["--job", "x", "--month", "October"], "is not a month"),
        (["--job", "x", "--month", "2026-13"], "is not a month"),
        (["--job", "x", "--units", "0"], "more than 0"),
        (["--job", "x", "--hardware", "H100"], "H100=8"),
        (["--job", "x", "--hardware", "H100=0"], "whole number"),
        (["--job", "x", "--phase", "inference"], "not a phase"),
        (["--job", "nothing"], "no job 'nothing'"),
        (["--job", "nightly", "--run", "7"], "no such run"),
        (["--month", "2020-01"], "in that time"),
        (["--job", "nightly", "--phase", "data=missing"], "cannot read missing"),
        (["--job", "nightly", "--grid", "Atlantis"], "Atlantis"),
        (["--job", "nightly", "--html", "no/where.html"], "--html"),
        (["--job", "nightly", "--as", "huggingface"], "--grid"),
        ([], "nothing to disclose"),
        (["--job", "nightly", "--as", "iso"], "is unknown"),
        (["--team", ""], "--team: the value is empty"),
        (["--job", ""], "--job: the value is empty"),
    ],
)
def test_wrong_reports_are_one_line_and_a_remedy(store, capsys, words, says):
    """If this fails, a slip ends in a traceback or in a report on something else."""
    assert main(["disclose", *words, "--store", store[0]]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 2)
    assert says in err


def test_the_jobs_of_a_store_become_one_page(tmp_path, capsys, monkeypatch):
    """If this fails, what was saved cannot be shown to people without a server."""
    path, page = tmp_path / "store.sqlite", tmp_path / "page.html"
    with closing(open_backend(path, "vision")) as backend:
        job = Job("nightly", (64, 128), 128, Cost(1.0))
        number = backend.define(Definition(job, "A100")).id
        for size, joules in ((128, 2000.0), (64, 1000.0)):
            decision = backend.decide(number, Request(f"{size}", only=size))
            backend.report(decision, Outcome(RunEnd.REACHED, 5.0, 50.0, joules), f"{size}")
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    wanted = ["report", "--store", str(path), "--html", str(page), "--open"]
    assert main([*wanted, "--price", "0.3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["jobs"][0]["saved"]["share"] == pytest.approx(0.25)
    assert opened == [page.as_uri()]
    text = page.read_text(encoding="utf-8")
    for words in ("0.00 money", "nightly (A100)", "Search path", "1.00 kJ"):
        assert words in text
    for needle in ("<script", "http://", "https://"):
        assert needle not in text
    assert main(["report", "--store", str(path)]) == 0
    assert "Needs attention" in capsys.readouterr().out


def test_a_store_that_cannot_be_shown_is_refused(tmp_path, capsys):
    """If this fails, a typo makes an empty store."""
    missing = tmp_path / "missing.sqlite"
    for location, says in ((str(missing), "no store at"), ("http://localhost:1", "is a server")):
        assert main(["report", "--store", location]) == 2
        assert says in capsys.readouterr().err
    assert not missing.exists()
