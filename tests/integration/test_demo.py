import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys

import pytest

from joulery.cli import main
from joulery.frontier import Frontier

QUICK = ["demo", "--epochs", "2", "--limits", "120:300:60"]


def _demo(folder, *options):
    return main([*QUICK, "--out", str(folder), *options])


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the demonstration prints, and the folder that it writes."""
    folder, output = tmp_path_factory.mktemp("demo") / "new" / "folder", io.StringIO()
    with contextlib.redirect_stdout(output):
        assert _demo(folder) == 0
    return output.getvalue(), folder


def test_story_for_people(told):
    """The first thing a new user sees: train, sweep, frontier, choice, savings."""
    text, _ = told
    for heading in ("1. Train once", "2. Sweep", "3. The frontier", "4. Choose", "5. Train again"):
        assert heading in text
    assert "The second run saved" in text
    assert "SIMULATED" in text
    assert "\x1b" not in text
    assert max(map(len, text.split("Written:")[0].splitlines())) <= 80


def test_every_figure_of_energy_or_time_is_marked(told):
    """No paragraph or table may show joules, seconds or watts that pass for a measurement."""
    blocks = told[0].split("\n\n")
    with_figures = [block for block in blocks if re.search(r"\d (kJ|s|W)\b", block)]
    assert len(with_figures) >= 6
    assert [block for block in with_figures if "simulated" not in block.lower()] == []


def test_files_are_written(told):
    """The frontier goes to other commands as JSON, to people as page and picture."""
    _, folder = told
    frontier = Frontier.from_json((folder / "frontier.json").read_text())
    assert frontier.fastest.setting.device == "A40"
    assert {point.provenance.origin for point in frontier} == {"simulated"}
    assert "every figure here is simulated" in (folder / "frontier.html").read_text("utf-8")


def test_one_json_document_that_replays_from_its_seed(tmp_path, capsys):
    """Scripts read standard output as one document, the same whenever the seed is."""
    documents = []
    for _ in range(2):
        options = ("--json", "--seed", "5", "--objective", "least-energy:slowdown=10%")
        assert _demo(tmp_path, *options) == 0
        documents.append(capsys.readouterr().out)
    assert documents[0] == documents[1]
    document = json.loads(documents[0])
    assert document["origin"] == "simulated"
    assert document["objective"] == "least-energy:slowdown=10%"
    assert document["expected"]["time_lost_percent"] <= 10.0
    assert document["default"]["accuracy"] == document["retrained"]["accuracy"]
    assert all(os.path.exists(path) for path in document["files"])  # noqa: PTH110 - as printed


def test_without_matplotlib_the_rest_still_works(tmp_path, capsys, monkeypatch):
    """The core install has no matplotlib; one line says what is missing."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert _demo(tmp_path) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("No saved.png, frontier.png: matplotlib is not installed")
    assert "joulery[plots]" in last
    assert (tmp_path / "frontier.html").exists()
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "Voodoo2"], "Voodoo2"),
        (["--limits", "100:900:100"], "outside what A40 accepts"),
        (["--limits", "200:100:10"], "is empty"),
        (["--limits=-100:200:10"], "at least 0, not -100"),
        (["--limits", "many"], "not a number"),
        (["--epochs", "0"], "--epochs: '0'"),
        (["--epochs", "two"], "not a whole number"),
        (["--seed", "-1"], "--seed: '-1'"),
        (["--objective", "happiness"], "happiness"),
        (["--objective", "fastest:joules=1"], "no operating point"),
    ],
)
def test_wrong_use_is_one_line_and_a_remedy(tmp_path, capsys, options, said):
    """Bad input exits with 2 and says what to do, without a traceback."""
    assert _demo(tmp_path, *options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    problem, remedy = captured.err.splitlines()[-2:]
    assert said in problem
    assert remedy.strip()
    assert "Traceback" not in captured.err


def test_folder_that_cannot_be_made(tmp_path, capsys):
    """A file in the way is found before the training, not after."""
    (tmp_path / "taken").write_text("a file")
    assert _demo(tmp_path / "taken") == 2
    assert "cannot make" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "a file"


def test_a_port_that_is_taken_is_said_before_the_store_is_filled(tmp_path, capsys):
    """If this fails, a newcomer waits for a month of trainings that nobody can see."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        code = main(["demo", "--serve", "--listen", address, "--out", str(tmp_path)])
    assert code == 3
    error = capsys.readouterr().err
    assert address.rpartition(":")[2] in error
    assert "days" not in error
    assert not (tmp_path / "team.sqlite").exists()


def test_terminal_without_unicode(tmp_path, monkeypatch):
    """An ASCII terminal gets letters and question marks, never an encoding error."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert _demo(tmp_path) == 0
    sys.stdout.flush()
    assert b"D default 300 W" in raw.getvalue()


def test_starts_without_numpy_until_it_runs():
    """`joulery --help` must stay fast; the demo's own options must not load NumPy."""
    code = (
        "import sys, argparse; from joulery.cli import demo;"
        "demo.COMMAND.define(argparse.ArgumentParser());"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_results_of_a_sweep_are_not_overwritten(tmp_path, capsys):
    """If this fails, a look at the demonstration costs hours of measurements."""
    (tmp_path / "journal.jsonl").touch()
    (tmp_path / "frontier.json").write_text("measured")
    assert _demo(tmp_path) == 2
    assert "holds the results of a sweep" in capsys.readouterr().err
    assert (tmp_path / "frontier.json").read_text() == "measured"
