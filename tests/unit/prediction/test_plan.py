"""Parallel plans: what divides, what is where, and how time and memory respond."""

from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.prediction import (
    Plan,
    accelerator,
    plan_memory,
    prediction,
    transformer,
)
from joulery.prediction._bayes import fitted_belief
from joulery.prediction._memory import stage_memory
from joulery.prediction.models import (
    PARTS,
    plan_seconds,
    step_parts,
)

H100 = accelerator("h100")
LLAMA = transformer(
    {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "feedforward": 14336,
        "vocabulary": 128256,
        "sequence": 8192,
    }
)
SPARSE = transformer(
    {
        "layers": 48,
        "hidden": 2048,
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "feedforward": 6144,
        "vocabulary": 151936,
        "sequence": 4096,
        "experts": 128,
        "experts_per_token": 8,
        "expert_feedforward": 768,
    }
)
BASE = Plan(data=8, micro_batch=1, batch_size=64)


def seconds(model, plan, board=H100):
    """Seconds of a step by the fitted constants."""
    return plan_seconds(fitted_belief("plans").mean, step_parts(model, plan, board))[0]


def part(model, plan, name):
    """One physical part of a step."""
    return step_parts(model, plan, H100)[PARTS.index(name)]


def test_a_plan_reads_back_from_its_text():
    """Recommendations are handed to `joulery predict` as text."""
    plan = Plan(8, 2, 4, 2, 1, 5, 2, 128, 3, recompute="full", precision="fp8")
    assert Plan.parse(str(plan), 128, "fp8") == plan
    assert Plan.parse("full-recompute-mb1", 1) == Plan(recompute="full")
    with pytest.raises(InvalidValueError, match="dq2"):
        Plan.parse("dp8-dq2", 8)


@pytest.mark.parametrize(
    "change",
    [{"tensor": 3}, {"pipeline": 35}, {"micro_batch": 3}, {"expert": 2}],
)
def test_plans_that_do_not_divide_are_refused(change):
    """A plan that no framework starts must not be predicted."""
    with pytest.raises(InvalidValueError):
        replace(BASE, **change).check(LLAMA)


def test_recomputation_costs_time_and_saves_memory():
    """It is the trade that makes large models fit."""
    again = replace(BASE, recompute="full")
    assert seconds(LLAMA, again) > 1.15 * seconds(LLAMA, BASE)
    assert plan_memory(LLAMA, again).activations < 0.2 * plan_memory(LLAMA, BASE).activations


def test_more_micro_batches_shrink_the_bubble():
    """Pipelines with few micro-batches are mostly idle."""
    few = Plan(pipeline=8, batch_size=8)
    many = replace(few, batch_size=64)
    assert part(LLAMA, few, "bubble") == pytest.approx(7 / 8)
    assert part(LLAMA, many, "bubble") == pytest.approx(7 / 64)
    assert part(LLAMA, replace(few, chunks=4), "bubble") == pytest.approx(7 / 32)


def test_tensor_groups_beyond_a_node_pay_the_network():
    """Nothing is slower than tensor parallelism over the network."""
    inside = Plan(tensor=8, batch_size=8)
    outside = Plan(tensor=16, batch_size=8)
    assert part(LLAMA, outside, "tensor") > 1.1 * part(LLAMA, inside, "tensor")


def test_experts_are_shared_and_their_tokens_travel():
    """Expert parallelism saves memory and costs all-to-all traffic."""
    alone = replace(BASE, expert=1)
    shared = replace(BASE, expert=8)
    assert plan_memory(SPARSE, shared).parameters < 0.3 * plan_memory(SPARSE, alone).parameters
    assert part(SPARSE, shared, "expert_links") > 0 == part(SPARSE, alone, "expert_links")


def test_schedules_with_split_gradients_idle_less_and_dualpipe_hides_experts():
    """DeepSeek-V2 and V3 were trained so; 1F1B says 29 and 62 % too slow."""
    plain = Plan(data=32, pipeline=4, expert=32, batch_size=256)
    split, both = (replace(plain, schedule=name) for name in ("zb", "dualpipe"))
    assert part(SPARSE, split, "bubble") == pytest.approx(part(SPARSE, plain, "bubble") / 3)
    assert part(SPARSE, both, "expert_links") < 0.2 * part(SPARSE, plain, "expert_links")
    assert plan_memory(SPARSE, both).parameters == 2 * plan_memory(SPARSE, plain).parameters
    assert Plan.parse(str(both), 256) == both


def test_recomputation_leaves_split_schedules_less_to_fill_the_bubble_with():
    """Of R + B + W only W can be moved: (F + R + B - W) / (F + R + B + W) of 1F1B's bubble."""
    for name in ("zb", "dualpipe"):
        plain = Plan(pipeline=4, batch_size=8, recompute="full")
        split = replace(plain, schedule=name)
        assert part(LLAMA, split, "bubble") == pytest.approx(part(LLAMA, plain, "bubble") / 2)


