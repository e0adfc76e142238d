"""``joulery jobs``: what people see of recurring jobs, and what they may do with them."""

import io
import json
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from joulery.cli import main
from joulery.client import job_summary, open_backend
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.jobs import (
    Definition,
    EnergyEntry,
    Job,
    Outcome,
    ProfileEntry,
    Request,
)
from joulery.jobs.policies import RunEnd
from joulery.objectives import Cost, LeastEnergy

JOB = Job("nightly", (64, 128, 256), 256, Cost(0.5, 300.0), LeastEnergy(0.05), 40, (150.0, 200.0))


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with a job that was run a few times, on two devices."""
    for name in ("JOULERY_STORE", "JOULERY_TEAM", "JOULERY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = tmp_path / "store.sqlite"
    backend = open_backend(path, "default")
    job = backend.define(Definition(JOB, "V100")).id
    for number in range(4):
        decision = backend.decide(job, Request(f"a{number}"))
        seconds = 50.0 if decision.batch_size == 256 else 30.0
        outcome = Outcome(RunEnd.REACHED, 9.0, seconds, 150.0 * seconds, 200.0)
        if number == 2:  # long before its ceiling
            outcome = Outcome(RunEnd.STOPPED, 1.0, seconds / 9, 150.0 * seconds / 9, 200.0)
        backend.report(decision, outcome, f"a{number}")
    backend.decide(job, Request("open"))
    backend.define(Definition(replace(JOB, name="other"), "A40"))
    backend.close()
    return str(path)


def test_jobs_are_listed(store, capsys):
    """If this fails, the jobs of a team are unknown."""
    assert main(["jobs", "list", "--store", store]) == 0
    text = capsys.readouterr().out
    assert "nightly" in text
    assert "other" in text
    assert main(["jobs", "list", "--store", store, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [job["definition"]["job"]["name"] for job in document["jobs"]] == ["nightly", "other"]


def test_an_empty_store_says_how_to_begin(tmp_path, monkeypatch, capsys):
    """If this fails, a new user sees an empty table."""
    monkeypatch.delenv("JOULERY_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["jobs", "list"]) == 0
    assert "No recurring jobs" in capsys.readouterr().out


def test_a_job_is_shown_with_its_costs_and_reasons(store, capsys):
    """If this fails, it is unknown why a batch size was chosen, or what it saved."""
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    text = capsys.readouterr().out
    assert "256 (default)" in text
    assert "Recurrences: 5" in text
    assert "of the default, exploration included" in text
    assert "spent on exploring" in text
    assert "least-energy:slowdown=" in text
    assert "default 256" in text  # in the chart of time and energy
    assert "under way" in text
    assert "quarantine)" in text  # no ceiling explains it, and nothing confirms it
    assert text.count(" train ") == 5


def test_the_document_has_the_figures(store, capsys):
    """If this fails, programs cannot follow what was saved."""
    assert main(["jobs", "show", "nightly", "--store", store, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sizes = {row["batch_size"]: row for row in document["batch_sizes"]}
    assert sizes[256]["cost_joules"] == pytest.approx(0.5 * 7500 + 0.5 * 300 * 50)
    assert len(document["recurrences"]) == 5
    assert document["complete"]
    assert document["decisions"][0]["outcome"]["end"] == "reached"
    assert document["decisions"][-1]["decision"]["token"] == ""


def history(tmp_path, ends):
    """A store with one recurrence per (batch size, end, seconds)."""
    path = tmp_path / "history.sqlite"
    backend = open_backend(path, "default")
    job = backend.define(Definition(replace(JOB, objective=None), "V100")).id
    for number, (size, end, seconds) in enumerate(ends):
        decision = backend.decide(job, Request(f"a{number}", only=size))
        assert decision.batch_size == size
        backend.report(decision, Outcome(end, 9.0, seconds, 150.0 * seconds, 200.0), f"a{number}")
    backend.close()
    return str(path)


def shown(store, capsys):
    """What was saved, as a program reads it."""
    assert main(["jobs", "show", "nightly", "--store", store, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["saved"]


def test_the_default_saves_nothing_over_itself(tmp_path, capsys):
    """If this fails, scatter between runs of the default is sold as savings."""
    ends = [(256, RunEnd.REACHED, seconds) for seconds in (60.0, 50.0, 40.0, 30.0)]
    assert shown(history(tmp_path, ends), capsys) is None


def test_the_total_includes_what_exploring_cost(tmp_path, capsys):
    """If this fails, a search that cost more than it saved looks like a success."""
    reached, stopped = RunEnd.REACHED, RunEnd.STOPPED
    ends = [
        *((256, reached, 50.0), (64, stopped, 58.0), (256, reached, 54.0)),
        *((128, reached, 40.0), (128, reached, 44.0)),
    ]
    saved = shown(history(tmp_path, ends), capsys)
    assert (saved["recurrences"], saved["default_runs"]) == (5, 2)
    assert saved["time"]["share"] == pytest.approx(1 - (50 + 58 + 54 + 40 + 44) / (5 * 52))
    assert saved["exploring_joules"] == pytest.approx(58.0 * (0.5 * 150 + 0.5 * 300))
    # Two pairs of runs scatter by 2 of 52 and of 42; three recurrences are not the default.
    scatter = ((2 * (2 / 52) ** 2 + 2 * (2 / 42) ** 2) / 2) ** 0.5
    error = 142 / (5 * 52) * scatter / 2**0.5
    assert saved["time"]["standard_error"] == pytest.approx(error)


def test_a_job_without_runs_can_be_shown(store, capsys):
    """If this fails, a job that was only defined breaks the view."""
    assert main(["jobs", "show", "other", "--store", store]) == 0
    assert "other on A40" in capsys.readouterr().out


def test_jobs_are_paused_and_resumed(store, capsys):
    """If this fails, a job cannot be stopped without deleting it."""
    assert main(["jobs", "pause", "nightly", "--store", store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["paused"] is True
    main(["jobs", "list", "--store", store])
    assert "paused" in capsys.readouterr().out
    assert main(["jobs", "resume", "nightly", "--store", store]) == 0
    main(["jobs", "list", "--store", store])
    assert "paused" not in capsys.readouterr().out.split("\n", 3)[-1]


def test_deleting_asks_first(store, capsys, monkeypatch):
    """If this fails, a slip deletes months of learning."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["jobs", "delete", "nightly", "--store", store]) == 2
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert main(["jobs", "delete", "nightly", "--store", store]) == 2
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(["jobs", "delete", "nightly", "--store", store]) == 0
    assert main(["jobs", "show", "nightly", "--store", store]) == 2


