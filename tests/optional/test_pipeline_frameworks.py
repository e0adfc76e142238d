"""Orders and callbacks of Megatron-Core's and DeepSpeed's own schedules."""

import importlib

import pytest

from joulery.integrations import deepspeed as deepspeed_hooks, megatron as megatron_hooks
from joulery.pipeline import make_schedule
from support.pipeline_notes import Notes, words

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages themselves


@pytest.fixture(scope="module")
def megatron_schedules():
    """Megatron-Core's own module."""
    return importlib.import_module("megatron.core.pipeline_parallel.schedules")


@pytest.fixture(scope="module")
def deepspeed_schedule():
    """DeepSpeed's own module."""
    return importlib.import_module("deepspeed.runtime.pipe.schedule")


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 8), (4, 8), (4, 3), (8, 32)])
def test_megatron_runs_1f1b(megatron_schedules, ranks, microbatches):
    """If it fails plans are made for another order than Megatron's."""
    found = megatron_hooks.schedule_of(megatron_schedules, ranks, microbatches)
    assert found.ranks == make_schedule("1f1b", ranks, microbatches).ranks


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 16, 3)])
def test_megatron_runs_interleaved_1f1b(megatron_schedules, ranks, microbatches, chunks):
    """If it fails plans are made for another order than Megatron's."""
    found = megatron_hooks.schedule_of(megatron_schedules, ranks, microbatches, chunks=chunks)
    wanted = make_schedule("interleaved", ranks, microbatches, chunks=chunks)
    assert found.ranks == wanted.ranks


def test_megatron_own_functions_are_observed(megatron_schedules):
    """If it fails Megatron calls its steps by another way than the hook expects."""
    source = megatron_schedules.forward_backward_pipelining_without_interleaving.__code__
    assert {"forward_step", "backward_step"} <= set(source.co_names)
    with megatron_hooks.observed(megatron_schedules, Notes(), on_cuda=False):
        found = megatron_schedules.get_forward_backward_func(pp_size=2, vp_size=None)
        assert found is megatron_schedules.forward_backward_pipelining_without_interleaving
        assert found.__code__ is not source


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 8), (8, 32)])
def test_deepspeed_runs_1f1b(deepspeed_schedule, ranks, microbatches):
    """If it fails plans are made for another order than DeepSpeed's."""
    made = deepspeed_hooks.schedule_of(deepspeed_schedule.TrainSchedule, ranks, microbatches)
    assert made.ranks == make_schedule("1f1b", ranks, microbatches).ranks


def test_deepspeed_own_engine_runs_through_the_hook(deepspeed_schedule):
    """If it fails DeepSpeed's engine runs commands by another way than the hook expects."""
    engine_module = importlib.import_module("deepspeed.runtime.pipe.engine")
    own = engine_module.PipelineEngine
    stage, ranks, microbatches = 1, 4, 6

    class Engine:
        stage_id, num_stages, micro_batches = stage, ranks, microbatches
        _INSTRUCTION_MAP = dict.fromkeys(own._INSTRUCTION_MAP, lambda *_, **__: None)

        def _reserve_pipe_buffers(self, _):
            pass

        def train_batch(self):
            schedule = deepspeed_schedule.TrainSchedule(microbatches, ranks, stage)
            own._exec_schedule(self, schedule)

    notes = Notes()
    order = deepspeed_hooks.schedule_of(
        deepspeed_schedule.TrainSchedule, ranks, microbatches
    ).ranks[stage]
    engine = Engine()
    with deepspeed_hooks.observed(engine, notes, on_cuda=False):
        engine.train_batch()
    endings = ["1G-1", "/1G-1", "1O-1", "/1O-1"]
    assert notes.seen == ["begin", *words(order), *endings, "end"]


def test_deepspeed_two_stages_per_rank(deepspeed_schedule):
    """If it fails the V-shaped schedule of DeepSpeed cannot be planned."""
    made = getattr(deepspeed_schedule, "DualPipeVSchedule", None)
    if made is None:
        pytest.skip("this version of DeepSpeed has no DualPipeV")
    found = deepspeed_hooks.schedule_of(made, 4, 8)
    assert found.stages == 8
