"""`joulery run` from end to end: a script that reports its steps, and one that does not."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from joulery.cli import main
from joulery.integrations.torch_optimizers import startup_hints
from joulery.testing.emulator import EmulatedNode

SCRIPT = """
import sys, time
import joulery
from joulery.hardware import catalog
from joulery.testing.emulator import EmulatedNode

node = EmulatedNode.attached()
node.set_load(0, catalog.workload("resnet50", node.specs[0].board).scaled(0.05))
run = joulery.Run("tested") if sys.argv[1] == "reports" else None
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    node.wait_steps(0, 1)
    if run:
        run.step()
if sys.argv[1] == "reports" and sys.argv[3:] == ["crash"]:
    raise SystemExit(7)
"""


def test_a_deadline_without_a_number_of_steps_is_refused_before_the_command_starts(capsys):
    """It was taken for one of each step, and the job was late."""
    command = ["run", "--objective", "least-energy:deadline=8h"]
    assert main([*command, "--", "false"]) == 2
    assert "--steps" in capsys.readouterr().err
    assert main([*command, "--steps", "100", "--", "false"]) == 1, "its own exit code"


@pytest.fixture
def node(tmp_path):
    """An emulated board, and the training script beside it."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    with EmulatedNode(["V100"], directory=tmp_path) as emulated:
        yield emulated


def run(node, tmp_path, *arguments):
    """`joulery run` over the script; exit code and what it reported."""
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "joulery", "run", "--json"),
            *("--objective", "least-energy:slowdown=5%", "--"),
            *(sys.executable, str(tmp_path / "train.py"), *arguments),
        ],
        env={**node.env, "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert finished.stdout, finished.stderr
    return finished.returncode, json.loads(finished.stdout)


def test_a_reporting_script_is_tuned_and_its_limit_given_back(node, tmp_path):
    """If this fails, `joulery run` tunes nothing, or leaves the board capped, or hides failure."""
    code, reported = run(node, tmp_path, "reports", "14", "crash")
    assert code == reported["exit_code"] == 7
    assert reported["runs"][0]["steps"] > 50
    assert reported["runs"][0]["tuning_skipped"] is None
    assert reported["observed_steps"] == [], "steps are reported, and guessed beside it"
    assert reported["runs"][0]["result"]["chosen"]["setting"]["power_limit_watts"] < 250
    assert node.power_limit(0) == 250


def test_a_silent_script_is_measured_and_left_alone(node, tmp_path):
    """If this fails, scripts that report nothing are changed behind their back."""
    code, reported = run(node, tmp_path, "silent", "3")
    assert code == 0
    assert reported["runs"] == []
    assert reported["joules"] > 100
    assert "joulery.Run" in reported["observed_steps"][0]["advice"]
    assert node.power_limit(0) == 250


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        (["-I"], "-I"),
        (["-uE"], "-E"),
        (["-X", "dev", "-S"], "-S"),
        (["-W", "ignore"], None),
        (["-Xdev", "train.py"], None),
        (["-m", "train"], None),
    ],
)
def test_options_that_hide_steps_are_named(options, culprit):
    """If this fails, `python -I` is told that its optimizer took no step."""
    hints = startup_hints(["/usr/bin/python3", *options, "train.py", "-I" * (culprit is None)])
    assert [hint.split()[1] for hint in hints] == ([culprit] if culprit else [])
    assert startup_hints(["torchrun", "-I"]) == startup_hints([]) == []


def test_a_run_waits_for_a_greener_start(tmp_path, capsys):
    """A run that may wait starts at once, or after its deadline."""
    now = time.time()
    start = now - now % 2 - 20
    values = [500.0 if start + 2 * n < now + 4 else 100.0 for n in range(40)]
    rows = [
        f"{datetime.fromtimestamp(start + 2 * n, UTC).isoformat()},{value}"
        for n, value in enumerate(values)
    ]
    signal = tmp_path / "forecast.csv"
    signal.write_text("\n".join(["timestamp,carbon", *rows, ""]))
    options = ("--when", "greener", "--deadline", "30s", "--takes", "5s", "--signal", str(signal))
    command = ["--", sys.executable, "-c", "import time; print(time.time())"]
    done = subprocess.run(
        [sys.executable, "-m", "joulery", "run", *options, *command],
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "less than at once" in done.stderr
    assert float(done.stdout) >= start + 2 * values.index(100.0)
    for wrong in (options[:2], options[2:], options[2:4], options[:4]):
        assert main(["run", *wrong, *command]) == 2
        assert "or none" in capsys.readouterr().err
    assert main(["run", *options[:3], "3s", *options[4:], *command]) == 2
    assert "do not fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ending", "said"),
    [("", "200 steps reported; "), ("os._exit(3)", "killed before it reported how many")],
)
def test_the_steps_of_a_run_without_a_gpu_are_counted(tmp_path, ending, said):
    """If this fails, `joulery run` says 1 step for 200."""
    script = f"import joulery, os\nrun = joulery.Run()\nfor _ in range(200): run.step()\n{ending}"
    finished = subprocess.run(
        [sys.executable, "-m", "joulery", "run", "--", sys.executable, "-c", script],
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path), "NVIDIA_VISIBLE_DEVICES": "none"},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert said in finished.stderr