def test_a_name_on_several_devices_must_be_said_exactly(store, capsys):
    """If this fails, deleting takes the wrong job."""
    backend = open_backend(store, "default")
    backend.define(Definition(JOB, "H100"))
    backend.close()
    assert main(["jobs", "delete", "nightly", "--yes", "--store", store]) == 2
    assert "'H100', 'V100'" in capsys.readouterr().err
    assert main(["jobs", "delete", "nightly", "--device", "V100", "--yes", "--store", store]) == 0
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    assert "on H100" in capsys.readouterr().out


def test_a_changed_job_shows_its_versions(store, capsys):
    """If this fails, the history of a job is unknown."""
    backend = open_backend(store, "default")
    backend.define(Definition(replace(JOB, max_epochs=60), "V100"))
    backend.close()
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    text = capsys.readouterr().out
    assert "version 2" in text
    assert "Also: version 1" in text
    assert "Warm start:" in text
    assert main(["jobs", "list", "--all", "--store", store, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["jobs"]) == 3


def test_a_slip_in_the_path_makes_no_store(tmp_path, capsys):
    """If this fails, a typo looks like an empty store, and leaves a file behind."""
    path = tmp_path / "typo.sqlite"
    assert main(["jobs", "list", "--store", str(path)]) == 2
    assert not path.exists()


def test_wrong_use_is_said_to_be(store, capsys):
    """If this fails, a wrong option ends in a traceback."""
    assert main(["jobs"]) == 2
    assert "list, show, frontier, pause, resume, delete" in capsys.readouterr().err
    assert main(["jobs", "show", "nothing", "--store", store]) == 2


@pytest.mark.parametrize("action", ["list", "show", "frontier", "pause", "resume", "delete"])
@pytest.mark.parametrize("team", ["", " "])
def test_a_team_without_a_name_is_not_the_default_one(store, capsys, action, team):
    """If this fails, a variable that is not set makes a script work on another team's jobs."""
    name = [] if action == "list" else ["nightly"]
    yes = ["--yes"] if action == "delete" else []
    assert main(["jobs", action, *name, *yes, "--store", store, "--team", team]) == 2
    assert "--team" in capsys.readouterr().err
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    assert "paused" not in capsys.readouterr().out


def frontier_at(size, origin=Origin.SIMULATED):
    """What is known of an epoch of a batch size."""
    points = [
        OperatingPoint(
            10.0 + place, 2000.0 - 300.0 * place, limit, Provenance(origin, "test", 0.01)
        )
        for place, limit in enumerate(
            Setting(power_limit_watts=watts, batch_size=size) for watts in (250.0, 200.0, 150.0)
        )
    ]
    return Frontier.from_points(points, work=f"an epoch at {size}")


@pytest.fixture
def measured(store):
    """The same store, with energy of two runs and frontiers of two batch sizes."""
    backend = open_backend(store, "default")
    first, second = (entry.decision.id for entry in backend.decisions(1)[0][:2])
    for decision, joules, origin in ((first, 7.2e6, "measured"), (second, 3.6e6, "simulated")):
        backend.add_energy(1, EnergyEntry(decision, "gpu", 50.0, joules, origin, "a counter"))
    for size in (64, 256):
        backend.put_profile(1, ProfileEntry(size, "V100", frontier_at(size)))
    backend.close()
    return store


def test_energy_is_shown_with_where_its_figures_come_from(measured, capsys):
    """If this fails, simulated energy passes for measured, or the energy of a job is unknown."""
    assert main(["jobs", "show", "nightly", "--store", measured]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if "Energy used" in one)
    assert "3.00 kWh" in line
    assert "67 % measured, 33 % simulated" in line
    assert "reported" not in line


def test_energy_of_older_runs_is_known_from_their_reports(store, capsys):
    """If this fails, runs of before seem to have used nothing."""
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    assert "100 % reported without saying how" in capsys.readouterr().out


def test_frontiers_are_shown_in_one_line_each(measured, capsys):
    """If this fails, the cost of power limits is unknown."""
    assert main(["jobs", "show", "nightly", "--store", measured]) == 0
    text = capsys.readouterr().out
    (line,) = [one for one in text.splitlines() if one.split()[:2] == ["64", "10.0"]]
    assert "10.0 s, 2.00 kJ at 250 W" in line
    assert "12.0 s, 1.40 kJ at 150 W" in line
    assert line.split()[-4:] == ["3", "simulated", "0", "s"]
    assert max(map(len, text.splitlines())) < 170


def test_the_document_has_energy_and_frontiers(measured, capsys):
    """If this fails, programs cannot add up what teams use."""
    assert main(["jobs", "show", "nightly", "--store", measured, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["energy"]["joules"] == pytest.approx(10.8e6)
    assert document["energy"]["complete"]
    assert document["energy"]["by_origin"] == {"measured": 7.2e6, "simulated": 3.6e6}
    assert [one["batch_size"] for one in document["profiles"]] == [64, 256]
    assert Frontier.from_dict(document["profiles"][0]["frontier"]) == frontier_at(64)


def test_a_frontier_comes_out_for_other_tools(measured, tmp_path, capsys):
    """If this fails, what was measured cannot be used elsewhere."""
    show = ["jobs", "frontier", "nightly", "--store", measured]
    assert main([*show, "--batch-size", "64"]) == 0
    assert Frontier.from_json(capsys.readouterr().out) == frontier_at(64)
    path = tmp_path / "frontier.json"
    assert main([*show, "--batch-size", "256", "--out", str(path)]) == 0
    assert "3 points" in capsys.readouterr().out
    assert main([*show, "--batch-size", "256", "--out", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"] == 3
    assert main(["report", str(path), "--objective", "least-energy:slowdown=10%"]) == 0
    assert "chosen 200 W" in capsys.readouterr().out


def test_which_frontier_is_meant_must_be_clear(measured, tmp_path, capsys):
    """If this fails, a script works with the frontier of another batch size."""
    show = ["jobs", "frontier", "nightly", "--store", measured]
    assert main(show) == 2
    assert "64, 256" in capsys.readouterr().err
    assert main([*show, "--batch-size", "128"]) == 2
    assert "batch size 128" in capsys.readouterr().err
    assert main([*show, "--batch-size", "many"]) == 2
    assert main(["jobs", "frontier", "other", "--store", measured]) == 2
    assert "run it once" in capsys.readouterr().err
    nowhere = str(tmp_path / "no" / "folder.json")
    assert main([*show, "--batch-size", "64", "--out", nowhere]) == 2
    assert "make it, or choose another" in capsys.readouterr().err


def test_an_endless_record_is_said_to_be_cut():
    """If this fails, one look at an old job reads for minutes."""

    class Endless:
        def energy(self, _job, after, _limit):
            return [EnergyEntry(None, "gpu", 1.0, 3.6e6, "measured")], after + 1

        def decisions(self, _job, _after, _limit):
            return [], None

        def profiles(self, _job):
            return []

    assert job_summary(Endless(), SimpleNamespace(id=1, events=0)).energy_cut
