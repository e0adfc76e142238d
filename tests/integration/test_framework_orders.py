"""Orders and callbacks of Megatron-Core's and DeepSpeed's own schedules, where installed."""

import types

import pytest

from joulery.errors import InvalidValueError
from joulery.integrations import deepspeed as deepspeed_hooks
from joulery.integrations import megatron as megatron_hooks
from joulery.pipeline import (
    LETTERS,
    load_rank_plan,
    make_schedule,
    plan_pipeline,
    profiles_from_rows,
)
from joulery.testing.pipelines import random_rows

_LETTER = {kind: letter for letter, kind in LETTERS.items()}


class Notes:
    """An observer that writes everything down."""

    def __init__(self):
        self.seen = []

    def begin_iteration(self, reached):
        """An iteration begins."""
        assert reached is None
        self.seen.append("begin")

    def before(self, stage, kind, microbatch, reached):
        """An instruction begins."""
        assert reached is None
        self.seen.append(f"{stage}{_LETTER[kind]}{microbatch}")

    def after(self, stage, kind, microbatch, reached):
        """An instruction has ended."""
        assert reached is None
        self.seen.append(f"/{stage}{_LETTER[kind]}{microbatch}")


def words(order):
    """What an observer sees of instructions that run one after the other."""
    return [
        f"{end}{item.stage}{_LETTER[item.kind]}{item.microbatch}"
        for item in order
        for end in ("", "/")
    ]


@pytest.fixture
def rank_plan(tmp_path):
    """Rank 1 of a plan for 1F1B on two ranks, from a file."""
    profiles = profiles_from_rows(random_rows(2, 1), smooth=False)
    plan_pipeline(profiles, microbatches=3).save(tmp_path / "plan.json")
    return load_rank_plan(tmp_path / "plan.json", 1)


def megatron_like():
    """A module shaped like Megatron's, whose functions look each other up in it."""
    module = types.SimpleNamespace()
    module.forward_step = lambda *_, **__: None
    module.backward_step = lambda *_, **__: None

    def forward_backward(*, num_microbatches, forward_only=False):
        for _ in range(num_microbatches):
            module.forward_step()
            if not forward_only:
                module.backward_step()

    for name in megatron_hooks._ITERATIONS:
        setattr(module, name, forward_backward)
    return module


class PipelineEngine:
    """An engine shaped like DeepSpeed's."""

    class ForwardPass:
        """A command."""

    class BackwardPass:
        """A command."""

    class SendGrad:
        """A command that is no computation."""

    def train_batch(self, count):
        """An iteration of the last rank."""
        for _ in range(count):
            for command in (self.ForwardPass, self.BackwardPass, self.SendGrad):
                self._INSTRUCTION_MAP[command](self, buffer_id=0)
        return "loss"

    def eval_batch(self):
        """A forward without training."""
        self._INSTRUCTION_MAP[self.ForwardPass](self, buffer_id=0)

    _INSTRUCTION_MAP = {  # noqa: RUF012 - as DeepSpeed's
        command: lambda _, buffer_id: buffer_id for command in (ForwardPass, BackwardPass, SendGrad)
    }


def test_megatron_calls_become_the_instructions_of_the_plan(rank_plan):
    """If it fails clocks are set for the wrong instructions, or evaluation counts as training."""
    module, notes = megatron_like(), Notes()
    plain = dict(vars(module))
    with megatron_hooks.observed(module, notes, rank_plan.order, on_cuda=False):
        train = module.forward_backward_pipelining_without_interleaving
        train(num_microbatches=3)
        train(num_microbatches=3, forward_only=True)
        train(num_microbatches=3)
    assert notes.seen == 2 * ["begin", *words(rank_plan.order)]
    assert vars(module) == plain
    with (
        pytest.raises(InvalidValueError, match="forward_step"),
        megatron_hooks.observed(types, notes, ()),
    ):
        pass


def test_deepspeed_commands_become_the_instructions_of_the_plan(rank_plan):
    """If it fails clocks are set for the wrong instructions, or evaluation counts as training."""
    engine, notes = PipelineEngine(), Notes()
    with deepspeed_hooks.observed(engine, notes, rank_plan.order, on_cuda=False):
        assert engine.train_batch(3) == "loss"
        engine.eval_batch()
    engine.train_batch(3)
    assert notes.seen == ["begin", *words(rank_plan.order)]
    with (
        pytest.raises(InvalidValueError, match="no pipeline engine"),
        deepspeed_hooks.observed(object(), notes, ()),
    ):
        pass


@pytest.fixture(scope="module")
def megatron_schedules():
    """Megatron-Core's own module."""
    return pytest.importorskip("megatron.core.pipeline_parallel.schedules")


@pytest.fixture(scope="module")
def deepspeed_schedule():
    """DeepSpeed's own module."""
    return pytest.importorskip("deepspeed.runtime.pipe.schedule")


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
    order = make_schedule("1f1b", 2, 2).ranks[0]
    with megatron_hooks.observed(megatron_schedules, Notes(), order, on_cuda=False):
        found = megatron_schedules.get_forward_backward_func(pp_size=2, vp_size=None)
        assert found is megatron_schedules.forward_backward_pipelining_without_interleaving
        assert found.__code__ is not source


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 8), (8, 32)])
def test_deepspeed_runs_1f1b(deepspeed_schedule, ranks, microbatches):
    """If it fails plans are made for another order than DeepSpeed's."""
    made = deepspeed_hooks.schedule_of(deepspeed_schedule.TrainSchedule, ranks, microbatches)
    assert made.ranks == make_schedule("1f1b", ranks, microbatches).ranks
    ending = deepspeed_hooks.schedule_of(deepspeed_schedule.TrainSchedule, ranks, 8, endings=True)
    assert [item.kind for item in ending.ranks[0][-2:]] == ["reduce", "optimizer"]


def test_deepspeed_own_engine_runs_through_the_hook(deepspeed_schedule):
    """If it fails DeepSpeed's engine runs commands by another way than the hook expects."""
    engine_module = pytest.importorskip("deepspeed.runtime.pipe.engine")
    own = engine_module.PipelineEngine
    stage, ranks, microbatches = 1, 4, 6

    class Engine:
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
    with deepspeed_hooks.observed(engine, notes, order, on_cuda=False):
        engine.train_batch()
    assert notes.seen == ["begin", *words(order)]


def test_deepspeed_two_stages_per_rank(deepspeed_schedule):
    """If it fails the V-shaped schedule of DeepSpeed cannot be planned."""
    made = getattr(deepspeed_schedule, "DualPipeVSchedule", None)
    if made is None:
        pytest.skip("this version of DeepSpeed has no DualPipeV")
    found = deepspeed_hooks.schedule_of(made, 4, 8)
    assert found.stages == 8
