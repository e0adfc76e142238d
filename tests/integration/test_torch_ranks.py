"""Ranks of torch.distributed train a wrapped model and tune together."""

import importlib.util
import json
import os

import pytest

from joulery.errors import NotPossibleHereError
from support.forked_ranks import ForkedRanks

RANK = """
import json, sys
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from joulery import Run
from joulery.integrations.torch_ranks import torch_ranks
from support.training_loop import TrainingLoop

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)
group = torch_ranks()

def trained(wrapper):
    model = wrapper(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop, limits = TrainingLoop(seed=rank), []
    run = Run(max_epochs=2, devices=loop.gpus, process_group=group)

    def step():
        model(torch.full((3, 4), 1.0 + rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        limits.append(loop.limit_watts)

    for _ in run.epochs():
        for _ in run.steps(range(60)):
            loop.run(step, steps=1)
    return run.tuning_skipped, limits, run.result and run.result.chosen.joules

mesh = dist.init_device_mesh("cpu", (ranks,))
found = [trained(DistributedDataParallel), trained(lambda model: fully_shard(model, mesh=mesh))]
dist.destroy_process_group()
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def _torch():
    if importlib.util.find_spec("torch") is None and os.environ.get("CI") != "true":
        pytest.skip("torch is not installed")


@pytest.mark.slow
def test_ranks_take_one_decision(tmp_path):
    """Ranks that decide for themselves would wait for each other at different limits."""
    outputs = ForkedRanks(RANK, 2, tmp_path).outputs()
    found = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    assert found[0] == found[1]
    for skipped, limits, joules in found[0]:  # with DistributedDataParallel, and fully sharded
        assert skipped is None
        assert len(set(limits)) > 1, "limits were tried"
        assert joules > 0


def test_without_a_process_group_it_says_what_to_do():
    """A traceback out of torch would not tell what was forgotten."""
    from joulery.integrations.torch_ranks import torch_ranks

    with pytest.raises(NotPossibleHereError, match="no process group"):
        torch_ranks()
