"""`joulery run -- python train.py` tunes a PyTorch script that knows nothing of Joulery."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from joulery.testing.emulator import EmulatedNode
from support.torch_on_use import needs_torch

pytestmark = [pytest.mark.slow, needs_torch]

# Four batches are accumulated per step, and two optimizers make a step together. Only the lines
# that load the emulated board are there for the test.
SCRIPT = """
import sys, time
import torch
from joulery.hardware import catalog
from joulery.testing.emulator import EmulatedNode

node = EmulatedNode.attached()
node.set_load(0, catalog.workload("resnet50", node.specs[0].board).scaled(0.05))
torch.set_num_threads(1)
body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizers = [torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(head.parameters())]
end, steps = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for _ in range(4):
        head(body(torch.randn(2, 4))).square().mean().backward()
    node.wait_steps(0, 1)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    steps += 1
print("steps", steps)
"""
# Before the script of the tutorial: its boards are busy, and each step waits for one of theirs.
RANK_LOAD = """
import os
from torch.optim.optimizer import register_optimizer_step_pre_hook
from joulery.hardware import catalog
from joulery.testing.emulator import EmulatedNode

node, local = EmulatedNode.attached(), int(os.environ["LOCAL_RANK"])
node.set_load(local, catalog.workload("resnet50", node.specs[local].board).scaled(0.05))
register_optimizer_step_pre_hook(lambda *_: node.wait_steps(local, 1))
"""
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "torchrun.md"
OWN_STARTUP = "import os; os.environ['STARTED_BY_USER'] = 'yes'"
OTHER = """
import os, sys, types
sys.modules["jax"] = types.ModuleType("jax")
print("startup", os.environ.get("STARTED_BY_USER"))
"""


def _run(node, folder, script, *arguments, launcher=()):
    (folder / "train.py").write_text(script, encoding="utf-8")
    own = folder / "own"
    own.mkdir(exist_ok=True)
    (own / "sitecustomize.py").write_text(OWN_STARTUP, encoding="utf-8")
    environment = {**node.env, "XDG_DATA_HOME": str(folder)}
    environment["PYTHONPATH"] = f"{own}:{environment.get('PYTHONPATH', '')}"
    options = ("--json", "--objective", "least-energy:slowdown=5%")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "joulery", "run", *options, "--"),
            *(sys.executable, *launcher, str(folder / "train.py"), *arguments),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout), finished.stderr


def test_an_unmodified_script_is_tuned(tmp_path):
    """If this fails, `joulery run` only measures scripts, or counts batches for steps."""
    with EmulatedNode(["V100"], directory=tmp_path) as node:
        document, stderr = _run(node, tmp_path, SCRIPT, "12")
        assert node.power_limit(0) == 250  # the original limit is back
    (run,) = document["runs"]
    steps = int(stderr.split("steps ")[1].split()[0])
    assert run["steps"] == steps
    assert run["tuning_skipped"] is None
    assert run["result"]["chosen"]["setting"]["power_limit_watts"] < 250


def test_a_script_of_another_framework_is_told_the_line_and_keeps_its_own_startup(tmp_path):
    """If this fails, users of other frameworks think that they are tuned, or lose their startup."""
    with EmulatedNode(["V100"], directory=tmp_path) as node:
        document, stderr = _run(node, tmp_path, OTHER)
    assert document["runs"] == []
    assert "JaxStep" in document["hints"][0]
    assert "startup yes" in stderr


def test_ranks_of_an_unmodified_script_are_tuned_together(tmp_path):
    """If this fails, ranks of a script wait for each other for ever, or at different limits."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    page = TUTORIAL.read_text(encoding="utf-8")
    script = page.split('```python title="train_ddp.py"\n')[1].split("```")[0]
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port)
    with EmulatedNode(["V100", "V100"], directory=tmp_path) as node:
        document, _ = _run(node, tmp_path, RANK_LOAD + script, "400", launcher=launcher)
        assert [node.power_limit(board) for board in range(2)] == [250, 250]
    (run,) = document["runs"]  # of both ranks
    assert run["tuning_skipped"] is None
    assert run["steps"] == 400
    assert run["result"]["chosen"]["setting"]["power_limit_watts"] < 250
    boards = [device["joules"] for device in document["devices"] if device["kind"] == "gpu"]
    assert boards[0] == pytest.approx(boards[1], rel=0.1)  # both are in the total
    assert document["joules"] > 0.95 * sum(boards)
