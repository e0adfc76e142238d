"""`joulery measure` and `doctor` end to end: real processes and binding, emulated boards."""

import json
import subprocess
import sys

import pytest

from joulery.testing.emulator import EmulatedNode
from support import emulated_load


@pytest.fixture
def node(tmp_path):
    """Two emulated boards that other processes can see."""
    with EmulatedNode(["A100", "V100"], directory=tmp_path) as emulated:
        yield emulated


def joulery(node, *arguments, **environment):
    """Run the command line on the emulated node; what it printed."""
    finished = subprocess.run(
        [sys.executable, "-m", "joulery", *arguments],
        env={**node.env, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


WORK = [sys.executable, emulated_load.__file__, "--board", "0", "--steps", "3"]


def test_measures_what_a_command_used(node):
    """If this fails, `joulery measure` prints another energy than the boards really used."""
    before = [node.true_joules(board) for board in (0, 1)]
    reported = joulery(node, "measure", "--json", "--device", "gpu", "--", *WORK)
    used = [node.true_joules(board) - start for board, start in zip((0, 1), before, strict=True)]
    measured = [device["joules"] for device in reported["devices"]]
    # The boards also idle while the interpreter starts and ends, outside the window.
    assert 0 < measured[0] <= used[0] * 1.02
    assert measured[0] > 3 * measured[1] > 0
    assert reported["joules"] == pytest.approx(sum(measured))
    assert reported["provenance"] == "simulated"


def test_leaves_out_boards_that_are_hidden(node):
    """If this fails, a job is charged for boards that it may not use."""
    reported = joulery(node, "measure", "--json", "--", "true", CUDA_VISIBLE_DEVICES="1")
    gpus = [device["name"] for device in reported["devices"] if device["kind"] == "gpu"]
    assert len(gpus) == 1
    assert "V100" in gpus[0]


def test_ranks_of_one_node_count_each_board_once(node):
    """If this fails, the ranks' energies add up to more or less than the node's."""
    ids = []
    for rank in ("0", "1"):
        reported = joulery(
            node, "measure", "--json", "--", "true", LOCAL_RANK=rank, LOCAL_WORLD_SIZE="2"
        )
        ids += [device["id"] for device in reported["devices"]]
    assert len(ids) == len(set(ids))
    assert sum(name.startswith("GPU-") for name in ids) == 2


def test_the_doctor_sees_the_boards(node):
    """If this fails, users cannot find out what their machine can measure and change."""
    reported = joulery(node, "doctor", "--json")
    gpus = [device for device in reported["devices"] if device["kind"] == "gpu"]
    assert [gpu["power_limit"]["current_watts"] for gpu in gpus] == [400.0, 250.0]
    assert all("energy" in gpu["capabilities"] for gpu in gpus)
    assert all(gpu["provenance"] == "simulated" for gpu in gpus)
