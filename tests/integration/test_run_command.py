"""`joulery run` over scripts that report no steps, hide them, wait for a start, or have no GPU."""

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
import time
from joulery.hardware import catalog
from joulery.testing.emulator import EmulatedNode

node = EmulatedNode.attached()
node.set_load(0, catalog.workload("resnet50", node.specs[0].board).scaled(0.05))
end = time.monotonic() + 3.0
while time.monotonic() < end:
    node.wait_steps(0, 1)
"""


def test_a_silent_script_is_measured_and_left_alone(tmp_path):
    """If this fails, scripts that report nothing are changed behind their back."""
    options = ("--json", "--objective", "least-energy:slowdown=5%")
    with EmulatedNode(["V100"], directory=tmp_path) as node:
        finished = subprocess.run(
            [
                *(sys.executable, "-m", "joulery", "run", *options, "--"),
                *(sys.executable, "-c", SCRIPT),
            ],
            env={**node.env, "XDG_DATA_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=90,
        )
        assert node.power_limit(0) == 250
    reported = json.loads(finished.stdout)
    assert reported["runs"] == []
    assert reported["joules"] > 100
    assert "joulery.Run" in reported["observed_steps"][0]["advice"]


def _run_lines(folder, script):
    """What ``joulery run`` says of a script on an emulated board."""
    with EmulatedNode(["V100"], directory=folder) as node:
        finished = subprocess.run(
            [sys.executable, "-m", "joulery", "run", "--", sys.executable, "-c", script],
            env={**node.env, "XDG_DATA_HOME": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
    return finished.stderr


@pytest.mark.parametrize(
    ("argument", "label"),
    [("", "cost:eta=0.5"), ("objective='least-energy:slowdown=5%'", "least-energy:slowdown=5%")],
)
def test_the_objective_of_a_run_is_named_beside_its_choice(tmp_path, argument, label):
    """If this fails, a limit that was chosen for the default passes for one of no slowdown."""
    script = f"import joulery\nrun = joulery.Run({argument})\nfor _ in range(200): run.step()"
    assert f"200 steps reported, tuned for {label}; " in _run_lines(tmp_path, script)


@pytest.mark.parametrize("code", [0, 7])
def test_a_script_that_fails_is_not_told_to_report_its_steps(tmp_path, code):
    """If this fails, a crash is followed by advice on something else."""
    said = _run_lines(tmp_path, f"raise SystemExit({code})")
    assert f"exit code {code}" in said
    assert ("report them through joulery.Run" in said) == (code == 0)


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
