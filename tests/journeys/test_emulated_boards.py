"""Somebody without a GPU tries things on emulated boards."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from joulery.hardware import catalog, clock_states

EMULATE = [sys.executable, "-m", "joulery", "emulate"]
MEASURE = [sys.executable, "-m", "joulery", "measure", "--json", "--device", "gpu", "--"]
COMPUTE = "import time\nend = time.process_time() + 1.5\nwhile time.process_time() < end: pass"


def test_a_measurement_agrees_with_what_the_boards_did():
    """A newcomer's first measurement shows idle boards, or misses the true energy."""
    command = [*EMULATE, "--json", "2xv100", "--", *MEASURE, sys.executable, "-c", COMPUTE]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    truth = json.loads(process.stdout)
    measured = json.loads(process.stderr[process.stderr.index("{") :])
    joules = sum(board["joules"] for board in truth["boards"])
    assert truth["busy_seconds"] >= 1.0
    assert len(measured["devices"]) == 2
    # The boards idle for a moment before and after what was measured.
    assert 0.5 * joules < measured["joules"] < 1.02 * joules
    assert measured["joules"] / measured["seconds"] > 2 * 100
    # What it says of itself fits together.
    board = catalog.board("v100")
    states = clock_states(board, catalog.workload("resnet50", board))
    busy = [state.watts for state in states if state.watts <= board.default_limit_watts][-1]
    idle_seconds = truth["seconds"] - truth["busy_seconds"]
    account = truth["busy_seconds"] * busy + idle_seconds * board.idle_watts
    assert joules == pytest.approx(2 * account, rel=0.25)


def test_boards_that_a_self_test_drives_are_busy_too(tmp_path):
    """The emulator says "busy for 0 s" beside the energy of a board that worked."""
    words = [*EMULATE, "--json", "a100", "--", sys.executable, "-m", "joulery", "doctor"]
    words += ["--selftest", "--duration", "5s", "--out", str(tmp_path / "selftest.json")]
    process = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    truth = json.loads(process.stdout)
    # At work for all but the idle phase and half of the bursts.
    assert 0.5 * 5.0 < truth["busy_seconds"] < truth["seconds"]


@pytest.mark.parametrize(("limit_watts", "least_share"), [(250, 0.0), (100, 0.2)])
def test_a_lower_limit_slows_the_program_down(limit_watts, least_share):
    """A limit that costs no time teaches people that the lowest is always the best."""
    program = (
        "import pynvml, time\npynvml.nvmlInit()\nhandle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        f"pynvml.nvmlDeviceSetPowerManagementLimit(handle, {limit_watts}000)\n"
        "end = time.process_time() + 1.0\nwhile time.process_time() < end: pass"
    )
    command = [*EMULATE, "--json", "--workload", "bert", "v100"]
    process = subprocess.run(
        [*command, "--", sys.executable, "-c", program], capture_output=True, timeout=60, check=True
    )
    document = json.loads(process.stdout)
    share = document["paused_seconds"] / document["busy_seconds"]
    assert least_share <= share <= least_share + 0.4


def test_the_program_continues_when_the_emulator_is_killed():
    """A program stays stopped for good because its emulator was killed at the wrong moment."""
    program = (
        "import os, pynvml, time\npynvml.nvmlInit()\n"
        "handle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "pynvml.nvmlDeviceSetPowerManagementLimit(handle, 100000)\nprint(os.getpid(), flush=True)\n"
        "end = time.process_time() + 300\nwhile time.process_time() < end: pass"
    )
    command = [*EMULATE, "--workload", "bert", "v100", "--", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as emulator:
        pid = int(emulator.stdout.readline())
        try:
            time.sleep(1.0)
            emulator.kill()
            emulator.wait()
            deadline = time.monotonic() + 60
            while _state(pid) == "T" and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.5)
            assert _state(pid) in "RS"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("boards", ["a1000", "", "17xv100", "0xv100"])
def test_wrong_boards_are_refused(boards):
    """A typing error ends in a traceback, or in a node without boards."""
    command = [*EMULATE, boards, "--", "true"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 2
    assert "→" in process.stderr


def _state(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]


def test_what_a_command_says_of_its_wrong_use_is_not_buried():
    """Somebody looks for a typo below a table of joules."""
    wrong = [sys.executable, "-c", "import sys; sys.stderr.write('wrong'); sys.exit(2)"]
    process = subprocess.run(
        [*EMULATE, "v100", "--", *wrong], capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.returncode, process.stdout, process.stderr) == (2, "", "wrong")


def test_more_boards_than_a_node_has_are_refused_by_their_number():
    """Somebody is told that there is no accelerator of that name."""
    words = [*EMULATE, "1000xv100", "--", sys.executable, "-c", ""]
    process = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 2
    assert "at most 16" in process.stderr


def _nvidia_smi(*words, boards="a100,v100"):
    command = [*EMULATE, "--json", boards, "--", *words]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(process.stdout), process.stderr


def test_nvidia_smi_shows_the_boards():
    """The first thing that somebody with GPUs types is not found, or shows nothing of them."""
    truth, text = _nvidia_smi("nvidia-smi")
    assert truth["exit_code"] == 0
    assert "emulated by Joulery" in text
    for board in truth["boards"]:
        row = next(line for line in text.splitlines() if board["name"] in line)
        assert f"{board['limit_watts']:.0f} W" in row
    _, text = _nvidia_smi("nvidia-smi", "-L", "-i", "1")
    assert "GPU 1: " in text
    assert "(UUID: GPU-" in text
    assert "GPU 0" not in text


def test_nvidia_smi_sets_the_limit():
    """nvidia-smi reports success and the limit is what it was."""
    truth, text = _nvidia_smi("nvidia-smi", "-i", "0", "-pl", "200")
    assert truth["exit_code"] == 0
    assert "set to 200.00 W from 400.00 W" in text
    limits = [board["limit_watts"] for board in truth["boards"]]
    assert limits == [200, truth["boards"][1]["original_limit_watts"]]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-pl", "20"], 2, "takes 100 to 400 W"),
        (["-i", "7"], 2, "Invalid Argument"),
        (["-i", "first"], 2, "no indices"),
        (["-q", "-d", "CLOCK"], 2, "understands only"),
        (["--help"], 0, "[-pl WATTS]"),  # CodeCarbon asks so whether there are boards
    ],
)
def test_nvidia_smi_refuses_what_it_does_not_do(words, code, message):
    """A script goes on as if a limit were set that is not."""
    truth, text = _nvidia_smi("nvidia-smi", *words, boards="a100")
    assert truth["exit_code"] == code
    assert message in text
    assert truth["boards"][0]["limit_watts"] == 400
