"""A policy of two plain methods is reached by runs, commands and simulations."""

import json

import pytest

from joulery.cli import main
from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.jobs.policies import _registry as registry, make_policy, register_policy
from joulery.simulate import simulate
from joulery.testing.workloads import made_up_workload
from joulery.training import DecisionService, Run
from support.policies import EpsilonGreedy

BOARD = catalog.board("V100")


@pytest.fixture(autouse=True)
def _registered(tmp_path, monkeypatch):
    """The example policy, registered for one test."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    register_policy(EpsilonGreedy)


def _train(store, nights):
    """Nightly runs of a job whose policy is the plug-in; the batch sizes that were run."""
    clock = VirtualClock()
    gpu, work = SimulatedGpu(BOARD, clock), catalog.workload("resnet50", BOARD)
    sizes = []
    for _ in range(nights):
        run = Run(
            "nightly",
            batch_sizes=[64, 128, 256],
            default_batch_size=128,
            target=0.9,
            devices=[gpu],
            store=DecisionService(store, policy="epsilon-greedy"),
        )
        sizes.append(run.batch_size)
        for epoch in run.epochs():
            for _ in run.steps(range(4)):
                gpu.run(work)
            run.report(0.95 if epoch >= 2 else 0.5)
        assert run.target_reached
    return sizes


def test_runs_and_commands_reach_a_plug_in(tmp_path, capsys):
    """A policy that was written would decide for nothing, and its reason would show nowhere."""
    store = tmp_path / "store.sqlite"
    sizes = _train(store, 4)
    assert sizes[0] == 128
    capsys.readouterr()
    assert main(["jobs", "show", "nightly", "--store", str(store), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "epsilon-greedy" in json.dumps(document)
    assert EpsilonGreedy.reasons[0] in json.dumps(document)


def test_a_job_is_shown_where_its_policy_is_not_known(tmp_path, capsys, monkeypatch):
    """Jobs of a plug-in could not be listed from a shell that lacks it."""
    store = tmp_path / "store.sqlite"
    _train(store, 2)
    monkeypatch.setattr(registry, "_registered", {})
    for command in (["jobs", "show", "nightly"], ["report", "--job", "nightly"]):
        assert main([*command, "--store", str(store), "--json"]) == 0
    assert "nightly" in capsys.readouterr().out


def test_simulations_take_it():
    """A plug-in could not be compared with other policies before it is used."""
    log = simulate([made_up_workload()], make_policy("epsilon-greedy"), 60, range(6))
    default = simulate([made_up_workload()], make_policy("default"), 60, range(6))
    assert log.cost[:, -10:].mean() < default.cost[:, -10:].mean()
