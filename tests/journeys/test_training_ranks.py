"""Train on two nodes of two boards each, and see the energy of the whole job everywhere."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from joulery.testing.emulator import EmulatedNode
from support.torch_on_use import needs_torch

pytestmark = [pytest.mark.slow, needs_torch]

SCRIPT = Path(__file__).parents[1] / "support" / "ranks.py"


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _documents(folder, names):
    return {
        (name, rank): json.loads((folder / f"{name}-{rank}.json").read_text())
        for name in names
        for rank in range(4)
    }


def _fork(folder, names):
    """Train with each framework on forked ranks; documents by framework and rank."""
    with ExitStack() as stack:
        nodes = []
        for number in range(2):
            place = folder / f"node{number}"
            place.mkdir()
            nodes.append(stack.enter_context(EmulatedNode(["V100", "V100"], directory=place)))
        environment = {
            **nodes[0].env,
            "RANKS_STATES": os.pathsep.join(str(folder / f"node{n}" / "state") for n in range(2)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "JOULERY_GRID": "380",
            "XDG_DATA_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
        }
        finished = subprocess.run(
            [sys.executable, str(SCRIPT), str(folder), *names],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    assert finished.returncode == 0, finished.stderr[-5000:]
    assert "sync_dist" not in finished.stderr, "Lightning need not add up what is of all ranks"
    return _documents(folder, names)


def _check(document):
    """All boards of all nodes are counted once, and the CPU once per node."""
    boards = [device["joules"] for device in document["devices"] if device["kind"] == "gpu"]
    # On a busy machine ranks begin at different times, and the seconds are those of the longest.
    for joules, watts in zip(boards, document["true_watts"], strict=True):
        assert 0.6 * watts < joules / document["seconds"] < 1.06 * watts
    for first in (0, 2):  # of a node, measured by one rank
        shares = [
            figures[first + 1] / figures[first] for figures in (boards, document["true_watts"])
        ]
        assert shares[0] == pytest.approx(shares[1], rel=0.03)
    others = [device["id"] for device in document["devices"] if device["kind"] != "gpu"]
    assert len(others) == 2 * len(set(others)) > 0
    assert (document["boards"], document["nodes"]) == (4, 2)


def test_frameworks_show_the_energy_of_all_boards(tmp_path):
    """If this fails, the log of a framework shows a quarter of the energy of its job."""
    pytest.importorskip("transformers")
    loops, names = ["ddp", "fsdp"], ["accelerate", "transformers", "lightning"]
    documents = _fork(tmp_path, [*loops, *names])
    for (name, rank), document in documents.items():
        if name != "accelerate" or rank == 0:  # which calls trackers on the first rank only
            _check(document)
    for name in loops:
        assert "4 GPUs and CPU on 2 nodes" in documents[name, 0]["text"]
    for name in names:  # where people look: the last entry of the log
        document = documents[name, 0]
        shown = json.loads(document["text"])
        watts = shown["joulery/joules"] / shown["joulery/seconds"]
        assert watts == pytest.approx(document["mean_watts"], rel=0.4)
        assert (shown["joulery/boards"], shown["joulery/nodes"]) == (4, 2)
        assert shown["joulery/co2_grams"] == pytest.approx(380 * shown["joulery/kwh"])
        assert "joulery/energy_saving" not in shown
    assert _scalars(tmp_path / "board") >= {"train/joulery/joules", "train/joulery/kwh"}


def _scalars(folder):
    """Names of the scalars in the event files of TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return set(events.Tags()["scalars"])