@pytest.mark.parametrize(
    ("text", "batch", "message"),
    [
        ("zb", 8, "schedule of pipelines"),
        ("vp2", 8, "interleaves"),
        ("pp4-vp2-zb", 8, "interleaves"),
        ("pp4-vp2-dualpipe", 8, "interleaves"),
        ("pp3-dualpipe", 8, "pairs the stages"),
        ("pp4-dualpipe", 6, "6 micro-batches"),
        ("pp4-dualpipe", 9, "9 micro-batches"),
        ("lora1025", 1, "narrowest matrix, of 1024"),
    ],
)
def test_schedules_and_ranks_that_cannot_exist_are_refused(text, batch, message):
    """A pipeline that no framework starts would be predicted, and be the fastest."""
    with pytest.raises(InvalidValueError, match=message):
        Plan.parse(text, batch).check(LLAMA)
    Plan.parse("pp4-dualpipe-lora1024", 8).check(LLAMA)


def test_routing_to_few_nodes_spares_the_network():
    """Limits on the nodes of a token's experts exist for this."""
    plan = Plan(data=64, expert=64, batch_size=64)
    near = replace(SPARSE, expert_nodes=2)
    assert part(near, plan, "expert_links") < 0.6 * part(SPARSE, plan, "expert_links")


def test_small_tensors_of_element_wise_work_stay_in_the_cache():
    """Short steps on boards with large caches were predicted a third too slow."""
    board = accelerator("l40")
    small = replace(board, l2_bytes=4e6)
    plan, model = Plan(framework="transformers"), replace(LLAMA, sequence=256)
    dense = PARTS.index("dense")
    ratio = step_parts(model, plan, small)[dense] / step_parts(model, plan, board)[dense]
    assert ratio > 1.1


def test_sharding_divides_state_gradients_and_parameters_in_turn():
    """ZeRO's three stages."""
    memories = [plan_memory(LLAMA, replace(BASE, shard=level)) for level in range(4)]
    assert memories[1].optimizer == pytest.approx(memories[0].optimizer / 8)
    assert memories[2].gradients == pytest.approx(memories[1].gradients / 8)
    assert memories[3].parameters < 0.3 * memories[2].parameters
    assert [memory.allocated for memory in memories] == sorted(
        (m.allocated for m in memories), reverse=True
    )


def test_the_first_stage_keeps_more_micro_batches_than_the_last():
    """Out-of-memory happens on the fullest stage, not on the average one."""
    plan = Plan(pipeline=4, batch_size=16)
    stages = [stage_memory(LLAMA, plan, stage) for stage in range(4)]
    activations = [memory.activations for memory in stages]
    assert activations == pytest.approx([activations[3] * n for n in (4, 3, 2, 1)])
    fullest = max(memory.allocated for memory in stages)
    assert plan_memory(LLAMA, plan).allocated == pytest.approx(fullest)
    assert plan_memory(LLAMA, plan).reserved > plan_memory(LLAMA, plan).allocated


def test_narrow_formats_are_faster_for_dense_models():
    """FP8 that is predicted no faster than BF16 would never be recommended."""
    assert seconds(LLAMA, replace(BASE, precision="fp8")) < 0.85 * seconds(LLAMA, BASE)


def test_published_step_of_llama_on_eight_h100():
    """Megatron-Bridge 25.11: 14,451 tokens per second and GPU, FP8, FSDP, 128 sequences."""
    plan = Plan(data=8, micro_batch=1, batch_size=128, shard=3, precision="fp8")
    published = 128 * 8192 / (8 * 14451)
    assert seconds(LLAMA, plan) == pytest.approx(published, rel=0.3)
    assert np.isfinite(step_parts(LLAMA, plan, H100)).all()


def test_compiled_steps_are_not_slower_than_eager_ones():
    """Whoever compares frameworks would be told to switch compilation off."""
    small = {"layers": 12, "hidden": 768, "heads": 12, "feedforward": 3072, "vocabulary": 50304}
    model = transformer({**small, "sequence": 1024, "gated": False, "tied": True})
    large = {"layers": 32, "hidden": 4096, "heads": 32, "feedforward": 14336, "vocabulary": 128256}
    for shape, text, batch in (
        (model, "dp1-mb12", 12),
        (transformer({**large, "sequence": 2048}), "dp8-mb4-zero3-full-recompute", 64),
    ):
        compiled, eager = (
            prediction(shape, "a100", Plan.parse(f"{text}-{word}", batch)).points[-1].seconds
            for word in ("compile", "eager")
        )
        assert compiled < eager
