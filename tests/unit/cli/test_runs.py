"""``joulery runs``: what a list says about what it leaves out, and a run without curves."""

import json
from contextlib import closing

import pytest

from joulery.cli import main
from joulery.client import open_backend
from joulery.jobs import RunEntry


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A store with four runs of a team, of a second, of an hour, within that, and of a job."""
    path = str(tmp_path / "store.sqlite")
    for name in ("JOULERY_TEAM", "JOULERY_TOKEN", "JOULERY_OUTER_RUN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JOULERY_STORE", path)
    with closing(open_backend(path, "vision")) as backend:
        backend.put_run(RunEntry("short", "short", 1e9, 1.0, 100.0))
        backend.put_run(RunEntry("long", "long", 1e9, 3600.0, 1e5))
        backend.put_run(RunEntry("part", "part", 1e9, 60.0, 5e3, part_of="long"))
        backend.put_run(RunEntry("night", "night", 1e9, 60.0, 5e3, decision="1.3"))
    return path


def test_a_recurring_run_saves_by_its_job(capsys):
    """A run whose job saves 43 % had a dash, as if nothing were saved."""
    assert main(["runs", "list", "--team", "vision"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    (row,) = [line for line in rows if " night " in line]
    assert "by its job" in row
    assert "saved by tuning" in header
    assert "joulery report --job NAME" in rows[-1]


def test_a_list_says_what_it_leaves_out(capsys):
    """A team with 79 runs would be taken for one with 50."""
    assert main(["runs", "list", "--team", "vision", "--limit", "3"]) == 0
    listed = capsys.readouterr().out
    assert "these are the latest 3; --limit" in listed
    assert "part of another" in listed
    assert main(["runs", "list", "--team", "vision"]) == 0
    assert "--limit" not in capsys.readouterr().out
    assert main(["runs", "list", "--team", "vision", "--limit", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"] is False


def test_a_team_without_runs_is_named(capsys):
    """Whoever has set a store would be told to set it, and not which team has no runs."""
    assert main(["runs", "list"]) == 0
    assert "team default in this store; --team" in capsys.readouterr().out
    assert main(["jobs", "list"]) == 0
    assert "team default" in capsys.readouterr().out


def test_a_long_run_without_curves_is_not_called_short(capsys):
    """A client that sends none would be told that its hour was too short."""
    for number, text in (("1", "too short"), ("2", "without curves"), ("3", "the run around it")):
        assert main(["runs", "show", number, "--team", "vision"]) == 0
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("numbers", [[], ["1"]])
def test_the_remedy_of_a_comparison_is_a_comparison(capsys, numbers):
    """Whoever writes what the remedy says is refused a second time."""
    assert main(["compare", *numbers]) == 2
    assert "write `joulery compare RUN RUN`" in capsys.readouterr().err
    assert main(["compare", "1", "2", "--team", "vision"]) == 0
    assert main(["compare", *"123456"]) == 2
    assert "two to 5" in capsys.readouterr().err
