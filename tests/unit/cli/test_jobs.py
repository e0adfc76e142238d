"""``joulery jobs``: what people see of recurring jobs, and what they may do with them."""

import io
import json
from dataclasses import replace

import pytest

from joulery.cli import main
from joulery.client.local import LocalClerk
from joulery.objectives import Cost, LeastEnergy
from joulery.recurring.desk_requests import Definition, Request
from joulery.recurring.desk_values import Outcome
from joulery.recurring.job import Job
from joulery.recurring.policy import End

JOB = Job("nightly", (64, 128, 256), 256, Cost(0.5, 300.0), LeastEnergy(0.05), 40, (150.0, 200.0))


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with a job that was run a few times, on two devices."""
    for name in ("JOULERY_STORE", "JOULERY_TEAM", "JOULERY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = tmp_path / "store.sqlite"
    clerk = LocalClerk.open(path, "default")
    job = clerk.define(Definition(JOB, "V100")).job
    for number in range(4):
        decision = clerk.decide(job, Request(f"a{number}"))
        seconds = 50.0 if decision.batch_size == 256 else 30.0
        end = End.STOPPED if number == 2 else End.REACHED
        outcome = Outcome(end, 9.0, seconds, 150.0 * seconds, 200.0)
        clerk.report(decision, outcome, f"a{number}")
    clerk.decide(job, Request("open"))
    clerk.define(Definition(replace(JOB, name="other"), "A40"))
    clerk.close()
    return str(path)


def test_jobs_are_listed(store, capsys):
    """If this fails, nobody knows what recurs."""
    assert main(["jobs", "list", "--store", store]) == 0
    text = capsys.readouterr().out
    assert "nightly" in text
    assert "other" in text
    assert main(["jobs", "list", "--store", store, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [job["name"] for job in document["jobs"]] == ["nightly", "other"]


def test_an_empty_store_says_how_to_begin(tmp_path, monkeypatch, capsys):
    """If this fails, a new user sees an empty table."""
    monkeypatch.delenv("JOULERY_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["jobs", "list"]) == 0
    assert "No jobs yet" in capsys.readouterr().out


def test_a_job_is_shown_with_its_costs_and_reasons(store, capsys):
    """If this fails, nobody can tell why a batch size was chosen, or what it saved."""
    assert main(["jobs", "show", "nightly", "--store", store, "--last", "3"]) == 0
    text = capsys.readouterr().out
    assert "256 (default)" in text
    assert "recurrences: 5" in text
    assert "than runs of the default batch size" in text
    assert "LeastEnergy" in text
    assert "open" in text
    assert "stopped" in text
    assert text.count(" train ") == 3


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


def test_forgetting_asks_first(store, capsys, monkeypatch):
    """If this fails, a slip deletes months of learning."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["jobs", "forget", "nightly", "--store", store]) == 2
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert main(["jobs", "forget", "nightly", "--store", store]) == 2
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(["jobs", "forget", "nightly", "--store", store]) == 0
    assert main(["jobs", "show", "nightly", "--store", store]) == 2


def test_a_name_on_several_devices_must_be_said_exactly(store, capsys):
    """If this fails, forgetting takes the wrong job."""
    clerk = LocalClerk.open(store, "default")
    clerk.define(Definition(JOB, "H100"))
    clerk.close()
    assert main(["jobs", "forget", "nightly", "--yes", "--store", store]) == 2
    assert "'H100', 'V100'" in capsys.readouterr().err
    assert main(["jobs", "forget", "nightly", "--device", "V100", "--yes", "--store", store]) == 0
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    assert "on H100" in capsys.readouterr().out


def test_a_changed_job_shows_its_versions(store, capsys):
    """If this fails, nobody sees where a job came from."""
    clerk = LocalClerk.open(store, "default")
    clerk.define(Definition(replace(JOB, max_epochs=60), "V100"))
    clerk.close()
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    text = capsys.readouterr().out
    assert "version 2" in text
    assert "also: version 1" in text
    assert "inherited:" in text
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
    assert main(["jobs", "show", "nightly", "--last", "-1", "--store", store]) == 2
    assert main(["jobs", "show", "nothing", "--store", store]) == 2


@pytest.mark.parametrize("action", ["list", "show", "pause", "resume", "forget"])
@pytest.mark.parametrize("team", ["", " "])
def test_a_team_without_a_name_is_not_the_default_one(store, capsys, action, team):
    """If this fails, a variable that is not set makes a script work on somebody else's jobs."""
    name = [] if action == "list" else ["nightly"]
    yes = ["--yes"] if action == "forget" else []
    assert main(["jobs", action, *name, *yes, "--store", store, "--team", team]) == 2
    assert "leave --team out" in capsys.readouterr().err
    assert main(["jobs", "show", "nightly", "--store", store]) == 0
    assert "paused" not in capsys.readouterr().out
