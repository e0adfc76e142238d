import csv
import json
import sys

import pytest

from joulery.cli import main
from joulery.frontier import Frontier
from joulery.sweep import SimulatedWork
from joulery.sweep._journal import FILE_NAME

SMALL = ["sweep", "--simulate", "rtx6000x8", "--limits", "150:260:55", "--repeat", "2"]
FILES = ("sweep.json", "sweep.csv", "sweep.html", "frontier.json", "sweep.png")


def sweep(*more, out, small=SMALL):
    """The small simulated sweep, with more options."""
    return main([*small, *more, "--out", str(out)])


@pytest.fixture
def undrawn(monkeypatch):
    """Leave out the picture, which takes longer than the rest."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.fixture
def failing(monkeypatch, undrawn):
    """Let chosen runs fail, counted from 1 over all sweeps of a test."""
    script = {}
    made = []
    honest = SimulatedWork.run

    def run(work, trial):
        honest(work, trial)
        made.append(trial)
        outcome = script.get(len(made), 0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(SimulatedWork, "run", run)
    return script


def test_prints_the_table_and_the_best(tmp_path, capsys):
    """A user would not see what the sweep was for."""
    assert sweep("--gpus", "2,8", out=tmp_path) == 0
    printed = capsys.readouterr().out
    for text in (
        "simulated",
        "150 W",
        "205 W",
        "260 W",
        "EDS (k = 1.5)",
    ):
        assert text in printed
    for name in FILES:
        assert name in printed
        assert (tmp_path / name).stat().st_size > 100


def test_results_of_others_are_not_replaced_unless_asked(tmp_path, capsys, undrawn):
    """A sweep into the demo's folder would replace the demo's frontier."""
    theirs = tmp_path / "frontier.json"
    theirs.write_text("the demo's")
    assert sweep(out=tmp_path) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert theirs.read_text() == "the demo's"
    assert not (tmp_path / FILE_NAME).exists()
    assert sweep("--overwrite", out=tmp_path) == 0
    assert theirs.read_text() != "the demo's"
    assert sweep(out=tmp_path) == 0, "continues its own folder without being asked"


def test_json_is_one_document_with_every_column(tmp_path, capsys, undrawn):
    """Programs that read the sweep would break."""
    assert sweep("--gpus", "1,8", "--json", out=tmp_path) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == "joulery.sweep/1"
    assert printed["origin"] == "simulated"
    assert printed["complete"] is True
    assert len(printed["settings"]) == 6
    row = next(r for r in printed["settings"] if (r["gpus"], r["power_limit_watts"]) == (1, 205.0))
    assert row["runs"] == 2
    assert row["idle_gpu_joules"] > 0
    assert row["joules"] > row["gpu_joules"] + row["idle_gpu_joules"]
    assert row["difference_percent"] == pytest.approx(
        row["energy_gain_percent"] - row["time_loss_percent"]
    )
    assert {best["metric"] for best in printed["best"]} == {
        "energy",
        "difference",
        "edp",
        "eds_1.5",
        "eds_2.0",
    }
    stored = json.loads((tmp_path / "sweep.json").read_text())
    assert stored["settings"] == printed["settings"]


def test_files_can_be_read_back(tmp_path, capsys):
    """A spreadsheet or `joulery report` would choke on them."""
    sweep(out=tmp_path)
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["power_limit_watts"]) for row in rows] == [150.0, 205.0, 260.0]
    assert float(rows[-1]["energy_gain_percent"]) == 0.0
    frontier = Frontier.from_dict(json.loads((tmp_path / "frontier.json").read_text()))
    assert frontier.fastest.setting.power_limit_watts == 260.0
    assert main(["report", str(tmp_path / "frontier.json")]) == 0


def test_the_page_fetches_nothing_and_says_that_it_is_simulated(tmp_path, undrawn):
    """The page would be blank without a network, or pass for a measurement."""
    sweep("--gpus", "1,2,8", out=tmp_path)
    page = (tmp_path / "sweep.html").read_text()
    assert page.count("<figure") == 6
    assert "every figure here is simulated" in page
    assert page.count("(simulated)") >= 6
    for word in ("http://", "https://", "<script", "<link", "@import", "src="):
        assert word not in page


def test_a_repeated_sweep_runs_nothing_and_tells_the_same(tmp_path, capsys, failing):
    """Looking at the results again would take as long as the sweep."""
    sweep("--json", out=tmp_path)
    first = json.loads(capsys.readouterr().out)
    failing.update(dict.fromkeys(range(1, 100), AssertionError("ran again")))
    assert sweep("--json", out=tmp_path) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_an_interrupted_sweep_goes_on_to_the_same_figures(tmp_path, capsys, failing):
    """Hours of runs would be lost to a Ctrl-C, or come out otherwise than in one go."""
    sweep("--json", out=tmp_path / "whole")
    whole = json.loads(capsys.readouterr().out)
    failing[6 + 3] = KeyboardInterrupt()
    assert sweep("--json", out=tmp_path / "parts") == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "interrupted after 2 of 6 runs" in printed.err
    assert "run the same command again" in printed.err
    assert sweep("--json", out=tmp_path / "parts") == 0
    parts = json.loads(capsys.readouterr().out)
    for ours, theirs in zip(parts["settings"], whole["settings"], strict=True):
        assert ours["seconds"] == pytest.approx(theirs["seconds"], rel=1e-9)
        assert ours["joules"] == pytest.approx(theirs["joules"], rel=1e-4)


def test_failed_runs_are_reported_and_make_the_exit_code_1(tmp_path, capsys, failing):
    """A script would take a broken sweep for a good one."""
    failing[2] = 9
    assert sweep("--json", out=tmp_path) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["complete"] is False
    assert [run["exit_code"] for run in printed["failed"]] == [9]
    assert sweep("--json", out=tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["failed"] == []


def test_when_no_run_succeeds_the_log_is_named(tmp_path, capsys, failing):
    """A user would not know where to look."""
    failing.update(dict.fromkeys(range(1, 7), 1))
    assert sweep(out=tmp_path) == 1
    printed = capsys.readouterr().err
    assert "no run succeeded" in printed
    assert "output.log" in printed


def test_without_the_default_there_is_one_chart_and_a_word(tmp_path, capsys, failing):
    """Drawing gains over nothing would crash after the whole sweep."""
    failing.update({1: 1, 4: 1})
    assert sweep(out=tmp_path) == 1
    assert "No run at the default 260 W succeeded" in capsys.readouterr().out
    assert (tmp_path / "sweep.html").read_text().count("<figure") == 1


def test_another_plan_in_the_same_folder_is_refused(tmp_path, capsys, undrawn):
    """Runs of two sweeps would be mixed."""
    sweep(out=tmp_path)
    capsys.readouterr()
    assert sweep("--seed", "1", out=tmp_path) == 2
    printed = capsys.readouterr().err
    assert "other work" in printed
    assert "--out" in printed


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--repeat", "0"], "--repeat: '0' is not a whole number"),
        (["--repeat", "two"], "not a whole number"),
        (["--gpus", "0"], "--gpus: '0' is not a whole number"),
        (["--gpus", "9"], "this node has 8 GPUs"),
        (["--gpus", "1,,2"], "not a whole number"),
        (["--limits", "90:260:10"], "90 W is outside"),
        (["--limits", "300"], "300 W is outside"),
        (["--limits", "watts"], "not a number"),
        (["--seed", "-1"], "--seed: '-1' is not a whole number"),
        (["--simulate", "dgx"], "no simulated node 'dgx'"),
        (["--", "true"], "runs its own job"),
    ],
)
def test_wrong_use_is_reported_in_a_line(tmp_path, capsys, more, word):
    """A slip of the keyboard would cost a night of runs."""
    command = [*SMALL[:3], "--out", str(tmp_path / "out"), *more]
    assert main(command) == 2
    printed = capsys.readouterr().err
    assert word in printed
    assert "→" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [[], ["--"], ["--", ""]])
def test_a_sweep_needs_a_command(capsys, command):
    """It would sweep nothing at all."""
    assert main(["sweep", "--limits", "100:200:50", *command]) == 2
    assert "no command given" in capsys.readouterr().err


def test_an_unknown_program_is_reported_before_anything_else(capsys):
    """Every run would fail."""
    assert main(["sweep", "--", "no-such-program-here"]) == 127
    assert "no-such-program-here" in capsys.readouterr().err


def test_without_a_gpu_it_says_how_to_simulate(tmp_path, capsys, monkeypatch):
    """A newcomer would give up."""
    monkeypatch.setattr("joulery.metering._attribution.my_devices", lambda *_: [])
    assert main(["sweep", "--out", str(tmp_path / "out"), "--", "true"]) == 3
    assert "--simulate rtx6000x8" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_reported_first(tmp_path, capsys):
    """The sweep would run for hours and then fail to write."""
    (tmp_path / "file").write_text("")
    assert sweep(out=tmp_path / "file" / "out") == 2
    assert "--out" in capsys.readouterr().err


def test_without_matplotlib_everything_else_is_written(tmp_path, capsys, undrawn):
    """A missing extra would cost the whole report."""
    assert sweep(out=tmp_path) == 0
    assert "joulery[plots]" in capsys.readouterr().out
    assert (tmp_path / "sweep.html").exists()
