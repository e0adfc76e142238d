"""Which boards `joulery measure` counts: real processes and binding, emulated boards."""

import json
import subprocess
import sys

import pytest

from joulery.testing.emulator import EmulatedNode


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
