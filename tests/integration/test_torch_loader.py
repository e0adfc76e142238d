"""The loader that replaces Zeus's, with real torch on the processor and a simulated board."""

import json
import logging

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.integrations.torch import EnergyDataLoader
from joulery.training import Run
from support.forked_ranks import ForkedRanks
from support.torch_on_use import torch

BOARD = catalog.board("V100")
WORK = catalog.workload("resnet50", BOARD)


@pytest.fixture(autouse=True)
def _own_world(tmp_path, monkeypatch):
    """What one test learns must not reach another."""
    for name in ("DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("JOULERY_STORE", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data():
    """Points on a line with some noise."""
    torch.manual_seed(0)
    x = torch.randn(512, 4)
    y = x @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]]) + 0.01 * torch.randn(512, 1)
    return torch.utils.data.TensorDataset(x, y)


def train(loader, evaluation, gpu):
    """The loop of Listing 1; epochs trained and the sizes of batches."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    epochs, sizes = 0, set()
    for _ in loader.epochs():
        for x, y in loader:
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sizes.add(len(x))
            gpu.run(WORK.scaled(0.2 + len(x) / 256))
        with torch.no_grad():
            losses = [float(((model(x) - y) ** 2).mean()) for x, y in evaluation]
        loader.report_metric(sum(losses) / len(losses), higher_is_better_metric=False)
        epochs += 1
    return epochs, sizes


def test_recurring_trainings_of_a_real_model_choose_other_batch_sizes(data, tmp_path):
    """If this fails, the loader trains what it was not reported to, or learns nothing."""
    clock = VirtualClock()
    gpu = SimulatedGpu(BOARD, clock)
    evaluation = EnergyDataLoader(data, 256)
    chosen = []
    for _ in range(5):
        run = Run(
            "line",
            batch_sizes=[16, 32, 64, 128],
            default_batch_size=128,
            target=0.02,
            higher_is_better=False,
            max_epochs=80,
            devices=[gpu],
            store=tmp_path / "s.sqlite",
        )
        loader = EnergyDataLoader(data, max_epochs=80, run=run, shuffle=True)
        size = loader.batch_size
        assert len(loader) == 512 // size
        epochs, sizes = train(loader, evaluation, gpu)
        assert sizes == {size}
        assert 0 < epochs <= 80
        chosen.append(size)
    assert chosen[0] == 128
    assert len(set(chosen)) > 1
    assert evaluation.run is None
    assert len(evaluation) == 2


def test_without_a_board_it_is_a_loader_like_any_other(data, caplog, monkeypatch):
    """If this fails, scripts break where there is nothing to measure."""
    monkeypatch.setattr("joulery.metering._attribution.my_devices", lambda *_: [])
    loader = EnergyDataLoader(
        data, 64, 3, 0.5, name="job", batch_sizes=[32, 64], num_workers=0, drop_last=True
    )
    with caplog.at_level(logging.WARNING, "joulery"):
        seen = [len(x) for _ in loader.epochs() for x, _ in loader]
    assert seen == [64] * 24
    assert loader.num_workers == 0
    assert loader.dataset is data
    assert loader.drop_last


def test_a_lower_metric_ends_training_where_it_is_better(data, monkeypatch):
    """If this fails, error rates never reach their target."""
    monkeypatch.setattr("joulery.metering._attribution.my_devices", lambda *_: [])
    loader = EnergyDataLoader(data, 64, 10, 0.5)
    done = 0
    for _ in loader.epochs():
        done += 1
        loader.report_metric(1.0 / done, higher_is_better_metric=False)
    assert done == 2


RANK = """
import json, sys
import torch, torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset
from joulery.clock import VirtualClock
from joulery.hardware import catalog
from joulery.hardware import SimulatedGpu
from joulery.integrations.torch import EnergyDataLoader
from joulery.integrations.torch_ranks import torch_ranks
from joulery.training._run import Run

rank, folder = int(sys.argv[1]), sys.argv[3]
dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
board = catalog.board("V100")
work = catalog.workload("resnet50", board)
clock = VirtualClock()
gpu = SimulatedGpu(board, clock, index=rank)
run = Run(
    "ranks", batch_sizes=[16, 32], default_batch_size=32, target=0.9, max_epochs=9, devices=[gpu],
    process_group=torch_ranks(), store=f"{folder}/s.sqlite",
)
data = TensorDataset(torch.arange(64, dtype=torch.float32)[:, None])
loader = EnergyDataLoader(data, max_epochs=9, run=run, shuffle=True)
epochs, order = 0, []
for epoch in loader.epochs():
    for (x,) in loader:
        order.append((epoch, len(x), x.flatten().tolist()))
        gpu.run(work)
    epochs += 1
    if rank == 0:  # validation on one rank is enough
        loader.report_metric(0.5 * epochs)
sampled = isinstance(loader.sampler, DistributedSampler)
print(json.dumps([rank, epochs, [run.batch_size, loader.batch_size], sampled, order]))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_share_batches_decide_together_and_end_together(tmp_path):
    """If this fails, ranks train different batch sizes, or one waits for ever for another."""
    outputs = ForkedRanks(RANK, 2, tmp_path).outputs()
    found = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    first, second = found
    assert first[1] == second[1] == 2
    assert first[2] == second[2] == [32, 16]
    assert first[3]
    for epoch in range(2):
        seen = [
            value for _, _, _, _, order in found for e, _, x in order for value in x if e == epoch
        ]
        assert sorted(seen) == [float(value) for value in range(64)]
    assert [x for e, _, x in first[4] if e == 0] != [x for e, _, x in first[4] if e == 1]

    from joulery.client import open_backend
    from joulery.jobs.policies import RunEnd

    backend = open_backend(tmp_path / "s.sqlite")
    (job,) = backend.jobs()[0]
    (entry,) = backend.decisions(job.id)[0]
    backend.close()
    assert job.device == "V100 × 2"
    assert job.definition.job.cost.max_watts == 500.0
    assert (entry.outcome.end, entry.outcome.epochs) == (RunEnd.REACHED, 2)
    assert entry.outcome.joules > 100.0
