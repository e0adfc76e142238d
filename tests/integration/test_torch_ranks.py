"""Ranks of torch.distributed tune together."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from joulery.errors import NotPossibleHereError

RANK = """
import json, sys
import torch.distributed as dist
from joulery.integrations.torch_ranks import torch_ranks
from joulery.objectives import Cost
from joulery.testing.training import TrainingLoop

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)
loop = TrainingLoop(seed=rank)
limits = []
with loop.tuner(Cost(0.5, ranks * 250.0), process_group=torch_ranks()) as tuner:
    loop.run(lambda: (tuner.step(), limits.append(loop.limit_watts)), steps=300)
    failure = tuner.failure
dist.destroy_process_group()
print(json.dumps({"failure": str(failure) if failure else None, "limits": limits}))
"""


@pytest.fixture(autouse=True)
def _torch():
    if importlib.util.find_spec("torch") is None and os.environ.get("CI") != "true":
        pytest.skip("torch is not installed")


@pytest.mark.slow
def test_ranks_take_one_decision(tmp_path):
    """Ranks that decide for themselves would wait for each other at different limits."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), "2", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [job.communicate(timeout=90) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    found = [json.loads(output.splitlines()[-1]) for output, _ in ended]
    assert [each["failure"] for each in found] == [None, None]
    assert found[0]["limits"] == found[1]["limits"]
    assert len(set(found[0]["limits"])) > 1  # limits were tried


def test_without_a_process_group_it_says_what_to_do():
    """A traceback out of torch would not tell what was forgotten."""
    from joulery.integrations.torch_ranks import torch_ranks

    with pytest.raises(NotPossibleHereError, match="no process group"):
        torch_ranks()
