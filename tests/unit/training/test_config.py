"""Settings of a run: wrong ones are refused before training begins."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import InvalidValueError
from joulery.hardware import SimulatedGpu, catalog
from joulery.integrations.files import FileSink
from joulery.objectives import Cost, LeastEnergy
from joulery.training import CallbackLoop, DecisionService, Run
from joulery.training._config import RunConfig, RunEnvironment, listed_limits

WRONG = [
    {"batch_sizes": []},
    {"batch_sizes": 7},
    {"batch_sizes": "128"},
    {"batch_sizes": ["many"]},
    {"batch_sizes": [64, 128.5]},
    {"batch_sizes": [64, math.nan]},
    {"batch_sizes": [64, True]},
    {"batch_sizes": [0, 64]},
    {"batch_sizes": [-64, 64]},
    {"default_batch_size": 0},
    {"default_batch_size": 100},
    {"default_batch_size": 64.0},
    {"target": math.nan},
    {"target": math.inf},
    {"target": "high"},
    {"target": None},
    {"max_epochs": -3},
    {"max_epochs": 0},
    {"max_epochs": 1.5},
    {"max_epochs": math.nan},
    {"objective": "fastest-and-leanest"},
    {"objective": "least-energy:slowdown=nan"},
    {"objective": "cost:eta=2"},
    {"objective": 0.5},
    {"early_stop": "no"},
    {"higher_is_better": 1},
    {"dry_run": "yes"},
    {"store": "ftp://nowhere"},
    {"store": ""},
    {"knob": ""},
    {"knob": "fan"},
    {"process_group": "gloo"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_arguments_are_refused_when_the_run_is_made(wrong):
    """If this fails, a typo is found after hours of training, or never."""
    right = {"batch_sizes": [64, 128], "target": 0.9, "devices": []}
    Run("job", **right).close()
    with pytest.raises(InvalidValueError) as refused:
        Run("job", **{**right, **wrong})
    assert refused.value.remedy


def test_the_remedy_of_an_objective_is_that_of_a_run():
    """If this fails, it explains the order of arguments of another function."""
    with pytest.raises(InvalidValueError) as refused:
        Run("job", objective=5)
    assert "least-energy:slowdown=5%" in refused.value.remedy
    assert "choose(" not in refused.value.remedy


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "no such"},
        {"team": "\x00"},
        {"team": ""},
        {"location": "ftp://x"},
        {"location": 5},
        {"token": 5},
    ],
)
def test_wrong_services_are_refused(wrong):
    """If this fails, a slip in the service is noticed only by what is not learned."""
    with pytest.raises(InvalidValueError):
        DecisionService(**wrong)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CallbackLoop(5),
        lambda: CallbackLoop(meter=5),
        lambda: CallbackLoop(sinks=5),
        lambda: CallbackLoop(sinks=["energy.csv"]),
        lambda: FileSink(5),
    ],
)
def test_callbacks_refuse_what_is_no_run_meter_or_sink(make):
    """If this fails, a mistake in a callback costs a training all its figures."""
    with pytest.raises(InvalidValueError) as refused:
        make()
    assert refused.value.remedy


@pytest.mark.parametrize("name", [5, None, ""])
def test_a_phase_needs_a_name(name):
    """If this fails, a slip in the name of a phase ends as a row that nobody can read."""
    with Run(devices=[]) as run, pytest.raises(InvalidValueError, match="rollout"):
        run.phase(name)


def test_a_device_is_given_once():
    """If this fails, a board stands in its own way, and its tuning stops after the start."""
    gpu = SimulatedGpu(catalog.board("V100"), VirtualClock())
    with pytest.raises(InvalidValueError, match="twice") as refused:
        Run(devices=[gpu, gpu])
    assert refused.value.remedy


@pytest.mark.parametrize("name", ["x" * 300, "a\nb"])
def test_names_fit_on_a_line(name):
    """If this fails, one name breaks the lines of every summary."""
    with pytest.raises(InvalidValueError, match="printable"):
        Run(name, devices=[])
    with Run(devices=[]) as run, pytest.raises(InvalidValueError, match="printable"):
        run.phase(name)


@pytest.mark.parametrize("name", ["", "x" * 300, "a\nb"])
def test_a_recurring_run_needs_a_name(name):
    """If this fails, what was learned is filed under no name."""
    with pytest.raises(InvalidValueError):
        Run(name, batch_sizes=[64], devices=[])


def test_sizes_are_put_in_order_and_get_a_default():
    """If this fails, a list as people write it is refused."""
    config = RunConfig(name="job", batch_sizes=[256, np.int64(64), 128, 64], target=1)
    assert config.batch_sizes == (64, 128, 256)
    assert config.default_batch_size == 128
    assert config.target == 1.0
    assert "secret" not in repr(DecisionService(token="secret" * 2))


def test_a_service_may_be_a_path():
    """If this fails, the simplest way to name a store does not work."""
    assert RunConfig(store=Path("a.sqlite")).store.location == Path("a.sqlite")
    assert RunConfig(store="http://host").store.policy == "joulery"


def test_the_environment_speaks_where_the_code_does_not(monkeypatch):
    """If this fails, `joulery run` has no say, or overrules what the code asks for."""
    monkeypatch.setenv("JOULERY_OBJECTIVE", "edp")
    monkeypatch.setenv("JOULERY_DRY_RUN", "1")
    assert RunConfig().objective == "edp"
    assert RunConfig().dry_run
    assert not RunConfig(dry_run=False).dry_run
    assert RunConfig(objective="cost:eta=1").objective_for(250.0) == Cost(1.0, 250.0)
    wanted = LeastEnergy(max_slowdown=0.1)
    assert RunConfig(objective=wanted).objective_for(0.0) is wanted


@pytest.mark.parametrize("name", ["V100", "A40", "P100", "RTX6000"])
def test_limits_of_a_job_are_few_and_within_range(name):
    """If this fails, profiling takes for ever, or a limit is refused by the board."""
    board = catalog.board(name)
    limits = listed_limits([SimulatedGpu(board, VirtualClock())])
    assert 2 <= len(limits) <= 10
    assert limits[0] >= board.min_limit_watts
    assert limits[-1] == board.default_limit_watts
    assert list(limits) == sorted(set(limits))


def test_no_board_has_no_limits():
    """If this fails, jobs on processors cannot be defined."""
    assert listed_limits([]) == ()


def test_an_environment_knows_its_processes():
    """If this fails, each rank loads the whole batch."""
    assert RunEnvironment(environ={}).processes == 1
    assert RunEnvironment(environ={"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}).processes == 4
    alike = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "16"}
    assert RunEnvironment(environ=alike).processes == 16
    assert RunEnvironment(environ={"WORLD_SIZE": "many"}).processes == 1


def test_a_run_lives_on_the_clock_of_its_devices():
    """If this fails, simulated runs are measured in real time."""
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    assert RunEnvironment([gpu]).clock is clock
    assert RunEnvironment([SimpleNamespace(info=None)]).clock is REAL_CLOCK
    assert RunEnvironment().clock is REAL_CLOCK


@pytest.mark.parametrize("devices", [3, "gpu:0", ["gpu:0"], SimpleNamespace(info=None)])
def test_what_is_no_list_of_devices_is_refused_at_once(devices):
    """If this fails, a run fails later and silently, and nothing is tuned."""
    with pytest.raises(InvalidValueError, match="are no devices"):
        Run("job", devices=devices)


def test_a_run_s_surroundings_keep_secrets(monkeypatch):
    """A traceback or a debugger that shows them shows every token of the environment."""
    monkeypatch.setenv("HF_TOKEN", "hf_SECRET")
    assert "hf_SECRET" not in repr(RunEnvironment())
