"""Callbacks around the steps of Megatron-Core and DeepSpeed, on stand-ins of their engines."""

import types

import pytest

from joulery.errors import InvalidValueError
from joulery.integrations import deepspeed as deepspeed_hooks, megatron as megatron_hooks
from joulery.pipeline import (
    load_rank_plan,
    plan_pipeline,
    profiles_from_rows,
)
from support.pipeline_notes import Notes, words
from support.pipelines import random_rows


@pytest.fixture
def rank_plan(tmp_path):
    """Rank 1 of a plan for 1F1B on two ranks, from a file."""
    profiles = profiles_from_rows(random_rows(2, 1), smooth=False)
    plan_pipeline(profiles, microbatches=3).save(tmp_path / "plan.json")
    return load_rank_plan(tmp_path / "plan.json", 1)


def megatron_like():
    """A module shaped like Megatron's on the last of two ranks, with two model chunks if asked."""
    state = types.SimpleNamespace(
        get_pipeline_model_parallel_rank=lambda: 1,
        get_pipeline_model_parallel_world_size=lambda: 2,
        get_virtual_pipeline_model_parallel_rank=lambda: None,
    )
    module = types.SimpleNamespace(parallel_state=state)
    module.forward_step = lambda *_, **__: ([object()], "tokens")
    module.backward_step = lambda *_, **__: None

    def forward_backward(*, num_microbatches, forward_only=False, chunks=1):
        for chunk in range(chunks):
            for number in range(num_microbatches):
                options = {"vp_stage": chunk} if chunks > 1 else {}
                output, _ = module.forward_step(current_microbatch=number, **options)
                if not forward_only:
                    module.backward_step("input", output[0], "gradient")

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

    stage_id, num_stages, micro_batches = 1, 2, 3

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
    with megatron_hooks.observed(module, notes, on_cuda=False):
        train = module.forward_backward_pipelining_without_interleaving
        train(num_microbatches=3)
        train(num_microbatches=3, forward_only=True)
        train(num_microbatches=3)
    assert notes.seen == 2 * ["begin", *words(rank_plan.order), "end"]
    assert notes.microbatches == 3
    assert vars(module) == plain
    with (
        pytest.raises(InvalidValueError, match="forward_step"),
        megatron_hooks.observed(types, notes),
    ):
        pass


def test_megatron_chunks_are_stages_of_their_own():
    """If it fails a plan without chunks passes for one of two, and sets clocks that do not fit."""
    module, notes = megatron_like(), Notes()
    with megatron_hooks.observed(module, notes, on_cuda=False):
        module.forward_backward_pipelining_with_interleaving(num_microbatches=1, chunks=2)
    assert notes.seen == [
        "begin",
        "1F0",
        "/1F0",
        "1B0",
        "/1B0",
        "3F0",
        "/3F0",
        "3B0",
        "/3B0",
        "end",
    ]


def test_deepspeed_commands_become_the_instructions_of_the_plan(rank_plan):
    """If it fails clocks are set for the wrong instructions, or evaluation counts as training."""
    engine, notes = PipelineEngine(), Notes()
    with deepspeed_hooks.observed(engine, notes, on_cuda=False):
        assert engine.train_batch(3) == "loss"
        engine.eval_batch()
    engine.train_batch(3)
    assert notes.seen == ["begin", *words(rank_plan.order), "end"]
    assert notes.microbatches == 3
    with (
        pytest.raises(InvalidValueError, match="not a pipeline engine"),
        deepspeed_hooks.observed(object(), notes),
    ):
        pass
