"""`joulery sweep` end to end: real processes and binding, emulated boards."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from joulery.testing.emulator import EmulatedNode
from support import emulated_load

WORK = [sys.executable, emulated_load.__file__, "--board", "0", "--steps", "20"]
SHOW = "import os; print(os.environ['JOULERY_GPUS'], os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.fixture
def node(tmp_path):
    """Two emulated boards that other processes can see."""
    with EmulatedNode(["V100", "V100"], directory=tmp_path) as emulated:
        yield emulated


def sweep(node, out, *arguments):
    """The command line for a sweep on the emulated node, started but not awaited."""
    state = {"JOULERY_GOVERNOR": "", "JOULERY_GOVERNOR_STATE": str(out.parent / "governor")}
    return subprocess.Popen(
        [sys.executable, "-m", "joulery", "sweep", "--out", str(out), *arguments],
        env={**node.env, **state},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def limits(node):
    """Limits in force."""
    return [node.power_limit(index) for index in (0, 1)]


def test_a_command_is_swept(node, tmp_path):
    """If this fails, a real sweep measures the wrong thing or leaves limits behind."""
    before = limits(node)
    swept = sweep(
        node, tmp_path / "out", "--json", "--limits", "120,250", "--repeat", "1", "--", *WORK
    )
    reported, errors = swept.communicate(timeout=60)
    assert swept.returncode == 0, errors
    document = json.loads(reported)
    assert document["origin"] in ("simulated", "assumed")
    slow, fast = document["settings"]
    assert (slow["power_limit_watts"], fast["power_limit_watts"]) == (120.0, 250.0)
    assert slow["seconds"] > fast["seconds"]
    assert slow["gpu_joules"] > 0
    assert limits(node) == before


def test_the_command_sees_the_boards_it_may_use(node, tmp_path):
    """If this fails, boards that count as idle do the work."""
    swept = sweep(
        node,
        tmp_path / "out",
        *("--limits", "250", "--repeat", "1", "--gpus", "1,2"),
        *("--", sys.executable, "-c", SHOW),
    )
    _, errors = swept.communicate(timeout=60)
    assert swept.returncode == 0, errors
    lines = (tmp_path / "out" / "output.log").read_text().splitlines()
    assert [line for line in lines if not line.startswith("---")] == ["2 0,1", "1 0"]


def test_without_rights_it_ends_with_3_before_the_first_run(node, tmp_path):
    """If this fails, a user waits for a run only to hear that limits cannot be set."""
    node.deny(None)
    marker = tmp_path / "ran"
    swept = sweep(node, tmp_path / "out", "--limits", "120,250", "--", "touch", str(marker))
    _, errors = swept.communicate(timeout=60)
    assert swept.returncode == 3, errors
    assert "Permissions" in errors
    assert "→" in errors
    assert not marker.exists()


# Ends at once the first time, under the default limit, and stays the second time.
STAY = """
import pathlib, sys, time
first, second = map(pathlib.Path, sys.argv[1:])
if not first.exists():
    first.touch()
    sys.exit()
second.touch()
time.sleep(120)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_limits_come_back_when_the_sweep_is_stopped(node, tmp_path, number):
    """If this fails, boards stay slow for everybody after a sweep that was stopped."""
    before = limits(node)
    marks = [tmp_path / "first", tmp_path / "second"]
    command = [sys.executable, "-c", STAY, *map(str, marks)]
    swept = sweep(node, tmp_path / "out", "--limits", "120", "--repeat", "1", "--", *command)
    try:
        wait_until(marks[1].exists)
        assert limits(node) == [120.0, 120.0]
        # Ctrl-C reaches everything in the terminal, a kill only the one process.
        stop = os.killpg if number == signal.SIGINT else os.kill
        stop(swept.pid, number)
        _, errors = swept.communicate(timeout=60)
        wait_until(lambda: limits(node) == before)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(swept.pid, signal.SIGKILL)
    if number != signal.SIGKILL:
        assert swept.returncode == 130, errors
        assert "interrupted after 1 of 2 runs" in errors


def wait_until(condition):
    """Wait for something that is about to happen."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
